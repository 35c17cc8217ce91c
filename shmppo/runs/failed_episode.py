"""The file failed_episode.json: write the episode in which an environment failed, and replay it."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

import numpy as np

from shmppo.config.checks import require
from shmppo.config.train_config import TrainConfig, stored_config
from shmppo.config.trust import Trusted, check_trust, trust_of
from shmppo.envs.backends import backend_of
from shmppo.envs.inspection import inspect_task
from shmppo.envs.spec import EnvSpec
from shmppo.envs.sync_vector_env import SyncVectorEnv
from shmppo.errors import ConfigError, EnvError
from shmppo.lockstep.action_log import ActionLog
from shmppo.parallel.shared_buffers import Rollout
from shmppo.storage.run_directory import FAILED_EPISODE, LOG
from shmppo.utils.commands import program
from shmppo.utils.files import is_run, read_object, refuse_links, short_path, user_path, write_json
from shmppo.utils.rng import episode_seed


def write_failed_episode(
    run_dir: Path,
    config: TrainConfig,
    task: EnvSpec,
    rollout: Rollout,
    actions: ActionLog,
    steps_begun: int,
    error: EnvError,
) -> None:
    """Write failed_episode.json, and add hints to the error that say how to use it.

    `python -m shmppo.replay` repeats an episode up to the failed step.

    Args:
        run_dir: directory of the run.
        rollout: the rollout in which the environment failed.
        actions: the action log before this rollout.
        steps_begun: number of steps of the rollout that the environment has begun, including the failed one.
        error: the failure. It gets the hints.

    Raises:
        OSError: if the file cannot be written.
    """
    error.add_hint(f"The whole traceback is in {short_path(run_dir / LOG)}.")
    if not backend_of(task).can_skip:
        return
    env_index = error.env_index
    starts = np.flatnonzero(rollout.first[:steps_begun, env_index])
    episode_actions = rollout.actions[:steps_begun, env_index]
    episode = actions.episodes(range(env_index, env_index + 1))[0]
    number = episode.number + int((starts > 0).sum())
    began = actions.iteration + 1 if (starts > 0).any() else episode.iteration
    if len(starts):
        episode_actions = episode_actions[starts[-1] :]
    elif episode.actions is not None:
        episode_actions = np.concatenate([episode.actions, episode_actions])
    else:
        return  # the episode is too long, or cannot be replayed
    content = {
        "config": config.to_json(),
        "env_index": env_index,
        "episode": number,
        "iteration": began,
        "failed_iteration": actions.iteration + 1,
        "options": actions.options.get(began),
        "failed_options": actions.options.get(actions.iteration + 1),
        "generators": list(task.generators),
        "seed": episode_seed(config.seed, config.first_env + env_index, number),
        "actions": episode_actions.tolist(),
        "message": str(error),
    }
    write_json(run_dir / FAILED_EPISODE, content)
    file = shlex.quote(short_path(run_dir / FAILED_EPISODE))
    error.add_hint(f"To repeat the episode that failed: {program('replay')} {file}{trust_of(run_dir)}")


def replay(file: str | Path, trust: Trusted = ()) -> int:
    """Reset the environment with the episode's seed and repeat its actions. The last action is the one that failed.

    Args:
        file: failed_episode.json of a run.
        trust: see `shmppo.resume`.

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
        config = stored_config(content["config"])
        index, episode = int(content["env_index"]), int(content["episode"])
        began, failed = content.get("options"), content.get("failed_options")
        actions = np.array(content["actions"], np.float32)
    except (ConfigError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{file} is not the failed_episode.json of a run ({error}); restore it") from error
    check_trust(config.to_json(), file, trust)
    task = inspect_task(config).with_generators(content.get("generators", ()))
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
