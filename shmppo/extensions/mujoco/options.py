"""The value `mujoco` of --env-backend, and the public class."""

from __future__ import annotations

PUBLIC = {"MujocoTask": "shmppo.extensions.mujoco.task"}
VALUES = {
    "env_backend": {
        "mujoco": "mujoco: those of a worker together: `MujocoTask`s and the MuJoCo tasks of Gymnasium.",
    }
}
