"""A vector environment that steps Gymnasium's MuJoCo tasks without Gymnasium's Python code around each step.

Gymnasium creates and resets the environments. A step runs all simulations of the range, and then computes the
observations, rewards, and terminations of all environments together (see `tasks.py`). The results are the same bits
as those of Gymnasium's `step`.

The state of a simulation can be copied, so a lost environment is restored from a snapshot instead of a replay.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import gymnasium
import mujoco
import numpy as np

from shmppo.config.info_keys import InfoKey
from shmppo.config.train_config import TrainConfig
from shmppo.envs.schedule import Options
from shmppo.envs.snapshots import SnapshotSpec
from shmppo.envs.spec import EnvSpec
from shmppo.envs.sync_vector_env import GymnasiumHandle, SyncVectorEnv
from shmppo.errors import EnvError
from shmppo.extensions.mujoco.tasks import mujoco_task, time_limit

SIMULATION_STATE = int(mujoco.mjtState.mjSTATE_INTEGRATION)
"""The part of a simulation's state that its next step depends on."""


def simulation_snapshot(env: gymnasium.Env) -> SnapshotSpec:
    """Return the format of a snapshot: the state of the simulation, and the position before its next step."""
    base: Any = env.unwrapped
    return SnapshotSpec((mujoco.mj_stateSize(base.model, SIMULATION_STATE) + 1,), np.dtype(np.float64).str)


class MujocoHandle(GymnasiumHandle):
    """A handle of an environment whose simulation is stepped directly.

    Attributes:
        model, data: the simulation.
        position: [1], the position before the next step. It is part of the snapshot.
    """

    position: np.ndarray

    def make(self) -> None:
        super().make()
        base: Any = self.env.unwrapped
        self.model, self.data = base.model, base.data

    def save_snapshot(self, snapshot: np.ndarray) -> None:
        if len(snapshot):
            values = snapshot.view(np.float64)
            mujoco.mj_getState(self.model, self.data, values[:-1], SIMULATION_STATE)
            values[-1] = self.position[0]

    def restore_snapshot(self, snapshot: np.ndarray) -> None:
        values = snapshot.view(np.float64)
        mujoco.mj_setState(self.model, self.data, values[:-1], SIMULATION_STATE)
        self.position[0] = values[-1]


class MujocoVectorEnv(SyncVectorEnv):
    """A vector environment of Gymnasium's MuJoCo tasks, stepped together."""

    handles: list[MujocoHandle]  # type: ignore[assignment]
    handle_type = MujocoHandle

    def __init__(self, config: TrainConfig, task: EnvSpec, low: int, high: int, render_mode: str | None = None) -> None:
        super().__init__(config, task, low, high, render_mode)
        count = len(self.handles)
        env = self.handles[0].env
        self._task, self._time_limit = mujoco_task(env), time_limit(env)
        views = self._task.views(self.handles[0].data)
        ends = np.cumsum([len(view) for view in views.values()])
        self._rows = np.zeros((count, ends[-1]))
        self._batch = dict(zip(views, np.split(self._rows, ends[:-1], axis=1), strict=True))
        self._position = np.zeros(count)
        self._no_action = np.zeros(self.action_space.shape or (), self.action_space.dtype)
        # One row per environment: the reward, then the observation. The hash of an episode covers both.
        self._results = np.zeros((count, 1 + self.obs[0].shape[1]))
        self._bytes = [row.data.cast("B") for row in self._results]
        self._connect()

    def _step_environments(
        self, actions: list[Any], rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
    ) -> dict[int, EnvError]:
        failures = self._simulate(actions)
        np.concatenate(self._views, out=self._rows.reshape(-1))
        after = self._task.position(self._batch).copy()
        idle = [i for i, action in enumerate(actions) if action is None]
        for i in idle:
            actions[i] = self._no_action
        outcome = self._task.outcome(self._batch, self._position, after, np.asarray(actions))
        self._reward_terms = outcome.info
        self._position[:] = after
        rewards[:], terminated[:] = outcome.reward, outcome.terminated
        truncated[:] = self.lengths + 1 == self._time_limit
        self._stepped.fill(1)
        if idle:
            rewards[idle] = terminated[idle] = truncated[idle] = self._stepped[idle] = 0
        self._results[:, 0] = rewards
        np.concatenate(self._task.observe(self._batch), axis=1, out=self._results[:, 1:])
        self.obs[0][:] = self._results[:, 1:]
        self.hashes = list(map(zlib.crc32, self._bytes, self.hashes))
        return failures

    def _read_info(self, key: InfoKey, indices: Sequence[int]) -> np.ndarray:
        numbers = self._reward_terms.get(key.path[-1])
        if numbers is None:
            return np.full(len(indices), np.nan)
        return numbers if len(indices) == len(numbers) else numbers[indices]  # a selection takes longer

    def reset_env(self, i: int, episode: int, options: Options | None = None) -> None:
        super().reset_env(i, episode, options)
        views = self._task.views(self.handles[i].data)
        self._position[i] = self._task.position({name: view[np.newaxis] for name, view in views.items()})[0]

    def _remake(self, i: int) -> None:
        super()._remake(i)
        self._connect()

    def _connect(self) -> None:
        """Take views of the memory of the simulations. They change when an environment is created again."""
        views = [list(self._task.views(handle.data).values()) for handle in self.handles]
        self._views = [view for of_environment in views for view in of_environment]
        self._simulations = [(handle.model, handle.data, handle.data.ctrl) for handle in self.handles]
        for i, handle in enumerate(self.handles):
            handle.position = self._position[i : i + 1]

    def _simulate(self, actions: list[Any]) -> dict[int, EnvError]:
        """Run every simulation for one step. Return the errors by environment."""
        failures = {}
        steps = self._task.frame_skip
        forces = "cfrc_ext" in self._task.fields  # `mj_step` does not compute them
        for i, ((model, data, control), action) in enumerate(zip(self._simulations, actions, strict=True)):
            if action is None:
                continue
            control[:] = action
            try:
                mujoco.mj_step(model, data, steps)
                if forces:
                    mujoco.mj_rnePostConstraint(model, data)
            except Exception as error:
                failures[i] = self._raised(i, "step", error)
        return failures
