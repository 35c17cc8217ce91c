"""Checks of Gymnasium's API on one environment, before any process starts. Errors name the rule that is broken."""

from __future__ import annotations

import copy
import logging
import numbers
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence

from shmppo.config.checks import shown
from shmppo.envs.agents import AgentsView
from shmppo.envs.snapshots import spaces_of
from shmppo.errors import ConfigError
from shmppo.spaces.observations import NUMBERS, ObservationError, observation_spec, path_name, relative_pronoun
from shmppo.utils.rng import seed_spaces
from shmppo.utils.user_code import FAILURES, as_config_error, reraise_ctrl_c

log = logging.getLogger(__name__)

Seeding = Literal["episode", "once", "never"]
"""Which resets receive a seed: all of them, the first one of each environment, or none."""

TOLERANCE = 1e-5  # relative, at the bounds of a Box: a value rounded to float32 may lie slightly outside

MAX_NAMED = 3
"""Number of values outside the bounds that a message names."""
_RESET_RULE = "it must return (observation, info), info a dict"
STEP_RULE = "it must return (observation, reward, terminated, truncated, info)"


class Contract(NamedTuple):
    """What an environment that follows Gymnasium's API does with seeds."""

    seeding: Seeding
    """The seeding that the configuration asks for, or "never" if the environment does not accept seeds."""
    resets_equal: bool
    """Whether two resets with the same seed gave the same observation, as far as each episode is seeded."""


def check_contract(
    env: gymnasium.Env,
    where: str,
    seeding: Literal["episode", "once"],
    choose_action: Callable[[Any], Any],
) -> Contract:
    """Reset and step an environment, reset it again with the same seed, and check what it returns.

    Args:
        env: the environment.
        where: name of the environment for error messages.
        seeding: the seeding that the configuration asks for.
        choose_action: maps an observation to an action.

    Raises:
        ConfigError: if a rule is broken. The message names the rule.
    """
    accepted: Seeding = seeding
    parts = spaces_of(env)
    seed_spaces(parts, 0)
    returned: Any = None
    try:
        returned = env.reset(seed=0)
    except FAILURES as error:
        reraise_ctrl_c(error)
        accepted = "never"
        log.warning("%s: reset(seed=0) raised %r, so resets receive no seed", where, error)
    if accepted == "never":
        returned = _call(where, "reset()", env.reset)
    if not (isinstance(returned, tuple) and len(returned) == 2):
        raise ConfigError(f"{where}: reset returned {result_of(returned)}; {_RESET_RULE}")
    if not isinstance(returned[1], dict):
        raise ConfigError(f"{where}: reset returned {kind_of(returned[1])} as its info; {_RESET_RULE}")
    _check_observations(where, "reset", env, returned[0])
    first = copy.deepcopy(returned[0])  # the environment may reuse its arrays
    env.action_space.seed(0)
    action = choose_action(returned[0])
    stepped = _call(where, "step(action)", lambda: env.step(action))
    if not (isinstance(stepped, tuple) and len(stepped) == 5):
        raise ConfigError(f"{where}: step returned {result_of(stepped)}; {STEP_RULE}")
    observation, reward, terminated, truncated, info = stepped
    _check_observations(where, "step", env, observation)
    is_number = isinstance(reward, numbers.Real) or (
        isinstance(reward, np.ndarray) and reward.ndim == 0 and reward.dtype.kind in NUMBERS
    )
    if not is_number:
        raise ConfigError(f"{where}: step returned the reward {shown(reward)}; it must be one number")
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, (bool, np.bool_)):
            raise ConfigError(f"{where}: step returned {name} = {shown(flag)}; it must be a bool")
    if not isinstance(info, dict):
        raise ConfigError(f"{where}: step returned {kind_of(info)} as its info; {STEP_RULE}, info a dict")
    if accepted != "episode":  # an episode may depend on earlier ones
        return Contract(accepted, resets_equal=True)
    seed_spaces(parts, 0)
    again = _call(where, "reset(seed=0)", lambda: env.reset(seed=0)[0])
    return Contract(accepted, resets_equal=data_equivalence(first, again, exact=True))


