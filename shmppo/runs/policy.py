"""A trained policy for use in other code: `load_policy(RUN_DIR)`.

The policy normalizes observations itself. The caller keeps the recurrent state.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shmppo.config.train_config import TrainConfig, from_json
from shmppo.envs.factory import inspect_task
from shmppo.envs.spec import Task
from shmppo.models.actor_critic import ActorCritic, build_model, parameter_shapes
from shmppo.models.normalization import RunningMoments, leaf_statistics, normalize_leaf
from shmppo.runs.checkpoint import check_shapes, load_newest_checkpoint
from shmppo.sampling.actor import Actor, InferenceBatches, inference_slices


@dataclass(frozen=True)
class TrainedPolicy:
    """What a checkpoint contains of a policy."""

    config: TrainConfig
    task: Task
    model: ActorCritic
    moments: RunningMoments
    """Statistics that normalize observations."""
    iteration: int

    @property
    def obs_mean(self) -> np.ndarray:
        """Mean of the observations, float32 [D]."""
        mean: np.ndarray = self.moments.mean.astype(np.float32)
        return mean

    @property
    def obs_scale(self) -> np.ndarray:
        """1 / standard deviation of the observations, float32 [D]."""
        scale: np.ndarray = (1 / self.moments.std).astype(np.float32)
        return scale


def load_trained(run_dir: Path) -> TrainedPolicy:
    """The policy of a run's newest checkpoint. Raises ConfigError if no checkpoint is usable."""
    return trained_from(load_newest_checkpoint(run_dir))


def trained_from(state: dict[str, Any]) -> TrainedPolicy:
    """The policy in the content of a checkpoint: "config", "iteration", and the model and its moments of "learner".

    Raises ConfigError if the environment cannot be made any more, or has other spaces than the policy was trained on.
    """
    config = from_json(json.loads(state["config"]))
    task = inspect_task(config)
    shapes = parameter_shapes(config, task.observation, task.distribution)
    check_shapes("parameter", state["learner"]["model"], shapes)
    model = build_model(config, task.observation, task.distribution)
    model.load_state_dict(state["learner"]["model"])
    moments = RunningMoments(task.observation.normalized_size)
    moments.load({name: tensor.numpy() for name, tensor in state["learner"]["obs_moments"].items()})
    return TrainedPolicy(config, task, model, moments, state["iteration"])


def single_batch_actor(trained: TrainedPolicy, obs: Sequence[np.ndarray]) -> Actor:
    """An actor for at most one inference batch of environments, with recurrent states of 0.

    obs: per leaf [environments, …], read at each step.
    """
    rows = trained.config.inference_rows
    batches = InferenceBatches(inference_slices(0, len(obs[0]), rows), rows)
    actor = Actor(trained.config, trained.model, trained.task.distribution, obs, batches)
    actor.load(trained.obs_mean, trained.obs_scale)
    return actor


class PolicyNetwork(nn.Module):
    """One step of a policy as a module for export: observations in, policy parameters and values out."""

    visible: Tensor
    mean: Tensor
    scale: Tensor

    def __init__(self, trained: TrainedPolicy) -> None:
        super().__init__()
        config, observation = trained.config, trained.task.observation
        visible = torch.ones(observation.leaves[0].shape, dtype=torch.bool)
        visible[list(config.hidden_indices)] = False
        mean, scale = torch.from_numpy(trained.obs_mean), torch.from_numpy(trained.obs_scale)
        for name, tensor in (("visible", visible), ("mean", mean), ("scale", scale)):
            self.register_buffer(name, tensor)
        self._hides = bool(config.hidden_indices)
        self._normalizes = config.normalize_obs
        self._slices = observation.normalized_slices
        self.model = trained.model.eval().requires_grad_(False)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(leaves of the observation as stored [n, …], state [n, S]) → (policy parameters [n, P], values [n], state).

        An observation that is one vector has one leaf [n, D].
        """
        *obs, state = inputs
        if self._hides:
            obs[0] = torch.where(self.visible, obs[0], 0.0)
        statistics = leaf_statistics(self._slices, self.mean, self.scale, self._normalizes)
        given = [normalize_leaf(leaf, of_leaf).unsqueeze(0) for leaf, of_leaf in zip(obs, statistics, strict=True)]
        params, values, state = self.model(given, state)
        return params[0], values[0], state


class Policy:
    """Acts in one environment.

    Attributes:
        config: the configuration with which it was trained.
        iteration: iterations for which it was trained.
    """

    def __init__(self, trained: TrainedPolicy, seed: int) -> None:
        self.config = trained.config
        self.iteration = trained.iteration
        self._leaves = trained.task.observation.leaves
        self._distribution = trained.task.distribution
        self._obs = [np.zeros((1, *leaf.shape), leaf.dtype) for leaf in self._leaves]
        self._actor = single_batch_actor(trained, self._obs)
        self._action = np.zeros((1, self._distribution.action_size), np.float32)
        self._params = np.zeros((1, self._distribution.num_params), np.float32)
        self._value = np.zeros(1, np.float32)
        self._generator = np.random.default_rng(seed)

    def initial_state(self) -> np.ndarray:
        """The recurrent state at the start of an episode, float32 [S]; S is 0 without a recurrent core."""
        return np.zeros(self._actor.states.shape[1], np.float32)

    @torch.inference_mode()
    def act(self, obs: Any, state: np.ndarray, *, deterministic: bool = True) -> tuple[Any, np.ndarray]:
        """Choose an action.

        Args:
            obs: an observation of the environment. With --prev-action, --prev-reward, or --action-masks, an observation
                of `shmppo.envs.factory.make_environment(policy.config)`.
            state: `initial_state()` at the start of an episode, otherwise the state that the step before returned.
            deterministic: take the most likely action. Otherwise sample from the policy.

        Returns:
            (action for the environment's `step`, recurrent state for the next step).

        Raises:
            ValueError: if the observation does not belong to the space on which the policy was trained.
        """
        for leaf, row in zip(self._leaves, self._obs, strict=True):
            row[0] = leaf.to_storage(leaf.extract(obs))
        if self.config.hidden_indices:
            self._obs[0][0, list(self.config.hidden_indices)] = 0.0
        self._actor.states[0] = state
        if not deterministic:
            self._actor.load_noise(self._distribution.noise(self._generator, 1)[:, np.newaxis])
        self._actor.act(self._action, self._params, self._value, None if deterministic else 0)
        return self._distribution.to_env(self._action)[0], self._actor.states[0].copy()


def load_policy(run_dir: str | Path, *, seed: int = 0) -> Policy:
    """See `shmppo.load_policy`."""
    return Policy(load_trained(Path(run_dir)), seed)
