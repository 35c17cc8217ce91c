"""Replay an episode in which an environment failed, for example in a debugger."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from shmppo.config.checks import require
from shmppo.config.train_config import TrainConfig
from shmppo.config.trust import Trusted, check_trust
from shmppo.envs.inspection import inspect_task
from shmppo.envs.sync_vector_env import SyncVectorEnv
from shmppo.errors import ConfigError
from shmppo.utils.files import is_run, read_object, refuse_links, user_path


def replay(file: str | Path, trust: Trusted = ()) -> int:
    """Reset the environment with the episode's seed and repeat its actions. The last action is the one that failed.

    Args:
        file: failed_episode.json of a run.
        trust: see `shmppo.load_policy`.

    Returns:
        The number of steps, if all of them succeed.

    Raises:
        ConfigError: if the file cannot be read, or if it names code that is not trusted.
        EnvError: if the environment fails again: it raises, or returns an observation or reward that is invalid.
    """
    file = user_path(file, "file")
    if is_run(file.parent):
        refuse_links(file.parent)
    require(file.exists(), f"{file} does not exist; name the failed_episode.json of a run")
    content = read_object(file, "name the failed_episode.json of a run")
    try:
        config = TrainConfig(**content["config"])
        index, episode = int(content["env_index"]), int(content["episode"])
        began, failed = content.get("options"), content.get("failed_options")
        actions = np.array(content["actions"], np.float32)
    except (ConfigError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{file} is not the failed_episode.json of a run ({error}); restore it") from error
    check_trust(config.to_json(), file, trust)
    task = inspect_task(config)
    size = task.distribution.action_size
    require(
        actions.ndim == 2 and actions.shape[1] == size and bool(np.isfinite(actions).all()),
        f"{file} has actions that do not fit {config.env_id}, whose actions have {size} numbers each; restore it",
    )
    batch = SyncVectorEnv(dataclasses.replace(config, skip_bad_episodes=False), task, index, index + 1)
    reward, terminated, truncated = np.zeros(1), np.zeros(1, bool), np.zeros(1, bool)
    batch.options = began
    batch.reset_all(episode)
    batch.options = failed  # if the reset of the next episode failed
    for action in task.distribution.to_env(actions):
        batch.step([action], reward, terminated, truncated)
    batch.close()
    return len(actions)