def _call(where: str, what: str, function: Callable[[], Any]) -> Any:
    """Call a method of the environment and turn its exception into a ConfigError."""
    with as_config_error(f"{where}: {what}", " in a check before the run; correct the method"):
        return function()


def _check_observations(where: str, call: str, env: gymnasium.Env, observation: Any) -> None:
    """Check an observation, or the new ones of all agents. If some are outside their space, warn of the first one."""
    seen = {where: observation}  # of several agents, only if none of them has an observation, which is an error
    if isinstance(env, AgentsView):
        rows = zip(env.agents.names, env.agents.seen, env.agents.updated, strict=True)
        seen = {f"{where}: agent {name}": one for name, one, updated in rows if updated} or seen
    outside = [
        f"{who}: {call} returned an observation outside its space: {text}"
        for who, one in seen.items()
        if (text := _check_observation(who, call, env.observation_space, one))
    ]
    if outside:
        log.warning("%s", outside[0])


def _check_observation(where: str, call: str, space: spaces.Space[Any], observation: Any) -> str | None:
    """Check that an observation can be stored and is finite. Returns `values_outside`.

    Raises:
        ConfigError: if it cannot, or is not.
    """
    clause = None
    try:
        for leaf in observation_spec(space, where).leaves:
            array = leaf.to_storage(leaf.extract(observation)).reshape(leaf.env_shape)
            if clause is None and not np.isfinite(array).all():
                clause = f"{relative_pronoun(leaf.keys)} is not finite: {name_values(array, ~np.isfinite(array))}"
    except ObservationError as error:
        clause = error.clause
    if clause is not None:
        remedy = "correct the observation or observation_space"
        raise ConfigError(f"{where}: {call} returned an observation {clause}; {remedy}")
    return values_outside(space, observation)


def values_outside(space: spaces.Space[Any], observation: Any) -> str | None:
    """Return which values of a valid observation lie outside the bounds of a Box, or None."""
    for leaf in observation_spec(space, "").leaves:
        box = leaf.extract(space)
        if isinstance(box, spaces.Box) and (outside := _outside(box, np.asarray(leaf.extract(observation)))):
            return f"part {path_name(leaf.keys)!r}: {outside}" if leaf.keys else outside
    return None


def _outside(space: spaces.Box, array: np.ndarray) -> str | None:
    """Return which values of an array lie outside the bounds of a Box, or None."""
    tolerance = TOLERANCE * np.maximum(1.0, np.abs(array, dtype=np.float64))
    outside = (array < space.low - tolerance) | (array > space.high + tolerance)
    if not outside.any():
        return None
    return name_values(array, outside, lambda i: f" (bounds {space.low[i]:g} … {space.high[i]:g})")


def name_values(array: np.ndarray, chosen: np.ndarray, comment: Callable[[Any], str] = lambda i: "") -> str:
    """Name some values of an array with their indices, the first MAX_NAMED of them.

    Args:
        array: the values.
        chosen: bool array of the same shape: the values to name.
        comment: maps an index to the text after its value.
    """
    indices = [tuple(i) for i in np.argwhere(chosen).tolist()]
    named = [f"[{', '.join(map(str, i))}] is {array[i]:g}{comment(i)}" for i in indices[:MAX_NAMED]]
    more = len(indices) - len(named)
    return ", ".join(named) + (f", and {more} more" if more else "")


def kind_of(value: Any) -> str:
    """Describe a value without its content: "None", "a dict", or "an array"."""
    if value is None:
        return "None"
    name = "array" if isinstance(value, np.ndarray) else type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def result_of(returned: Any) -> str:
    """Describe what `reset` or `step` has returned: "4 values" for a tuple, and as in `kind_of` for other objects."""
    if not isinstance(returned, tuple):
        return kind_of(returned)
    return "1 value" if len(returned) == 1 else f"{len(returned)} values"
