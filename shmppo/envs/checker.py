"""Checks of Gymnasium's API on one environment, before any process starts. Errors name the rule that is broken."""

from __future__ import annotations

import copy
import itertools
import logging
from collections.abc import Callable
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from shmppo.config.checks import require, shown
from shmppo.envs.snapshots import spaces_of, wrappers_of
from shmppo.envs.wrappers import MASK_KEY
from shmppo.errors import ConfigError
from shmppo.spaces.observations import NUMBERS, ObservationError, ObservationSpec, observation_spec
from shmppo.utils.global_generators import OwnGenerators
from shmppo.utils.rng import seed_spaces
from shmppo.utils.user_code import as_config_error

log = logging.getLogger(__name__)

TOLERANCE = 1e-5  # relative, at the bounds of a Box: a value rounded to float32 may lie slightly outside

MAX_EXACT = 2.0**24
"""Float32 has all integers up to this one."""
IMAGE_SIDE = 16
"""Arrays with two sides of at least this length are probably images."""
MAX_HALF_RANGE = 10.0
"""Bounds of actions with a larger half range are warned of."""
MAX_NAMED = 3
"""Number of values outside the bounds that a message names."""
RESET_RULE = "it must return (observation, info), info a dict"
STEP_RULE = "it must return (observation, reward, terminated, truncated, info), info a dict"
_ADVICE = " in a check before the run; correct the method"


def check_contract(
    env: gymnasium.Env, where: str, choose_action: Callable[[Any], Any], generators: OwnGenerators, *, attempts: int = 1
) -> tuple[Literal["episode", "never"], bool]:
    """Reset and step an environment, reset it again with the same seed, and check what it returns.

    Args:
        env: the environment.
        where: name of the environment for error messages.
        choose_action: maps an observation to an action.
        generators: take the place of the global ones while the environment is reset and stepped.
        attempts: number of seeds to try, because the episodes of some of them may fail (--skip-bad-episodes).

    Returns:
        "episode" if each reset can receive a seed, or "never" if the environment does not accept seeds; and whether two
        resets with the same seed gave the same observation. True if no reset receives a seed.

    Raises:
        ConfigError: if a rule is broken. The message names the rule.
    """
    for seed in range(attempts - 1):
        try:
            return _check_episode(env, where, choose_action, generators, seed)
        except ConfigError as error:
            if error.__cause__ is None:  # a rule is broken, and not only this episode has failed
                raise
            log.warning("%s; skipping this episode", error)
    return _check_episode(env, where, choose_action, generators, attempts - 1)


def _check_episode(
    env: gymnasium.Env, where: str, choose_action: Callable[[Any], Any], generators: OwnGenerators, seed: int
) -> tuple[Literal["episode", "never"], bool]:
    """Check the episode with a seed. See `check_contract`."""
    seeding: Literal["episode", "never"] = "episode"
    parts = spaces_of(env)
    seed_spaces(parts, seed)
    generators.seed((seed,))
    with as_config_error(f"{where}: reset(seed={seed})", _ADVICE), generators:
        try:
            returned: Any = env.reset(seed=seed)
        except (TypeError, gymnasium.error.Error) as error:  # Gymnasium raises the second for a list of seeds
            if "seed" not in str(error).lower():
                raise
            seeding = "never"
            log.warning("%s: reset(seed=%d) raised %r, so resets receive no seed", where, seed, error)
            returned = env.reset()
    with as_config_error(f"{where}: unpacking the result of reset", f"; {RESET_RULE}"):
        observation, info = returned
    require(isinstance(info, dict), f"{where}: reset returned the info {shown(info)}; {RESET_RULE}")
    check_observation(where, "reset", env.observation_space, observation)
    if MASK_KEY in info and f"'{MASK_KEY}'" not in str(env.observation_space):
        log.warning("%s: info has an %s, which the policy does not read; add --action-masks", where, MASK_KEY)
    first = copy.deepcopy(observation)  # the environment may reuse its arrays
    env.action_space.seed(seed)
    action = choose_action(observation)
    with as_config_error(f"{where}: step(action)", f" in a check before the run; {STEP_RULE}"), generators:
        observation, reward, terminated, truncated, info = env.step(action)
    check_observation(where, "step", env.observation_space, observation)
    number = np.asarray(reward)
    is_number = number.ndim == 0 and number.dtype.kind in NUMBERS
    require(is_number, f"{where}: step returned the reward {shown(reward)}; it must be one number")
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        is_bool = isinstance(flag, (bool, np.bool_))
        require(is_bool, f"{where}: step returned {name} = {shown(flag)}; it must be a bool")
    require(isinstance(info, dict), f"{where}: step returned the info {shown(info)}; {STEP_RULE}")
    if seeding == "never":
        return seeding, True
    seed_spaces(parts, seed)
    generators.seed((seed,))
    leaves = observation_spec(env.observation_space, where).leaves
    with as_config_error(f"{where}: reset(seed={seed})", _ADVICE), generators:
        again, _ = env.reset(seed=seed)
        return seeding, all(np.array_equal(leaf.extract(first), leaf.extract(again)) for leaf in leaves)


