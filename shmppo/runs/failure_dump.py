"""What is kept of a run that ended early, so that the cause can be looked at: an episode, or a minibatch."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import torch

from shmppo.config.train_config import TrainConfig
from shmppo.models.actor_critic import ActorCritic
from shmppo.parallel.shared_buffers import SharedBuffers
from shmppo.runs.run_directory import FAILED_EPISODE, FAILED_MINIBATCH
from shmppo.sampling.action_log import ActionLog
from shmppo.utils.files import write_json
from shmppo.utils.rng import episode_seed

log = logging.getLogger(__name__)

_STEPS = ("actions", "reward", "first", "terminated", "truncated", "bootstrap", "value", "log_prob")


def keep_failed_episode(
    run_dir: Path,
    config: TrainConfig,
    arena: SharedBuffers,
    actions: ActionLog,
    *,
    env_index: int,
    begun: int,
    message: str,
) -> None:
    """Write failed_episode.json: what `python -m shmppo.replay` needs to bring an environment to the step that failed.

    Args:
        begun: steps of the rollout in the arena that were begun behind those of `actions`, the failing one included.
    """
    first = np.flatnonzero(arena.array("first")[:begun, env_index])
    steps = arena.array("actions")[:begun, env_index]
    episode = actions.episodes(range(env_index, env_index + 1))[0]
    number = episode.number + int((first > 0).sum())
    if len(first):
        steps = steps[first[-1] :]
    elif episode.actions is not None:
        steps = np.concatenate([episode.actions, steps])
    else:
        log.warning(
            "the actions of the episode that failed are not kept: it is longer than --replay-limit, or not replayed"
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


def keep_failed_minibatch(
    run_dir: Path, arena: SharedBuffers, model: ActorCritic, *, epoch: int, minibatch: int, message: str
) -> None:
    """Write failed_minibatch.pt: tensors and text only (`torch.load(…, weights_only=True)`).

    It holds the whole rollout, the minibatch's rows, its shards' statistics and gradients (the first being the sum of
    all of them already), and the weights that they were computed with.
    """
    steps = (*(leaf.field for leaf in model.observation.leaves), *_STEPS)
    bounds = arena.array("bounds")[epoch, minibatch]
    order = arena.array("order")[epoch, int(bounds[0]) : int(bounds[-1])]
    content = {
        "message": message,
        "rollout": {name: arena.tensor(name).clone() for name in steps},
        "rows": torch.from_numpy(arena.array("rows")[order]),
        "shard_statistics": arena.tensor("shard_statistics").clone(),
        "gradients": arena.tensor("gradients").clone(),
        "weights": {name: tensor.clone() for name, tensor in model.state_dict().items()},
    }
    try:
        torch.save(content, run_dir / FAILED_MINIBATCH)
    except RuntimeError as error:  # torch's writer hides the system's error
        raise OSError(f"{run_dir / FAILED_MINIBATCH}: {error}") from error
