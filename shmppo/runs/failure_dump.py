"""Write a file with the episode in which an environment failed."""

from __future__ import annotations

import logging
import shlex
from pathlib import Path

import numpy as np

from shmppo.config.train_config import TrainConfig
from shmppo.config.trust import trust_of
from shmppo.errors import EnvError
from shmppo.lockstep.action_log import ActionLog
from shmppo.parallel.shared_buffers import Rollout
from shmppo.storage.run_directory import FAILED_EPISODE, LOG
from shmppo.utils.commands import program
from shmppo.utils.files import short_path, write_json
from shmppo.utils.rng import episode_seed

log = logging.getLogger(__name__)


def write_failed_episode(
    run_dir: Path,
    config: TrainConfig,
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
    if config.agents or config.env_backend in ("envpool", "vector"):
        log.warning("failed_episode.json is not written: only a single environment with one agent can be replayed")
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
        log.warning("failed_episode.json is not written: the episode is too long, or cannot be replayed")
        return
    content = {
        "config": config.to_json(),
        "env_index": env_index,
        "episode": number,
        "iteration": began,
        "failed_iteration": actions.iteration + 1,
        "options": actions.options.get(began),
        "failed_options": actions.options.get(actions.iteration + 1),
        "seed": episode_seed(config.seed, config.first_env + env_index, number),
        "actions": episode_actions.tolist(),
        "message": str(error),
    }
    write_json(run_dir / FAILED_EPISODE, content)
    file = shlex.quote(short_path(run_dir / FAILED_EPISODE))
    error.add_hint(f"To repeat the episode that failed: {program('replay')} {file}{trust_of(run_dir)}")
