"""Environments that raise or end their process once when a file appears.

The environment variable SHMPPO_FAULT names the file. If the file contains "exit", the process ends. Use as
`--env figures.faults.environments:RaisesOnceCartPole-v0`.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium

EXIT_CODE = 3


class RaisesOnce(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Raises or exits in `step` if the file exists. Of several environments, only the one that removes it does."""

    def step(self, action: Any) -> Any:
        path = os.environ.get("SHMPPO_FAULT", "")
        if os.path.exists(path):
            try:
                how = Path(path).read_text()
                os.unlink(path)
            except FileNotFoundError:
                pass
            else:
                if how == "exit":
                    os._exit(EXIT_CODE)
                raise RuntimeError("raised on purpose")
        return self.env.step(action)


def _make(env_id: str) -> gymnasium.Env[Any, Any]:
    return RaisesOnce(gymnasium.make(env_id))


for _name, _version in (("CartPole", 1), ("Pendulum", 1), ("HalfCheetah", 5), ("InvertedPendulum", 5)):
    gymnasium.register(f"RaisesOnce{_name}-v0", entry_point=partial(_make, f"{_name}-v{_version}"), order_enforce=False)
