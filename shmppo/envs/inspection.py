"""Inspection of an environment before the run: its spaces, its seeding, its snapshots, and how it is stepped."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from shmppo.config.checks import flag_with_value, require
from shmppo.config.train_config import TrainConfig
from shmppo.envs.backends import all_backends, backend_of
from shmppo.envs.checker import check_contract, warn_of_spaces, warn_of_time_limits
from shmppo.envs.creation_errors import creation_error, import_environment
from shmppo.envs.factory import close_environment, make_environment
from shmppo.envs.schedule import load_schedule
from shmppo.envs.spec import CONTENT, EnvSpec
from shmppo.envs.sync_vector_env import START_ATTEMPTS
from shmppo.envs.wrappers import MASK_KEY, allowed_action, random_action
from shmppo.errors import ConfigError, EnvError
from shmppo.spaces.action_spaces import distribution_for
from shmppo.spaces.distributions import Distribution, StateStd
from shmppo.spaces.observations import Leaf, ObservationSpec, observation_spec
from shmppo.spaces.stored import SpaceDifference, differences, space_from_json, space_to_json
from shmppo.utils.global_generators import WatchedGenerators, kept_generators
from shmppo.utils.user_code import FAILURES, main_is_importable, reraise_ctrl_c


def inspect_task(config: TrainConfig) -> EnvSpec:
    """Create one environment, check it, describe it, and close it.

    Raises:
        ConfigError: if the environment cannot be created, a space is not supported, an index of `--hide-obs` does not
            exist, the environment breaks Gymnasium's API, or `--env-schedule` returns no options for iteration 1.
    """
    generators = WatchedGenerators(config.seed, "inspection")
    arguments = config.env_kwargs.items()
    unseen = dataclasses.replace(config, env_kwargs={k: v for k, v in arguments if (k, v) != ("render_mode", "human")})
    with kept_generators():
        task = _inspect(unseen, generators)
    drawn, own = generators.drawn, backend_of(task).owns_generators
    if drawn and not own:
        task = dataclasses.replace(task, inexact_reason=shared_generators(config, drawn))
    # The generators would belong to a snapshot.
    return dataclasses.replace(task, generators=tuple(sorted(drawn)), snapshot=None) if drawn and own else task


def shared_generators(config: TrainConfig, drawn: Collection[str]) -> str:
    """Return why a run is not reproducible whose environments draw from generators that they cannot own."""
    drawn_from = ", ".join(sorted(drawn))
    return f"--env {config.env_id} draws from {drawn_from}, which its environments share or its snapshots lack"


def _inspect(config: TrainConfig, generators: WatchedGenerators) -> EnvSpec:
    """Describe an environment, apart from its generators, which take the place of the global ones meanwhile."""
    if schedule := load_schedule(config):
        schedule(1, {})
    try:
        import_environment(config.env_id)  # what modules draw while they are imported is not the environment's
        with generators:
            env = make_environment(config)
    except ConfigError:
        raise
    except FAILURES as error:
        reraise_ctrl_c(error)
        raise creation_error(config.env_id, error, config.env_kwargs) from error
    where = f"--env {config.env_id}"
    try:
        _check_importable(config, env)
        observation, distribution = describe_spaces(config, env.observation_space, env.action_space)

        def choose_action(seen: Any) -> Any:
            if config.action_masks:
                return allowed_action(env.action_space, seen[MASK_KEY], np.argmax)
            return random_action(env.action_space)

        warn_of_time_limits(env, where)
        warn_of_spaces(observation, env, where, scaled=config.squash_actions or config.distribution == "beta")
        attempts = START_ATTEMPTS if config.skip_bad_episodes else 1
        seeding, resets_equal = check_contract(env, where, choose_action, generators, attempts=attempts)
        backend = next(one for one in all_backends() if one.steps(config, env))
        # Without a seed per episode, a snapshot would also need the random generator, which nothing can check.
        with generators:
            snapshot = backend.snapshot(env, choose_action) if seeding == "episode" else None
        reason = _inexact_reason(seeding, resets_equal)
        stored = {name: space_to_json(getattr(env, name)) for name in ("observation_space", "action_space")}
        inner = getattr(env.unwrapped, "action_space", env.action_space)
        if inner != env.action_space and isinstance(inner, type(env.action_space)):
            stored["inner_action_space"] = space_to_json(inner)
        if content := getattr(env.unwrapped, CONTENT, None):
            stored[CONTENT] = content
        task = EnvSpec(observation, distribution, seeding, snapshot, backend.name, reason, stored)
        with generators:
            return backend.complete(config, task, env)
    except EnvError as error:  # of `complete`: nothing was started yet
        raise ConfigError(f"{where}: {error.message}", details=error.details) from error
    finally:
        close_environment(env, where)


def describe_spaces(
    config: TrainConfig, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]
) -> tuple[ObservationSpec, Distribution]:
    """Return the leaves of an observation space, and the distribution of the actions.

    Raises:
        ConfigError: if a space is not supported, or if an index of `--hide-obs` does not exist.
    """
    where = f"--env {config.env_id}"
    observation = observation_spec(observation_space, where)
    if config.action_masks:
        observation = observation.with_mask()
    _check_hidden_indices(config, observation.leaves[0])
    state_std = _state_std(config) if config.std == "state" else None
    squash, beta = config.squash_actions, config.distribution == "beta"
    return observation, distribution_for(action_space, where, squash=squash, state_std=state_std, beta=beta)


def stored_task(config: TrainConfig, stored: dict[str, Any]) -> EnvSpec:
    """Describe the environment of a policy without making it. stored: `EnvSpec.stored` of its training."""
    found = (space_from_json(stored[name]) for name in ("observation_space", "action_space"))
    observation, distribution = describe_spaces(config, *found)
    task = EnvSpec(observation, distribution, stored=stored)
    return dataclasses.replace(task, added={name: getattr(config, name) for name in task.derived})


def refuse_other_spaces(task: EnvSpec, stored: dict[str, Any], where: str) -> None:
    """Raise ConfigError if an environment has other spaces than the training, `EnvSpec.stored` of which is given."""
    for difference in space_differences(task, stored):
        raise ConfigError(f"{where}: {difference.text}; give it the spaces of the training")


def space_differences(task: EnvSpec, stored: dict[str, Any]) -> list[SpaceDifference]:
    """Return the differences between the spaces of an environment and stored ones."""
    names = ("observation_space", "action_space")
    return [one for name in names for one in differences(stored[name], task.stored[name], name)]


def inspect_evaluation(config: TrainConfig, task: EnvSpec) -> None:
    """Check one environment with --eval-env-kwargs, if there are any. task: description of the training environment.

    Raises:
        ConfigError: as `inspect_task`, or if its spaces are not those of the training.
    """
    if not config.eval_env_kwargs:
        return
    where = f"evaluations with {flag_with_value('eval_env_kwargs', config.eval_env_kwargs)}"
    other = inspect_task(config.with_env_kwargs(config.eval_env_kwargs))
    refuse_other_spaces(other, task.stored, where)
    require(
        other.derived == task.derived, f"{where} have other {' or '.join(task.derived)} than training; choose others"
    )
    backends = f"{where} are stepped by {other.backend}, but training by {task.backend}"
    require(other.backend == task.backend, f"{backends}; use --env-backend gymnasium")


def _state_std(config: TrainConfig) -> StateStd:
    """Return the standard deviation of --std state. Raises ConfigError if its first value is outside its limits."""
    state_std = StateStd(config.log_std_init)
    if config.log_std_min is not None:
        state_std = state_std._replace(low=config.log_std_min)
    offset, low, high = state_std
    limits = f"it must lie between {low} and {high}, the limits of --std state"
    require(low < offset < high, f"--log-std-init is {offset}; {limits}")
    return state_std


def _check_importable(config: TrainConfig, env: gymnasium.Env) -> None:
    """Raise ConfigError if the class or the factory of the environment exists only in this process."""
    in_main = "__main__" in (config.env_id.partition(":")[0], type(env.unwrapped).__module__)
    require(
        not in_main or not config.num_workers or main_is_importable(),
        f"--env {config.env_id} is defined in a notebook or on standard input, which workers cannot import; put it "
        "into a module, or use --workers 0",
    )


def _inexact_reason(seeding: str, resets_equal: bool) -> str | None:
    """Return why runs with such environments are not reproducible, or None."""
    if seeding == "never":
        return "the environment raises on reset(seed=…), so its episodes begin at random"
    return None if resets_equal else "two resets with the same seed give different observations"


def _check_hidden_indices(config: TrainConfig, leaf: Leaf) -> None:
    """Check the indices of `--hide-obs` against the first leaf, which must be the environment's own vector."""
    if not config.hidden_indices:
        return
    # The keys are empty, or they are all "obs": our own wrappers put the environment's observation there.
    require(
        leaf.kind == "vector" and set(leaf.keys) <= {"obs"},
        f"--hide-obs needs an observation that is one vector, and that of {config.env_id} is not; remove --hide-obs",
    )
    beyond = [i for i in config.hidden_indices if not 0 <= i < leaf.input_size]
    require(not beyond, f"--hide-obs names {beyond}; use indices of the observation, 0 … {leaf.input_size - 1}")
