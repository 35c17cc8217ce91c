"""Snapshots of environments through their own methods `get_state()` and `set_state(state)`.

An environment with these methods is restored from a snapshot instead of a replay of its actions. `get_state` returns
an array whose shape and type never change. The array must hold everything that later steps depend on, including the
random generator. `set_state` restores it, also in another process.
"""

from __future__ import annotations

import copy
import logging
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.wrappers import TimeLimit

from shmppo.utils.user_code import FAILURES, reraise_ctrl_c

_COUNT = np.dtype(np.int64)
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SnapshotSpec:
    """Format of a snapshot: the array of `get_state()`, then the step count of each TimeLimit wrapper."""

    shape: tuple[int, ...]
    """Shape of the array."""
    dtype: str
    """Type of the array."""
    time_limits: int = 0
    """Number of TimeLimit wrappers."""

    @property
    def state_bytes(self) -> int:
        """Size of the array in bytes."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize

    @property
    def bytes(self) -> int:
        """Size of the snapshot in bytes."""
        return self.state_bytes + self.time_limits * _COUNT.itemsize


def snapshot_spec(env: gymnasium.Env, choose_action: Callable[[Any], Any]) -> SnapshotSpec | None:
    """Check an environment's snapshots and describe their format.

    The check takes a snapshot, steps twice, restores the snapshot, and repeats the first step. The repeated step must
    return the same bits.

    Args:
        env: the environment. It is reset and stepped three times.
        choose_action: maps an observation to an action.

    Returns:
        The format, or None if the environment has no snapshots or the check fails.
    """
    if not (env.has_wrapper_attr("get_state") and env.has_wrapper_attr("set_state")):
        return None
    try:
        observation, _ = env.reset()
        state = np.array(env.get_wrapper_attr("get_state")())
        spec = SnapshotSpec(state.shape, state.dtype.str, len(_time_limits(env)))
        wrappers = _wrapper_states(env)
        action = choose_action(observation)
        # Copies: environments may reuse the arrays that they return, and change their action in place.
        before = copy.deepcopy(env.step(copy.deepcopy(action))[:4])
        same_wrappers = _wrapper_states(env) == wrappers
        env.step(choose_action(before[0]))
        env.get_wrapper_attr("set_state")(state)
        same = data_equivalence(before, env.step(action)[:4], exact=True)
    except FAILURES as error:  # methods with these names may have another purpose
        reraise_ctrl_c(error)
        log.info("get_state and set_state are not used, because the check of a snapshot raised %r", error)
        return None
    if same and same_wrappers and not state.dtype.hasobject:
        return spec
    reason = (
        "a step from the restored state gave other results" if same_wrappers else "a wrapper has a state of its own"
    )
    log.warning("get_state and set_state are not used, because %s", reason)
    return None


def take_snapshot(env: gymnasium.Env, spec: SnapshotSpec, target: np.ndarray) -> None:
    """Write a snapshot of the environment into `target`, uint8 [spec.bytes].

    Raises:
        ValueError: if `get_state()` returns another shape or type than before.
    """
    state = np.asarray(env.get_wrapper_attr("get_state")())
    if state.shape != spec.shape or state.dtype.str != spec.dtype:
        raise ValueError(f"it returned {state.dtype} {state.shape}, but {np.dtype(spec.dtype)} {spec.shape} at first")
    elapsed = np.array([vars(limit)["_elapsed_steps"] for limit in _time_limits(env)], _COUNT)
    target[:] = np.frombuffer(np.ascontiguousarray(state).tobytes() + elapsed.tobytes(), np.uint8)


def restore_snapshot(env: gymnasium.Env, spec: SnapshotSpec, source: np.ndarray) -> None:
    """Restore a snapshot from `source`, uint8 [spec.bytes]. The environment must have been reset before."""
    state, elapsed = source[: spec.state_bytes].tobytes(), source[spec.state_bytes :].tobytes()
    env.get_wrapper_attr("set_state")(np.frombuffer(state, spec.dtype).reshape(spec.shape).copy())
    for limit, steps in zip(_time_limits(env), np.frombuffer(elapsed, _COUNT).tolist(), strict=True):
        vars(limit)["_elapsed_steps"] = steps  # the environment's own state cannot include it


def wrappers_of(env: gymnasium.Env) -> Iterator[gymnasium.Wrapper]:
    """Iterate over the wrappers of an environment, the outermost first."""
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env


def spaces_of(env: gymnasium.Env) -> list[spaces.Space[Any]]:
    """Return the spaces of an environment and of its wrappers, each once, with parts in place of a Dict or Tuple."""
    layers = (*wrappers_of(env), env.unwrapped)
    found = [getattr(layer, name, None) for layer in layers for name in ("observation_space", "action_space")]
    return list({id(part): part for space in found for part in _parts(space)}.values())


def _parts(space: Any) -> Iterator[spaces.Space[Any]]:
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        for part in space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces:
            yield from _parts(part)
    elif isinstance(space, spaces.Space):
        yield space


def _time_limits(env: gymnasium.Env) -> list[TimeLimit]:
    return [wrapper for wrapper in wrappers_of(env) if isinstance(wrapper, TimeLimit)]


def _wrapper_states(env: gymnasium.Env) -> bytes:
    """Serialize the attributes of all wrappers except TimeLimit.

    Spaces are left out: the check itself samples actions and so changes their random generators.
    """
    states = [
        {k: v for k, v in vars(wrapper).items() if k != "env" and not isinstance(v, gymnasium.Space)}
        for wrapper in wrappers_of(env)
        if not isinstance(wrapper, TimeLimit)
    ]
    return pickle.dumps(states)
