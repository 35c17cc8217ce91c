"""Files that show why a run ended early: the failed episode, or the failed minibatch."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import torch

from shmppo.config.train_config import TrainConfig
from shmppo.errors import TrainingError
from shmppo.models.actor_critic import ActorCritic
from shmppo.parallel.shared_buffers import Rollout, SharedBuffers
from shmppo.runs.run_directory import FAILED_EPISODE, FAILED_MINIBATCH
from shmppo.sampling.action_log import ActionLog
from shmppo.utils.files import write_json
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
    message: str,
) -> None:
    """Write failed_episode.json, with which `python -m shmppo.replay` brings an environment to the failed step.

    Args:
        actions: those before the rollout.
        steps_begun: steps of the rollout that the environment has begun, including the failed one.
        message: of the error.
    """
    first = np.flatnonzero(rollout.first[:steps_begun, env_index])
    steps = rollout.actions[:steps_begun, env_index]
    episode = actions.episodes(range(env_index, env_index + 1))[0]
    number = episode.number + int((first > 0).sum())
    if len(first):
        steps = steps[first[-1] :]
    elif episode.actions is not None:
        steps = np.concatenate([episode.actions, steps])
    else:
        log.warning(
            "no failed_episode.json is written: the episode is longer than --replay-limit, or cannot be replayed"
        )
        return
    content = {
        "config": config.to_json(),
        "env_index": env_index,
        "episode": number,
        "seed": episode_seed(config.seed, config.first_env + env_index, number),
        "actions": steps.tolist(),
        "message": message,
    }
    write_json(run_dir / FAILED_EPISODE, content)


def write_failed_minibatch(run_dir: Path, buffers: SharedBuffers, model: ActorCritic, error: TrainingError) -> None:
    """Write failed_minibatch.pt, which contains only tensors and text (`torch.load(…, weights_only=True)`).

    It contains the whole rollout, the sequences of the minibatch, the results of its shards, and the weights. The first
    shard's gradient is already the sum over all shards.
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
    try:
        torch.save(content, run_dir / FAILED_MINIBATCH)
    except RuntimeError as failure:  # torch hides the system's error
        raise OSError(f"{run_dir / FAILED_MINIBATCH}: {failure}") from failure
