"""A trained policy for use in other code, from `load_policy(RUN_DIR)`.

The policy normalizes observations. The caller stores the recurrent state between steps.
"""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shmppo.config.train_config import ONLY_FOR_LEARNING, TrainConfig, stored_config
from shmppo.config.trust import Trusted, check_trust
from shmppo.envs.inspection import inspect_task, refuse_other_spaces, stored_task
from shmppo.envs.schedule import Options
from shmppo.envs.spec import EnvSpec
from shmppo.envs.wrappers import MASK_KEY
from shmppo.models.actor_critic import ActorCritic, network_weights, parameter_shapes, trained_model, weights_sha256
from shmppo.sampling.actor import Actor
from shmppo.sampling.evaluation import Others
from shmppo.spaces.normalization import RunningMoments
from shmppo.spaces.observations import NUMBERS, ObservationError, ObservationSpec
from shmppo.spaces.stored import space_from_json
from shmppo.storage.checkpoint import check_learner, load_selected_checkpoint
from shmppo.utils.files import user_path

WITHOUT_MINIBATCHES: dict[str, Any] = {"minibatches": 1, "grad_shards": None}
"""For an evaluation in which the policy acts less often than in training, or in more columns: its rollouts need not
fill the minibatches of the training."""


@dataclass(frozen=True)
class TrainedPolicy:
    """The content of a checkpoint that a policy needs."""

    config: TrainConfig
    """Of the run, but without the options that only learning needs."""
    task: EnvSpec
    model: ActorCritic
    moments: RunningMoments
    """Moments of the observations, for their normalization."""
    iteration: int
    """Number of finished iterations."""
    options: Options | None = None
    """Options of `reset` in the last iteration (--env-schedule). None: no options."""
    weights_sha256: str = ""
    """Hash of all weights of the checkpoint, as in summary.json."""
    others: Others | None = None
    """What acts beside it in an evaluation. None: what the options of the run say."""

    @property
    def input_names(self) -> list[str]:
        """Names of all leaves of the observation (see `input_names`)."""
        return input_names(self.config, self.task.observation)

    @property
    def obs_mean(self) -> np.ndarray:
        """Mean of the observations, float32 [D]."""
        return self.moments.mean.astype(np.float32)

    @property
    def obs_scale(self) -> np.ndarray:
        """1 / standard deviation of the observations, float32 [D]."""
        return (1 / self.moments.std).astype(np.float32)


def input_names(config: TrainConfig, observation: ObservationSpec) -> list[str]:
    """Return the names of all leaves: "obs", "obs/camera", or what a flag adds, such as "prev_action"."""
    names = [leaf.field for leaf in observation.leaves]
    # Each of these groups of flags puts the observation under the key "obs", beside what it adds.
    parts = config.action_masks, *config.added_parts()
    groups = (config.prev_action, config.prev_reward), parts
    for _ in range(sum(map(any, groups))):
        names = [name.removeprefix("obs/") for name in names]
    return names


def load_trained(
    run_dir: str | Path,
    checkpoint: str | int | Path = "last",
    trust: Trusted = (),
    env_kwargs: Mapping[str, Any] | None = None,
) -> TrainedPolicy:
    """Load the policy from a checkpoint of a run.

    Args:
        run_dir: directory of the run.
        checkpoint: see `load_selected_checkpoint`.
        trust: see `shmppo.load_policy`.
        env_kwargs: arguments of the environment that replace or extend those of the run, if the policy will act in it.
            None: no environment is made.

    Raises:
        ConfigError: if there is no such checkpoint, if it is damaged, if the run names code that is not trusted, or as
            in `trained_from`.
    """
    run_dir = user_path(run_dir, "run_dir")
    state = load_selected_checkpoint(run_dir, checkpoint)
    check_policy_trust(state, run_dir, trust, makes_environment=env_kwargs is not None)
    trained = trained_from(state, env_kwargs)
    inner = trained.task.stored.get("inner_action_space")
    if env_kwargs is None and inner is not None:
        outer, inner = (space_from_json(one) for one in (trained.task.stored["action_space"], inner))
        warnings.warn(
            f"the actions of {run_dir} are those of {outer}, which wrappers of the environment turn into those of "
            f"{inner}; do the same with the actions of the policy, or act in an environment with the wrappers",
            stacklevel=3,
        )
    return trained


