"""Checks of Gymnasium's API on one environment, before any process starts. Errors name the rule that is broken."""

from __future__ import annotations

import logging
import numbers
from collections.abc import Callable
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

from shmppo.errors import ConfigError

log = logging.getLogger(__name__)

Seeding = Literal["episode", "once", "never"]
"""Which resets receive a seed: all of them, the first one of each environment, or none."""

TOLERANCE = 1e-5  # relative, at the bounds of a Box: a value rounded to float32 may lie slightly outside

_RESET_RULE = "reset must return (observation, info), info a dict"
_STEP_RULE = "step must return (observation, reward, terminated, truncated, info)"


def check_contract(
    env: gymnasium.Env, where: str, seeding: Literal["episode", "once"], action: Callable[[Any], Any] | None = None
) -> Seeding:
    """Reset and step an environment once, and check what it returns.

    Args:
        env: the environment.
        where: name of the environment for error messages.
        seeding: the seeding that the configuration asks for.
        action: maps an observation to an action; a random action if None.

    Returns:
        `seeding`, or "never" if the environment does not accept seeds.

    Raises:
        ConfigError: if a rule is broken. The message names the rule.
    """
    accepted: Seeding = seeding
    try:
        returned = env.reset(seed=0)
    except Exception as error:
        accepted = "never"
        log.warning("%s: reset(seed=0) raised %r, so resets receive no seed", where, error)
        returned = _call(where, "reset()", env.reset)
    if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], dict)):
        raise ConfigError(f"{where}: reset returned {_brief(returned)}; {_RESET_RULE}")
    _check_observation(where, "reset", env.observation_space, returned[0])
    env.action_space.seed(0)
    chosen = env.action_space.sample() if action is None else action(returned[0])
    stepped = _call(where, "step(action)", lambda: env.step(chosen))
    if not (isinstance(stepped, tuple) and len(stepped) == 5):
        raise ConfigError(f"{where}: step returned {_brief(stepped)}; {_STEP_RULE}")
    observation, reward, terminated, truncated, info = stepped
    _check_observation(where, "step", env.observation_space, observation)
    is_number = isinstance(reward, numbers.Real) or (isinstance(reward, np.ndarray) and reward.ndim == 0)
    if not is_number:
        raise ConfigError(f"{where}: step returned the reward {_brief(reward)}; it must be one number")
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, (bool, np.bool_)):
            raise ConfigError(f"{where}: step returned {name} = {_brief(flag)}; it must be a bool")
    if not isinstance(info, dict):
        raise ConfigError(f"{where}: step returned the info {_brief(info)}; {_STEP_RULE}, info a dict")
    return accepted


def _call(where: str, what: str, function: Callable[[], Any]) -> Any:
    """Call a method of the environment and turn its exception into a ConfigError."""
    try:
        return function()
    except Exception as error:
        raise ConfigError(f"{where}: {what} raised {error!r} in a check before the run; correct the method") from error


def _check_observation(where: str, call: str, space: spaces.Space[Any], observation: Any) -> None:
    rule = broken_rule(space, observation)
    if rule:
        raise ConfigError(
            f"{where}: {call} returned the observation {_brief(observation)}, but {rule}; correct the observation or "
            f"observation_space {space}"
        )


def broken_rule(space: spaces.Space[Any], observation: Any) -> str | None:
    """Return how an observation violates its space, or None if it is valid.

    The precision of floats is not checked: many environments return float64 for a Box of float32.
    """
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return _broken_part(space, observation)
    if not isinstance(space, spaces.Box):
        return None if space.contains(observation) else "it is not in the space"
    try:
        array = np.asarray(observation)
    except ValueError:
        return "it cannot be converted to an array"
    if array.shape != space.shape:
        return f"its shape is {array.shape}, not {space.shape}"
    if not np.can_cast(array.dtype, space.dtype, "same_kind"):
        return f"its type is {array.dtype}, not {space.dtype}"
    if not np.isfinite(array).all():
        return "it is not finite"
    tolerance = TOLERANCE * np.maximum(1.0, np.abs(array, dtype=np.float64))
    if (array < space.low - tolerance).any() or (array > space.high + tolerance).any():
        return "it is outside the bounds"
    return None


def _broken_part(space: spaces.Dict | spaces.Tuple[Any], observation: Any) -> str | None:
    """Return which part of a compound observation is the first invalid one, and how it violates its space."""
    kind = dict if isinstance(space, spaces.Dict) else tuple
    parts: dict[Any, spaces.Space[Any]] = dict(space.spaces if kind is dict else enumerate(space.spaces))  # type: ignore[arg-type]
    keys = list(observation if kind is dict else range(len(observation))) if isinstance(observation, kind) else None
    if keys is None or set(keys) != set(parts):
        return f"it is not a {kind.__name__} with the parts {list(parts)}"
    rules = ((key, broken_rule(part, observation[key])) for key, part in parts.items())
    return next((f"part {key!r}: {rule}" for key, rule in rules if rule), None)


def _brief(value: Any) -> str:
    """Return the repr of a value as one line of at most 100 characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 100 else text[:97] + "..."
