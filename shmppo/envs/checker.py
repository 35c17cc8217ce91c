"""Gymnasium's contract, tried on one environment before any process starts: each rule that is broken is named."""

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
"""Which resets are seeded: every one, an environment's first one, or none."""

TOLERANCE = 1e-5  # of a Box's bounds, relative: rounding to float32 may step over them


def check_contract(
    env: gymnasium.Env, where: str, seeding: Literal["episode", "once"], action: Callable[[Any], Any] | None = None
) -> Seeding:
    """Reset and step once. Returns the seeding that it allows.

    Args:
        action: what to do after an observation. None: a random action.

    Raises:
        ConfigError: naming `where` and the rule that is broken.
    """
    allowed: Seeding = seeding
    try:
        returned = env.reset(seed=0)
    except Exception as error:
        allowed = "never"
        log.warning("%s: reset(seed=0) raised %r", where, error)
        returned = _call(where, "reset()", env.reset)
    rule = "reset must return (observation, info), info a dict"
    if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], dict)):
        raise ConfigError(f"{where}: reset returned {_brief(returned)}; {rule}")
    _check_observation(where, "reset", env.observation_space, returned[0])
    env.action_space.seed(0)
    taken = env.action_space.sample() if action is None else action(returned[0])
    stepped = _call(where, "step(action)", lambda: env.step(taken))
    rule = "step must return (observation, reward, terminated, truncated, info)"
    if not (isinstance(stepped, tuple) and len(stepped) == 5):
        raise ConfigError(f"{where}: step returned {_brief(stepped)}; {rule}")
    observation, reward, terminated, truncated, info = stepped
    _check_observation(where, "step", env.observation_space, observation)
    number = isinstance(reward, numbers.Real) or (isinstance(reward, np.ndarray) and reward.ndim == 0)
    if not number:
        raise ConfigError(f"{where}: step returned the reward {_brief(reward)}; it must be one number")
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, (bool, np.bool_)):
            raise ConfigError(f"{where}: step returned {name} = {_brief(flag)}; it must be a bool")
    if not isinstance(info, dict):
        raise ConfigError(f"{where}: step returned the info {_brief(info)}; {rule}, info a dict")
    return allowed


def _call(where: str, what: str, function: Any) -> Any:
    try:
        return function()
    except Exception as error:
        raise ConfigError(f"{where}: {what} raised {error!r} when it was tried; make it work first") from error


def _check_observation(where: str, call: str, space: spaces.Space, observation: Any) -> None:
    broken = broken_rule(space, observation)
    if broken:
        raise ConfigError(
            f"{where}: {call} observed {_brief(observation)}, {broken}; correct observation_space {space}"
        )


def broken_rule(space: spaces.Space, observation: Any) -> str | None:
    """What of its space an observation breaks; None if nothing.

    Floats may come in another precision than a Box names, as many environments do it.
    """
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return _broken_part(space, observation)
    if not isinstance(space, spaces.Box):
        return None if space.contains(observation) else "which its space does not contain"
    try:
        array = np.asarray(observation)
    except ValueError:
        return "which is no array"
    if array.shape != space.shape:
        return f"of shape {array.shape}, not {space.shape}"
    if not np.can_cast(array.dtype, space.dtype, "same_kind"):
        return f"of type {array.dtype}, not {space.dtype}"
    if not np.isfinite(array).all():
        return "which is not finite"
    room = TOLERANCE * np.maximum(1.0, np.abs(array, dtype=np.float64))
    if (array < space.low - room).any() or (array > space.high + room).any():
        return "outside its bounds"
    return None


def _broken_part(space: spaces.Dict | spaces.Tuple, observation: Any) -> str | None:
    """The rule that the first part of a compound observation breaks, and where it lies."""
    kind = dict if isinstance(space, spaces.Dict) else tuple
    parts: dict[Any, spaces.Space] = dict(space.spaces if kind is dict else enumerate(space.spaces))  # type: ignore[arg-type]
    keys = list(observation if kind is dict else range(len(observation))) if isinstance(observation, kind) else None
    if keys is None or set(keys) != set(parts):
        return f"not a {kind.__name__} of the parts {list(parts)}"
    broken = ((key, broken_rule(part, observation[key])) for key, part in parts.items())
    return next((f"at {key} {rule}" for key, rule in broken if rule), None)


def _brief(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 100 else text[:97] + "..."