def warn_of_time_limits(env: gymnasium.Env, where: str) -> None:
    """Warn of a TimeLimit that has no effect, because one inside of it ends episodes earlier."""
    limits = [vars(wrapper)["_max_episode_steps"] for wrapper in wrappers_of(env) if isinstance(wrapper, TimeLimit)]
    for outer, inner in itertools.pairwise(limits):
        if outer > inner:
            log.warning(
                "%s: TimeLimit(max_episode_steps=%d) has no effect, because the environment itself ends episodes after "
                "%d steps; use --env-kwargs max_episode_steps=%d", where, outer, inner, outer,
            )  # fmt: skip


def warn_of_spaces(observation: ObservationSpec, env: gymnasium.Env, where: str, *, scaled: bool) -> None:
    """Warn of spaces with which a policy learns badly.

    Args:
        observation: the leaves of the observation space.
        scaled: whether the policy scales its actions to their bounds.
    """
    for leaf in observation.leaves:
        if leaf.kind == "vector" and len(leaf.env_shape) >= 2 and min(sorted(leaf.env_shape)[-2:]) >= IMAGE_SIDE:
            log.warning(
                "%s: %s with shape %s is no image, because its type is not uint8, so the network reads a flat vector",
                where, leaf.title, leaf.env_shape,
            )  # fmt: skip
    action = env.action_space
    if isinstance(action, spaces.Box) and not scaled and np.isfinite([*action.low.flat, *action.high.flat]).all():
        center, half = (action.high + action.low) / 2, (action.high - action.low) / 2
        if (np.abs(center) > np.maximum(half / 2, 1)).any() or (half > MAX_HALF_RANGE).any():
            log.warning(
                "%s: the bounds of the actions are %s … %s, but a new policy samples around 0 with a deviation of 1; "
                "add --squash-actions, --distribution beta, or --wrappers "
                "'RescaleAction(min_action=-1, max_action=1)'", where, action.low.min(), action.high.max(),
            )  # fmt: skip


def check_observation(where: str, call: str, space: spaces.Space[Any], observation: Any) -> None:
    """Check that an observation can be stored and is finite. Warn of values outside their space.

    Raises:
        ConfigError: if it cannot, or is not.
    """
    try:
        for leaf in observation_spec(space, where).leaves:
            array = leaf.to_storage(leaf.extract(observation)).reshape(leaf.env_shape)
            given = np.asarray(leaf.extract(observation))
            large = np.abs(given, dtype=np.float64) > MAX_EXACT
            if leaf.kind == "vector" and given.dtype != np.float32 and large.any():
                named = name_values(given, large)
                log.warning(
                    "%s: %s is too large for float32, which rounds away small changes: %s; subtract a constant, or "
                    "scale it", where, leaf.title, named,
                )  # fmt: skip
            if not np.isfinite(array).all():
                raise ObservationError(f"{leaf.title} is not finite: {name_values(array, ~np.isfinite(array))}")
            box = leaf.extract(space)
            if isinstance(box, spaces.Box):
                tolerance = TOLERANCE * np.maximum(1.0, np.abs(array, dtype=np.float64))
                outside = (array < box.low - tolerance) | (array > box.high + tolerance)
                if outside.any():
                    named = name_values(array, outside)
                    log.warning("%s: %s returned %s outside its space: %s", where, call, leaf.title, named)
    except ObservationError as error:
        raise ConfigError(
            f"{where}: {call} returned an invalid observation: {error}; correct the observation or observation_space"
        ) from error


def name_values(array: np.ndarray, chosen: np.ndarray) -> str:
    """Name some values of an array with their indices, the first MAX_NAMED of them.

    Args:
        array: the values.
        chosen: bool array of the same shape: the values to name.
    """
    indices = [tuple(i) for i in np.argwhere(chosen).tolist()]
    named = [f"[{', '.join(map(str, i))}] is {array[i]:g}" for i in indices[:MAX_NAMED]]
    more = len(indices) - len(named)
    return ", ".join(named) + (f", and {more} more" if more else "")
