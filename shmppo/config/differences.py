"""How a configuration differs from the defaults: as fields, and as a command line."""

from __future__ import annotations

from typing import Any

from shmppo.config.checks import flag_with_value
from shmppo.config.train_config import TrainConfig


def differences(config: TrainConfig) -> dict[str, Any]:
    """Return the fields of a configuration that differ from the defaults."""
    default = TrainConfig()
    return {name: value for name, value in config.fields().items() if value != getattr(default, name)}


def command(config: TrainConfig) -> str:
    """Return the command line that trains a configuration."""
    flags = [flag_with_value(name, value) for name, value in differences(config).items()]
    return " ".join(["python -m shmppo.train", *flags])
