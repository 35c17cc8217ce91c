"""The value `mujoco` of --env-backend."""

from __future__ import annotations

VALUES = {
    "env_backend": {
        "mujoco": "mujoco: those of a worker together, for the MuJoCo tasks of Gymnasium, with the same results.",
    }
}
