"""Replay a failed episode: `python -m shmppo.replay RUN_DIR/failed_episode.json`, under a debugger if you like."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np

from shmppo.config.train_config import from_json
from shmppo.envs.factory import inspect_task
from shmppo.envs.sync import SyncVectorEnv
from shmppo.errors import ConfigError


def replay(file: Path) -> int:
    """Take the episode's actions again, the failing one last, and begin the next where it ends; returns its steps.

    Raises:
        ConfigError: if the file cannot be read.
        EnvError: as in the run, where the environment raises or returns what is not finite or of another shape.
    """
    try:
        content = json.loads(file.read_text())
        config, index, episode = from_json(content["config"]), content["env_index"], content["episode"]
        actions = np.array(content["actions"], np.float32)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{file} is not the record of an episode ({error}); name a failed_episode.json") from error
    task = inspect_task(config)
    batch = SyncVectorEnv(dataclasses.replace(config, skip_bad_episodes=False), task, index, index + 1)
    reward, terminated, truncated = np.zeros(1), np.zeros(1, bool), np.zeros(1, bool)
    batch.begin(episode)
    for action in task.distribution.to_env(actions):
        batch.step([action], reward, terminated, truncated)
    batch.close()
    return len(actions)