def check_policy_trust(
    state: Mapping[str, Any], source: Path, trust: Trusted, *, makes_environment: bool = False
) -> None:
    """Check that the code that a policy needs may be imported: its network, and its environment if it acts in one.

    Args:
        state: content of the checkpoint.
        source, trust: see `check_trust`, also for the error.
    """
    fields = stored_config(json.loads(state["config"])).to_json() | ONLY_FOR_LEARNING
    if not makes_environment and _stored_spaces(state) is not None:
        fields = {name: fields[name] for name in ("network", "encoder")}
    check_trust(fields, source, trust)


def _stored_spaces(state: Mapping[str, Any]) -> Any:
    """Return the spaces of the environment in a checkpoint. None: an earlier version wrote it, without spaces."""
    return json.loads(state.get("spaces", "null"))


def trained_from(state: dict[str, Any], env_kwargs: Mapping[str, Any] | None = None) -> TrainedPolicy:
    """Make the policy from the content of a checkpoint.

    Args:
        state: contains "config", "iteration", and "learner" with "model" and "obs_moments". Other keys are ignored.
        env_kwargs: see `load_trained`.

    Raises:
        ConfigError: if the environment cannot be created, or if its spaces are not those of the training. The message
            names the first difference.
    """
    config = stored_config(json.loads(state["config"])).with_env_kwargs(env_kwargs or {})
    if config.kernel == "native":  # this machine may have no kernels
        config = replace(config, kernel="auto")
    config, learner = replace(config, **ONLY_FOR_LEARNING), dict(state["learner"])
    digest = weights_sha256(learner["model"].values())
    learner["model"] = network_weights(learner["model"])
    stored = _stored_spaces(state)
    if env_kwargs is None and stored is not None:
        task = stored_task(config, stored)
    else:
        task = inspect_task(config).with_generators(state.get("generators", ()))
        if stored is not None:
            refuse_other_spaces(task, stored, f"--env {config.env_id}")
    if any(getattr(config, name) != value for name, value in task.derived.items()):  # with other arguments
        config = replace(config, **task.derived, **WITHOUT_MINIBATCHES)
    shapes = parameter_shapes(config, task.observation, task.distribution)
    check_learner(learner, shapes, task.observation.normalized_size)
    model = trained_model(config, task.observation, task.distribution, learner["model"])
    moments = RunningMoments(task.observation.normalized_size)
    moments.load({name: tensor.numpy() for name, tensor in learner["obs_moments"].items()})
    schedule = json.loads(state.get("reset_options", "{}"))
    options = schedule[max(schedule, key=int)] if schedule else None
    return TrainedPolicy(config, task, model, moments, state["iteration"], options, digest)


