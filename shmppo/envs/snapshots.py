"""Environments that can be put back by themselves: get_state() and set_state(state), used instead of a replay.

`get_state` returns an array of always the same shape and type that holds everything the environment's next steps
depend on, its random generator included; `set_state` takes it back, in another process too.
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
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.wrappers import TimeLimit

_COUNT = np.dtype(np.int64)
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SnapshotSpec:
    """Shape and type of what an environment's get_state() returns."""

    shape: tuple[int, ...]
    dtype: str
    limits: int = 0
    """TimeLimit wrappers, whose counts are kept with it."""

    @property
    def own_bytes(self) -> int:
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize

    @property
    def bytes(self) -> int:
        return self.own_bytes + self.limits * _COUNT.itemsize


def snapshot_spec(env: gymnasium.Env, act: Callable[[Any], Any] | None = None) -> SnapshotSpec | None:
    """What the environment's snapshots are like; None if it offers none that bring it back, to the last bit.

    Args:
        env: is reset, and stepped three times.
        act: what to do after an observation. None: a random action.
    """
    if not (env.has_wrapper_attr("get_state") and env.has_wrapper_attr("set_state")):
        return None
    try:
        observation, _ = env.reset()
        state = np.array(env.get_wrapper_attr("get_state")())
        spec = SnapshotSpec(state.shape, state.dtype.str, len(_time_limits(env)))
        wrappers = _wrappers_state(env)
        action = env.action_space.sample() if act is None else act(observation)
        before = copy.deepcopy(env.step(action)[:4])  # environments may reuse what they return
        counting = _wrappers_state(env) != wrappers
        env.step(env.action_space.sample() if act is None else act(before[0]))
        env.get_wrapper_attr("set_state")(state)
        same = data_equivalence(before, env.step(action)[:4], exact=True)
    except Exception as error:  # methods of these names, for something else
        log.info("get_state and set_state are not used: %r", error)
        return None
    if counting:
        log.warning("get_state and set_state are not used: a wrapper has a state of its own, which they do not hold")
        return None
    if state.dtype.hasobject or not same:
        log.warning("get_state and set_state are not used: the same step taken again went another way")
        return None
    return spec


def take_snapshot(env: gymnasium.Env, spec: SnapshotSpec, target: np.ndarray) -> None:
    """Write the environment's state into `target`, uint8 [spec.bytes]."""
    state = np.asarray(env.get_wrapper_attr("get_state")())
    if state.shape != spec.shape or state.dtype.str != spec.dtype:
        raise ValueError(f"get_state() returned {state.dtype} {state.shape}, but at first {spec.dtype} {spec.shape}")
    elapsed = np.array([vars(limit)["_elapsed_steps"] for limit in _time_limits(env)], _COUNT)
    target[:] = np.frombuffer(np.ascontiguousarray(state).tobytes() + elapsed.tobytes(), np.uint8)


def restore_snapshot(env: gymnasium.Env, spec: SnapshotSpec, source: np.ndarray) -> None:
    """Bring an environment that has been reset to a snapshot."""
    own, elapsed = source[: spec.own_bytes].tobytes(), source[spec.own_bytes :].tobytes()
    env.get_wrapper_attr("set_state")(np.frombuffer(own, spec.dtype).reshape(spec.shape).copy())
    for limit, steps in zip(_time_limits(env), np.frombuffer(elapsed, _COUNT).tolist(), strict=True):
        vars(limit)["_elapsed_steps"] = steps  # the wrapper's own state, which the environment's cannot hold


def _wrappers(env: gymnasium.Env) -> Iterator[gymnasium.Wrapper]:
    """The wrappers around an environment, the outermost first."""
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env


def _time_limits(env: gymnasium.Env) -> list[TimeLimit]:
    return [wrapper for wrapper in _wrappers(env) if isinstance(wrapper, TimeLimit)]


def _wrappers_state(env: gymnasium.Env) -> bytes:
    """What the wrappers but TimeLimit hold of their own; spaces aside, whose generators the trial itself uses."""
    own = [
        {k: v for k, v in vars(wrapper).items() if k != "env" and not isinstance(v, gymnasium.Space)}
        for wrapper in _wrappers(env)
        if not isinstance(wrapper, TimeLimit)
    ]
    return pickle.dumps(own)
