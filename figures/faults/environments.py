"""Environments that raise once when a file appears.

The file is the one that the environment variable SHMPPO_FAULT names. Use as
`--env figures.faults.environments:RaisesOnceCartPole-v0`.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import gymnasium


class RaisesOnce(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Raises in `step` if the file exists. Of several environments, only the one that removes the file raises."""

    def step(self, action: Any) -> Any:
        path = os.environ.get("SHMPPO_FAULT", "")
        if os.path.exists(path):
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass
            else:
                raise RuntimeError("raised on purpose")
        return self.env.step(action)


def _make(env_id: str) -> gymnasium.Env[Any, Any]:
    return RaisesOnce(gymnasium.make(env_id))


for _name, _version in (("CartPole", 1), ("Pendulum", 1), ("HalfCheetah", 5)):
    gymnasium.register(f"RaisesOnce{_name}-v0", entry_point=partial(_make, f"{_name}-v{_version}"), order_enforce=False)
