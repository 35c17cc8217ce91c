"""How a configuration differs from the defaults: as fields, and as flags."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from shmppo.config.checks import flag_with_value
from shmppo.config.train_config import TrainConfig


def differences(config: TrainConfig) -> dict[str, Any]:
    """Return the fields of a configuration that differ from the defaults."""
    default = TrainConfig()
    return {name: value for name, value in config.fields().items() if value != getattr(default, name)}


def flags_with_values(fields: Mapping[str, Any]) -> list[str]:
    """Return the flags that set fields of a configuration, as words of a command line."""
    return shlex.split(" ".join(flag_with_value(name, value) for name, value in fields.items()))
