"""A trained policy for use in other code, from `load_policy(RUN_DIR)`.

The policy normalizes observations. The caller stores the recurrent state between steps.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shmppo.config.train_config import TrainConfig, from_json
from shmppo.config.trust import Trusted, check_trust
from shmppo.envs.inspection import inspect_task
from shmppo.envs.spec import Task
from shmppo.models.actor_critic import ActorCritic, build_model, parameter_shapes
from shmppo.ppo.gae import RunningMoments
from shmppo.sampling.actor import Actor
from shmppo.spaces.observations import NUMBERS, ObservationError
from shmppo.storage.checkpoint import check_shapes, load_selected_checkpoint
from shmppo.utils.files import user_path


@dataclass(frozen=True)
class TrainedPolicy:
    """The content of a checkpoint that a policy needs."""

    config: TrainConfig
    task: Task
    model: ActorCritic
    moments: RunningMoments
    """Moments of the observations, for their normalization."""
    iteration: int
    """Number of finished iterations."""

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


def load_trained(run_dir: Path, checkpoint: str | int | Path = "last", trust: Trusted = ()) -> TrainedPolicy:
    """Load the policy from a checkpoint of a run.

    Args:
        run_dir: directory of the run.
        checkpoint: see `load_selected_checkpoint`.
        trust: see `shmppo.load_policy`.

    Raises:
        ConfigError: if there is no such checkpoint, if it is damaged, if the run names code that is not trusted, or as
            in `trained_from`.
    """
    state = load_selected_checkpoint(run_dir, checkpoint)
    fields = from_json(json.loads(state["config"])).to_json()
    check_trust(fields, run_dir, trust)
    return trained_from(state)


def trained_from(state: dict[str, Any]) -> TrainedPolicy:
    """Make the policy from the content of a checkpoint.

    Args:
        state: contains "config", "iteration", and "learner" with "model" and "obs_moments". Other keys are ignored.

    Raises:
        ConfigError: if the environment cannot be created, or if its spaces are not those of the training.
    """
    config = from_json(json.loads(state["config"]))
    task = inspect_task(config)
    shapes = parameter_shapes(config, task.observation, task.distribution)
    check_shapes("parameter", state["learner"]["model"], shapes)
    model = build_model(config, task.observation, task.distribution)
    model.load_state_dict(state["learner"]["model"])
    if len(set(model.inputs)) > 1:  # the observation may lack what only the critic sees
        model.remove_critic()
    moments = RunningMoments(task.observation.normalized_size)
    moments.load({name: tensor.numpy() for name, tensor in state["learner"]["obs_moments"].items()})
    return TrainedPolicy(config, task, model, moments, state["iteration"])


def single_batch_actor(trained: TrainedPolicy, obs: Sequence[np.ndarray]) -> Actor:
    """Make an actor for the environments of one inference batch. Its recurrent states are zero.

    Args:
        trained: the policy.
        obs: [environments, …] per leaf. Each step reads the current observations from these arrays. There are at most
            B environments.
    """
    actor = Actor(trained.config, trained.model, trained.task.distribution, obs, low=0)
    actor.load(trained.obs_mean, trained.obs_scale)
    return actor


class Policy:
    """A trained policy that acts in one environment.

    Attributes:
        config: the configuration with which the policy was trained.
        iteration: number of iterations for which the policy was trained.
    """

    def __init__(self, trained: TrainedPolicy, seed: int) -> None:
        """Create the policy.

        Args:
            trained: the content of a checkpoint.
            seed: seed of the actions that `act(…, deterministic=False)` samples.
        """
        self.config = trained.config
        self.iteration = trained.iteration
        self._distribution = trained.task.distribution
        leaves = trained.task.observation.leaves
        self._obs = [np.zeros((1, *leaf.shape), leaf.dtype) for leaf in leaves]
        self._needed = [(leaves[i], self._obs[i]) for i in trained.model.needed_leaves]
        self._actor = single_batch_actor(trained, self._obs)
        self._action = np.zeros((1, self._distribution.action_size), np.float32)
        self._params = np.zeros((1, self._distribution.num_params), np.float32)
        self._value = np.zeros(1, np.float32)
        self._generator = np.random.default_rng(seed)

    def initial_state(self) -> np.ndarray:
        """Return the recurrent state at the start of an episode, float32 [S]. S is 0 without a recurrent core."""
        return np.zeros(self._actor.states.shape[1], np.float32)

    @torch.inference_mode()
    def act(self, obs: Any, state: np.ndarray | None, *, deterministic: bool = True) -> tuple[Any, np.ndarray]:
        """Choose an action.

        Args:
            obs: an observation of the environment. With --prev-action, --prev-reward, or --action-masks, an observation
                of `shmppo.envs.factory.make_environment(policy.config)`. With --actor-obs, only the parts that the
                actor sees are read.
            state: the state that the last call returned. At the start of an episode: None or `initial_state()`.
            deterministic: whether to take the most likely action. Otherwise the action is sampled from the policy.

        Returns:
            (action for the environment's `step`, recurrent state for the next step).

        Raises:
            ValueError: if the observation does not belong to the space on which the policy was trained, or if the state
                has another shape or type. Both must be finite.
        """
        state = self.initial_state() if state is None else np.asarray(state)
        if state.dtype.kind not in NUMBERS:
            raise ValueError(f"state has type {state.dtype}; give what act or initial_state has returned")
        if state.shape != self._actor.states.shape[1:]:
            raise ValueError(f"state has shape {state.shape}; give what act or initial_state has returned")
        for leaf, row in self._needed:
            value = leaf.extract(obs)
            try:
                row[0] = leaf.to_storage(value)
            except ObservationError as error:
                if np.ndim(value) and np.shape(value)[1:] == leaf.env_shape:
                    raise ValueError(f"{error}; act takes one observation, without a batch dimension") from error
                raise
        if not all(np.isfinite(values).all() for values in (state, *self._obs)):
            raise ValueError("obs or state is not finite; correct the observation")
        if self.config.hidden_indices:
            self._obs[0][0, list(self.config.hidden_indices)] = 0.0
        self._actor.states[0] = state
        if not deterministic:
            self._actor.load_noise(self._distribution.noise(self._generator, 1)[:, np.newaxis])
        self._actor.act(self._action, self._params, self._value, None if deterministic else 0)
        return self._distribution.to_env(self._action)[0], self._actor.states[0].copy()


def load_policy(
    run_dir: str | Path, *, checkpoint: str | int | Path = "last", seed: int = 0, trust: Trusted = ()
) -> Policy:
    """See `shmppo.load_policy`."""
    return Policy(load_trained(user_path(run_dir, "run_dir"), checkpoint, trust), seed)
