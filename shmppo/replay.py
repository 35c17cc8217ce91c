"""Replay a failed episode: `python -m shmppo.replay RUN_DIR/failed_episode.json`, under a debugger if you like."""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

from shmppo.batches import EnvironmentBatch
from shmppo.config import ConfigError, from_json
from shmppo.envs import inspect_task


@dataclass(frozen=True)
class ReplayConfig:
    """What `python -m shmppo.replay` is told."""

    file: tyro.conf.Positional[Path]
    """failed_episode.json of a run."""


def replay(file: Path) -> int:
    """Take the episode's actions again, the failing one last, and begin the next where it ends; returns its steps.

    Raises:
        ConfigError: if the file cannot be read.
        EnvironmentFault: as in the run, where the environment raises or returns what is not finite or of another shape.
    """
    try:
        content = json.loads(file.read_text())
        config, index, episode = from_json(content["config"]), content["env_index"], content["episode"]
        actions = np.array(content["actions"], np.float32)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{file} is not the record of an episode ({error}); name a failed_episode.json") from error
    task = inspect_task(config)
    batch = EnvironmentBatch(dataclasses.replace(config, skip_bad_episodes=False), task, index, index + 1)
    reward, terminated, truncated = np.zeros(1), np.zeros(1, bool), np.zeros(1, bool)
    batch.begin(episode)
    for action in task.distribution.to_env(actions):
        batch.step([action], reward, terminated, truncated)
    batch.close()
    return len(actions)


def main() -> int:
    """The command line; returns the exit code. A fault of the environment is not caught: it is what you look for."""
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
