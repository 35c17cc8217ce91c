"""Replay a failed episode: `python -m shmppo.replay RUN_DIR/failed_episode.json`, under a debugger if you like."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

from shmppo.config import ConfigError, from_json
from shmppo.envs import EnvironmentSlot, inspect_task


@dataclass(frozen=True)
class ReplayConfig:
    """What `python -m shmppo.replay` is told."""

    file: tyro.conf.Positional[Path]
    """failed_episode.json of a run."""


def replay(file: Path) -> int:
    """Take the episode's actions again, the failing one last; returns the steps that went well.

    Raises:
        ConfigError: if the file cannot be read.
        Exception: whatever the environment raises.
    """
    try:
        content = json.loads(file.read_text())
        config, index, episode = from_json(content["config"]), content["env_index"], content["episode"]
        actions = np.array(content["actions"], np.float32)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{file} is not the record of an episode ({error}); name a failed_episode.json") from error
    task = inspect_task(config)
    slot = EnvironmentSlot(config, task, index)
    slot.begin(episode)
    for action in task.distribution.to_env(actions):
        slot.step(action)
    slot.close()
    return len(actions)


def main() -> int:
    """The command line; returns the exit code. What the environment raises is not caught: it is what you look for."""
    options = tyro.cli(ReplayConfig, prog="python -m shmppo.replay", description=__doc__)
    try:
        steps = replay(options.file)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"all {steps} steps went well: the failure does not depend on (seed, actions) alone")
    return 0


if __name__ == "__main__":
    sys.exit(main())
