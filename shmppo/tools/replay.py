"""Replay an episode in which an environment failed, for example in a debugger."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np

from shmppo.config.train_config import from_json
from shmppo.envs.inspection import inspect_task
from shmppo.envs.vector_env import SyncVectorEnv
from shmppo.errors import ConfigError


def replay(file: Path) -> int:
    """Reset the environment with the episode's seed and repeat its actions. The last action is the one that failed.

    Args:
        file: failed_episode.json of a run.

    Returns:
        The number of steps, if all of them succeed.

    Raises:
        ConfigError: if the file cannot be read.
        EnvError: if the environment fails again: it raises, or returns an observation or reward that is invalid.
    """
    if not file.exists():
        raise ConfigError(f"{file} does not exist; name the failed_episode.json of a run")
    try:
        content = json.loads(file.read_text())
        config, index, episode = from_json(content["config"]), content["env_index"], content["episode"]
        actions = np.array(content["actions"], np.float32)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"{file} is not a recorded episode ({error}); name the failed_episode.json of a run"
        ) from error
    task = inspect_task(config)
    batch = SyncVectorEnv(dataclasses.replace(config, skip_bad_episodes=False), task, index, index + 1)
    reward, terminated, truncated = np.zeros(1), np.zeros(1, bool), np.zeros(1, bool)
    batch.reset_all(episode)
    for action in task.distribution.to_env(actions):
        batch.step([action], reward, terminated, truncated)
    batch.close()
    return len(actions)
