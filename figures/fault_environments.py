"""Environments that raise once when a file appears: for measure_faults.py."""

from __future__ import annotations

import os
from typing import Any

import gymnasium


class RaisesOnce(gymnasium.Wrapper):
    """Raises in `step` if it is the one that removes the file named by SHMPPO_FAULT."""

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


for _name, _version in (("CartPole", 1), ("Pendulum", 1), ("HalfCheetah", 5)):
    gymnasium.register(
        f"RaisesOnce{_name}-v0",
        entry_point=lambda id=f"{_name}-v{_version}": RaisesOnce(gymnasium.make(id)),
        order_enforce=False,
    )
