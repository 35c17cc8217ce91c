"""A trained policy for use in other code: `load_policy(RUN_DIR)`. Normalizer inside, state in and out."""

from __future__ import annotations

import json
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
from shmppo.models.distributions import Distribution
from shmppo.models.normalization import RunningMoments, leaf_statistics, normalize_leaf
from shmppo.runs.checkpoint import check_shapes, load_newest_checkpoint


@dataclass(frozen=True)
class TrainedPolicy:
    """What a checkpoint holds of a policy."""

    config: TrainConfig
    task: Task
    model: ActorCritic
    moments: RunningMoments
    """Of observations, as the normalizer uses them."""
    iteration: int


def load_trained(run_dir: Path) -> TrainedPolicy:
    """The policy of a run's newest checkpoint. Raises ConfigError if there is none that can be used."""
    return trained_from(load_newest_checkpoint(run_dir))


def trained_from(state: dict[str, Any]) -> TrainedPolicy:
    """The policy in what a checkpoint holds: "config", "iteration", and of "learner" the model and its moments.

    Raises ConfigError if the environment can no longer be made, or has other spaces than the policy was trained on.
    """
    config = from_json(json.loads(state["config"]))
    task = inspect_task(config)
    check_shapes("parameter", state["learner"]["model"], parameter_shapes(config, task.observation, task.distribution))
    model = build_model(config, task.observation, task.distribution)
    model.load_state_dict(state["learner"]["model"])
    moments = RunningMoments(task.observation.numbers)
    moments.load({name: tensor.numpy() for name, tensor in state["learner"]["obs_moments"].items()})
    return TrainedPolicy(config, task, model, moments, state["iteration"])


class PolicyNetwork(nn.Module):
    """One step of a policy: observations as the environment gives them in, policy parameters and values out."""

    seen: Tensor
    mean: Tensor
    scale: Tensor

    def __init__(self, trained: TrainedPolicy) -> None:
        super().__init__()
        config, observation = trained.config, trained.task.observation
        seen = torch.ones(observation.leaves[0].shape, dtype=torch.bool)
        seen[list(config.hidden_indices)] = False
        mean = torch.from_numpy(trained.moments.mean.astype(np.float32))
        scale = torch.from_numpy((1 / trained.moments.std).astype(np.float32))
        for name, tensor in (("seen", seen), ("mean", mean), ("scale", scale)):
            self.register_buffer(name, tensor)
        self._hidden = bool(config.hidden_indices)
        self._normalized = config.normalize_obs
        self._parts = observation.normalized
        self.model = trained.model.eval().requires_grad_(False)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(leaves of the observation as stored [n, …], state [n, S]) → (policy parameters [n, P], values [n], state).

        An observation that is one vector is one leaf [n, D].
        """
        *obs, state = inputs
        if self._hidden:
            obs[0] = torch.where(self.seen, obs[0], 0.0)
        statistics = leaf_statistics(self._parts, self.mean, self.scale, self._normalized)
        shown = [normalize_leaf(leaf, of_leaf).unsqueeze(0) for leaf, of_leaf in zip(obs, statistics, strict=True)]
        params, values, state = self.model(shown, state)
        return params[0], values[0], state


class Policy:
    """Acts in one environment.

    Attributes:
        config: the configuration that it was trained with.
        iteration: iterations that it was trained for.
    """

    def __init__(self, trained: TrainedPolicy, seed: int) -> None:
        self.config = trained.config
        self.iteration = trained.iteration
        self._leaves = trained.task.observation.leaves
        self._distribution: Distribution = trained.task.distribution
        self._network = PolicyNetwork(trained)
        self._state_size = trained.model.state_size
        self._generator = np.random.default_rng(seed)

    def initial_state(self) -> np.ndarray:
        """The recurrent state at an episode's start, float32 [S]; S is 0 without a core."""
        return np.zeros(self._state_size, np.float32)

    @torch.inference_mode()
    def act(self, obs: Any, state: np.ndarray, *, deterministic: bool = True) -> tuple[Any, np.ndarray]:
        """One step.

        Args:
            obs: an observation as the environment returns it; with --prev-action, --prev-reward or --action-masks as
                `shmppo.envs.make_environment(policy.config)` returns it.
            state: from `initial_state` at an episode's start, else from the step before.
            deterministic: the most likely action, instead of one drawn from the policy.

        Returns:
            (action for the environment's `step`, state for the next step).

        Raises:
            ValueError: for an observation of another space than the policy was trained on.
        """
        rows = [torch.from_numpy(leaf.stored(leaf.of(obs)).astype(leaf.dtype)).unsqueeze(0) for leaf in self._leaves]
        params, _, after = self._network(*rows, torch.from_numpy(state).unsqueeze(0))
        if deterministic:
            action = self._distribution.mode(params)
        else:
            noise = self._distribution.noise(self._generator, 1)
            action = self._distribution.sample(params, torch.from_numpy(noise))
        return self._distribution.to_env(action.numpy())[0], after[0].numpy()


def load_policy(run_dir: str | Path, *, seed: int = 0) -> Policy:
    """The policy of a run's newest checkpoint.

    Args:
        seed: of the actions drawn with `deterministic=False`.

    Raises:
        ConfigError: if the directory holds no usable checkpoint, or its environment cannot be made.
    """
    return Policy(load_trained(Path(run_dir)), seed)
