"""shmppo: recurrent PPO on one workstation, shared memory, lock-step workers, runs that repeat bit for bit."""

from shmppo.config import ConfigError, TrainConfig
from shmppo.version import __version__

__all__ = ["ConfigError", "TrainConfig", "__version__"]
