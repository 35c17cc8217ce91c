"""Environments that can be put back by themselves: get_state() and set_state(state), used instead of a replay.

`get_state` returns an array of always the same shape and type that holds everything the environment's next steps
depend on, its random generator included; `set_state` takes it back, in another process too.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.wrappers import TimeLimit

log = logging.getLogger("shmppo.snapshots")


@dataclass(frozen=True)
class SnapshotSpec:
    """Shape and type of what an environment's get_state() returns."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


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
        spec = SnapshotSpec(state.shape, state.dtype.str)
        action = env.action_space.sample() if act is None else act(observation)
        before = copy.deepcopy(env.step(action)[:4])  # environments may reuse what they return
        env.step(env.action_space.sample() if act is None else act(before[0]))
        env.get_wrapper_attr("set_state")(state)
        same = data_equivalence(before, env.step(action)[:4], exact=True)
    except Exception as error:  # methods of these names, for something else
        log.info("get_state and set_state are not used: %r", error)
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
    target[:] = np.frombuffer(np.ascontiguousarray(state).tobytes(), np.uint8)


def put_back(env: gymnasium.Env, spec: SnapshotSpec, source: np.ndarray, length: int) -> None:
    """Bring an environment that has been reset to a snapshot of an episode that was `length` steps long."""
    env.get_wrapper_attr("set_state")(np.frombuffer(source.tobytes(), spec.dtype).reshape(spec.shape).copy())
    wrapped = env
    while isinstance(wrapped, gymnasium.Wrapper):
        if isinstance(wrapped, TimeLimit):
            vars(wrapped)["_elapsed_steps"] = length  # the wrapper's own state, which the environment's cannot hold
        wrapped = wrapped.env
