"""Write a file that shows why a run failed: the failed episode, or the failed minibatch."""

from __future__ import annotations

import logging
import shlex
from pathlib import Path

import numpy as np
import torch

from shmppo.config.train_config import TrainConfig
from shmppo.errors import EnvError, TrainingError, WorkerError
from shmppo.models.actor_critic import ActorCritic
from shmppo.parallel.shared_buffers import Rollout, SharedBuffers
from shmppo.sampling.worker import ActionLog
from shmppo.storage.run_directory import FAILED_EPISODE, FAILED_MINIBATCH, LOG
from shmppo.utils.files import replaced_file, short_path, write_json
from shmppo.utils.rng import episode_seed

log = logging.getLogger(__name__)

_STEP_ARRAYS = ("actions", "reward", "first", "terminated", "truncated", "bootstrap", "value", "log_prob")


def write_failed_episode(
    run_dir: Path,
    config: TrainConfig,
    rollout: Rollout,
    actions: ActionLog,
    env_index: int,
    steps_begun: int,
    error: WorkerError | EnvError,
) -> None:
    """Write failed_episode.json, and add hints to the error that say how to use it.

    `python -m shmppo.replay` repeats an episode up to the failed step.

    Args:
        run_dir: directory of the run.
        rollout: the rollout in which the environment failed.
        actions: the action log before this rollout.
        env_index: index of the environment within its rank.
        steps_begun: number of steps of the rollout that the environment has begun, including the failed one.
        error: the failure. It gets the hints.

    Raises:
        OSError: if the file cannot be written.
    """
    error.add_hint(f"The whole traceback is in {short_path(run_dir / LOG)}.")
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
    if not np.isfinite(episode_actions).all():
        log.warning("failed_episode.json is not written: an action is not finite, so the policy has diverged")
        return
    content = {
        "config": config.to_json(),
        "env_index": env_index,
        "episode": number,
        "iteration": began,
        "failed_iteration": actions.iteration + 1,
        "seed": episode_seed(config.seed, config.first_env + env_index, number),
        "actions": episode_actions.tolist(),
        "message": str(error),
    }
    write_json(run_dir / FAILED_EPISODE, content)
    file = shlex.quote(short_path(run_dir / FAILED_EPISODE))
    error.add_hint(f"To repeat the episode that failed: python -m shmppo.replay {file}")


def write_failed_minibatch(run_dir: Path, buffers: SharedBuffers, model: ActorCritic, error: TrainingError) -> None:
    """Write failed_minibatch.pt. Read it with `torch.load(…, weights_only=True)`.

    It contains the whole rollout, the sequences of the minibatch, the results of its shards, and the weights. The
    gradient of the first shard is the sum over all shards and ranks.

    Args:
        run_dir: directory of the run.
        buffers: the shared buffers, as the failed minibatch has left them.
        model: the network.
        error: names the minibatch.

    Raises:
        OSError, RuntimeError: if the file cannot be written.
    """
    rollout, minibatches, results = buffers.rollout, buffers.minibatches, buffers.shard_results
    arrays = {name: getattr(rollout, name) for name in _STEP_ARRAYS}
    leaves = zip(model.observation.leaves, rollout.obs, strict=True)
    arrays |= {leaf.field: obs for leaf, obs in leaves}
    bounds = minibatches.bounds[error.epoch, error.minibatch]
    order = minibatches.order[error.epoch, int(bounds[0]) : int(bounds[-1])]
    content = {
        "message": str(error),
        "rollout": {name: torch.from_numpy(array.copy()) for name, array in arrays.items()},
        "sequences": torch.from_numpy(minibatches.sequences[order]),
        "loss_terms": torch.from_numpy(results.loss_terms.copy()),
        "max_log_ratio": torch.from_numpy(results.max_log_ratio.copy()),
        "gradients": torch.from_numpy(results.gradients.copy()),
        "weights": {name: tensor.clone() for name, tensor in model.state_dict().items()},
    }
    with replaced_file(run_dir / FAILED_MINIBATCH) as temporary:
        torch.save(content, temporary)
