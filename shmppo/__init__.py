"""shmppo: recurrent PPO on one workstation, shared memory, lock-step workers, runs that repeat bit for bit."""

import importlib
import logging
from typing import TYPE_CHECKING, Any

from shmppo.config import ConfigError, TrainConfig
from shmppo.version import __version__

if TYPE_CHECKING:
    from shmppo.policy import load_policy
    from shmppo.train import resume, train

# A library does not print: records go to the log of a run, and nowhere before there is one.
logging.getLogger(__name__).addHandler(logging.NullHandler())

__all__ = ["ConfigError", "TrainConfig", "__version__", "load_policy", "resume", "train"]

_HEAVY = {"train": "shmppo.train", "resume": "shmppo.train", "load_policy": "shmppo.policy"}


def __getattr__(name: str) -> Any:
    """Functions that need torch, imported when first used."""
    if name not in _HEAVY:
        raise AttributeError(f"module 'shmppo' has no attribute {name!r}")
    function = getattr(importlib.import_module(_HEAVY[name]), name)
    globals()[name] = function  # importing the submodule train has bound its name to the module
    return function
