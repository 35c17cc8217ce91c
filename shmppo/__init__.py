"""shmppo: recurrent PPO on one workstation, shared memory, lock-step workers, runs that repeat bit for bit."""

import logging

from shmppo.config import ConfigError, TrainConfig
from shmppo.version import __version__

# A library does not print: records go to the log of a run, and nowhere before there is one.
logging.getLogger(__name__).addHandler(logging.NullHandler())

__all__ = ["ConfigError", "TrainConfig", "__version__"]