class Policy:
    """A trained policy.

    Attributes:
        config: the configuration with which the policy was trained.
        iteration: number of iterations for which the policy was trained.
        action_space: of the actions that `act` returns.
        image_channels: where the images of the observation have their channels: "first", "last", or "none". The keys
            are "obs", or for example "obs/camera" for a part.
    """

    def __init__(self, trained: TrainedPolicy, seed: int) -> None:
        """Create the policy.

        Args:
            trained: the content of a checkpoint.
            seed: seed of the actions that `act(…, deterministic=False)` samples.
        """
        self._setup(trained, np.random.default_rng(seed))

    def _setup(self, trained: TrainedPolicy, generator: np.random.Generator) -> None:
        self.config = trained.config
        self.iteration = trained.iteration
        leaves = trained.task.observation.leaves
        names = zip(trained.input_names, leaves, strict=True)
        self.image_channels = {name: leaf.image_channels for name, leaf in names if leaf.kind == "image"}
        stored = trained.task.stored
        self.action_space = space_from_json(stored["action_space"])
        self._trained, self._distribution = trained, trained.task.distribution
        self._generator, self._lock = generator, threading.Lock()
        self._allocate(1)

    def __getstate__(self) -> tuple[TrainedPolicy, np.random.Generator]:
        """Return what a copy needs. The memory of the kernels belongs to one object."""
        return self._trained, self._generator

    def __setstate__(self, state: tuple[TrainedPolicy, np.random.Generator]) -> None:
        self._setup(*state)

    def _allocate(self, rows: int) -> None:
        """Allocate the memory to act on this number of observations."""
        self._obs = [np.zeros((rows, *leaf.shape), leaf.dtype) for leaf in self._trained.task.observation.leaves]
        self._actor = Actor(self.config, self._trained.model, self._distribution, self._obs, low=0)
        self._actor.load(self._trained.obs_mean, self._trained.obs_scale)

    def initial_state(self, batch: int | None = None) -> np.ndarray:
        """Return the recurrent state at the start of an episode, float32 [S]. S is 0 without a recurrent core.

        batch: n, for a batch of states [n, S].
        """
        return np.zeros((*([] if batch is None else [batch]), self._actor.states.shape[1]), np.float32)

    def act(self, obs: Any, state: np.ndarray | None = None, *, deterministic: bool = True) -> tuple[Any, np.ndarray]:
        """Choose an action, or the actions of a batch of n observations with one forward pass per inference batch.

        Several threads may call it: they wait for each other. Copies of the policy act at the same time.

        Args:
            obs: an observation of the environment, or a batch of them with n as the first axis of every part, as
                `gymnasium.vector` returns it. With --prev-action, --prev-reward, or --action-masks, an observation of
                `shmppo.envs.factory.make_environment(policy.config)`. With --actor-obs, only the parts that the actor
                sees are read.
            state: the state that the last call returned, [S], or [n, S] for a batch. At the start of an episode: None,
                `initial_state()`, or `initial_state(n)`. In a batch, set to 0 the states of environments in which an
                episode begins.
            deterministic: whether to take the most likely action. Otherwise the action is sampled from the policy.

        Returns:
            (action for the environment's `step`, recurrent state for the next step). For a batch: actions [n, …] (a
            list of n actions if they are tuples or dictionaries, or if n is 0), states [n, S].

        Raises:
            ValueError: if the observation does not belong to the space on which the policy was trained, if all numbers
                of its mask are 0, or if the state has another shape or type. Both must be finite.
        """
        with self._lock, torch.inference_mode():
            batch = self._load(obs, state)
            if batch == (0,):
                return [], self.initial_state(0)
            if not deterministic:
                noise = self._distribution.noise(self._generator, len(self._obs[0]))
                self._actor.load_noise(noise[np.newaxis])
            actions = self._distribution.to_env(self._actor.act(None if deterministic else 0))
            after = self._actor.states.copy()
        if not batch:
            return actions[0], after[0]
        return actions if isinstance(actions[0], (tuple, dict)) else np.stack(actions), after

    def distribution(self, obs: Any, state: np.ndarray | None = None) -> dict[Any, Any]:
        """Compute the distribution from which `act(obs, state, deterministic=False)` samples.

        The arguments and errors are those of `act`. A batch has at least one observation.

        Returns:
            For Box actions "mean" and "std" (of u, if the action is squashed: a = middle + half range · tanh(u)), or
            "alpha" and "beta", in the shape of the action; otherwise "probabilities", of each value of a Discrete
            action in ascending order, or of 1 in the shape of a MultiBinary one. For Tuple, Dict, and MultiDiscrete
            actions, a dictionary of these for each key or (flat) index. For a batch, the first axis is n.
        """
        return self._forward(obs, state, lambda: self._distribution.named(self._actor.params))

    def value(self, obs: Any, state: np.ndarray | None = None) -> Any:
        """Compute the critic's value of an observation, float32 [], or of a batch of them [n].

        It estimates the discounted return, in the scale of training (--normalize-reward). The arguments and errors are
        those of `act`. A batch has at least one observation.

        Raises:
            ValueError: if the policy has no critic, because it saw parts of the observation that the actor does not.
        """
        if self._trained.model.value_head is None:
            raise ValueError("this policy has no value: its critic saw other parts of the observation than its actor")
        return self._forward(obs, state, lambda: self._actor.values)

    def _forward(self, obs: Any, state: np.ndarray | None, result: Callable[[], Any]) -> Any:
        """Compute a step of the network, and return a result of it, without the axis n for a single observation."""
        with self._lock, torch.inference_mode():
            batch = self._load(obs, state)
            if batch == (0,):
                raise ValueError("the batch has no observation; give at least one")
            self._actor.advance()
            return _copied(result(), batch)

    def _load(self, obs: Any, state: np.ndarray | None) -> tuple[int, ...]:
        """Check an observation and a state, or a batch of n, and give them to the actor. Returns (n,), or ()."""
        needed = self._trained.model.needed_leaves
        leaves = self._trained.task.observation.leaves
        if isinstance(obs, list) and obs and isinstance(obs[0], dict):
            raise ValueError("obs is a list; pass one dict of arrays that have n as the first axis")
        try:
            found = {i: leaves[i].extract(obs) for i in needed}
        except ObservationError as error:
            names = ", ".join(dict.fromkeys(repr(leaf.keys[0]) for leaf in leaves if leaf.keys))
            hint = f"; it must be as make_environment(policy.config) returns it, with {names}" if names else ""
            raise ObservationError(f"{error}{hint}") from error
        parts = {i: np.concatenate(part, axis=-1) if isinstance(part, tuple) else part for i, part in found.items()}
        given = {i: np.asarray(part) for i, part in parts.items()}  # a tuple: the mask of each action dimension
        first = given[needed[0]]
        batch = first.shape[:1] if first.ndim == len(leaves[needed[0]].env_shape) + 1 else ()
        if batch == (0,):
            return batch
        if (rows := batch[0] if batch else 1) != len(self._obs[0]):
            self._allocate(rows)
        state = self.initial_state(*batch) if state is None else np.asarray(state)
        if state.dtype.kind not in NUMBERS:
            raise ValueError(f"state has type {state.dtype}; give what act or initial_state has returned")
        if state.shape != (shape := (*batch, self._actor.states.shape[1])):
            call = f"initial_state({', '.join(map(str, batch))})"
            raise ValueError(f"state has shape {state.shape}, not {shape}; give what act or {call} has returned")
        for i, value in given.items():
            self._obs[i][:] = leaves[i].to_storage(value, batch)
        if not all(np.isfinite(values).all() for values in (state, *self._obs)):
            raise ValueError("obs or state is not finite; correct the observation")
        # A column that is idle has no action.
        if self._trained.model.has_mask and not self.config.has_idle_steps and not self._obs[-1].any(axis=1).all():
            raise ValueError(f"obs[{MASK_KEY!r}] allows no action; correct the observation")
        if self.config.hidden_indices:
            self._obs[0][:, list(self.config.hidden_indices)] = 0.0
        self._actor.states[:] = state
        return batch


def _copied(result: Any, batch: tuple[int, ...]) -> Any:
    """Copy arrays [n, …], also in dictionaries; for a single observation, without the axis n."""
    if isinstance(result, dict):
        return {key: _copied(part, batch) for key, part in result.items()}
    return np.array(result if batch else result[0])
