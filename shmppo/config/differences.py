"""How a configuration differs from the defaults: as fields, and as a command line."""

from __future__ import annotations

import json
import shlex
from typing import Any

from shmppo.config.checks import flag
from shmppo.config.train_config import TrainConfig


def differences(config: TrainConfig) -> dict[str, Any]:
    """Return the fields of a configuration that differ from the defaults."""
    default = TrainConfig()
    return {name: value for name, value in config.fields().items() if value != getattr(default, name)}


def command(config: TrainConfig) -> str:
    """Return the command line that trains a configuration."""
    words = ["python", "-m", "shmppo.train"]
    for name, value in differences(config).items():
        if isinstance(value, bool):
            words.append(flag(name) if value else flag("no_" + name))
        elif isinstance(value, dict):
            words += [flag(name), *(f"{key}={json.dumps(part)}" for key, part in value.items())]
        elif isinstance(value, tuple):
            words += [flag(name), *map(str, value)]
        else:
            words += [flag(name), str(value)]
    return shlex.join(words)
