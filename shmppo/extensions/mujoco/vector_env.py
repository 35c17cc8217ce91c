"""A vector environment that steps simulations of one MuJoCo task together.

The environments are those of Gymnasium, or a task of the user as one (`TaskEnv`). They begin the episodes. A step runs
all simulations of the range, and then computes the observations, rewards, and terminations of all of them together
(see `task.py`). The results are the same bits as those of the environment's `step`.

The state of a simulation can be copied, so a lost environment is restored from a snapshot instead of a replay.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import gymnasium
import numpy as np

from shmppo.config.checks import require
from shmppo.config.info_keys import InfoKey
from shmppo.config.train_config import TrainConfig
from shmppo.envs.factory import make_environment
from shmppo.envs.schedule import Options
from shmppo.envs.snapshots import SnapshotSpec, snapshot_spec
from shmppo.envs.spec import EnvSpec
from shmppo.envs.sync_vector_env import GymnasiumHandle, SyncVectorEnv
from shmppo.envs.wrappers import batch_actions, random_action
from shmppo.errors import EnvError
from shmppo.extensions.mujoco.simulations import Simulations, checked
from shmppo.extensions.mujoco.task import COMPILED, TaskEnv
from shmppo.extensions.mujoco.tasks import simulations_of, time_limit
from shmppo.spaces.observations import Leaf, observation_spec
from shmppo.utils.user_code import FAILURES, as_config_error


def simulation_snapshot(env: gymnasium.Env, choose_action: Callable[[Any], Any]) -> SnapshotSpec | None:
    """Return the format of a snapshot: `Simulations.get_state`. None: a task of the user does not continue from it."""
    if isinstance(env.unwrapped, TaskEnv) and snapshot_spec(env, choose_action) is None:
        return None
    state = simulations_of([env]).get_state(0)
    return SnapshotSpec(state.shape, state.dtype.str)


class MujocoHandle(GymnasiumHandle):
    """A handle of an environment whose simulation is stepped directly.

    Attributes:
        simulations: those of the range.
        row: the number of its own among them.
    """

    simulations: Simulations
    row: int

    def save_snapshot(self, snapshot: np.ndarray) -> None:
        if len(snapshot):
            snapshot.view(np.float64)[:] = self.simulations.get_state(self.row)

    def restore_snapshot(self, snapshot: np.ndarray) -> None:
        self.simulations.set_state(self.row, snapshot.view(np.float64))


class MujocoVectorEnv(SyncVectorEnv):
    """A vector environment of a MuJoCo task, whose simulations are stepped together."""

    handles: list[MujocoHandle]  # type: ignore[assignment]
    handle_type = MujocoHandle

    def __init__(self, config: TrainConfig, task: EnvSpec, low: int, high: int, render_mode: str | None = None) -> None:
        shared = COMPILED.set({})
        try:
            super().__init__(config, task, low, high, render_mode)
        finally:
            COMPILED.reset(shared)
        envs = [handle.env for handle in self.handles]
        self._space = self.action_space  # each wrapper takes time to return it
        self._sim, self._time_limit = simulations_of(envs), time_limit(envs[0])
        self._is_own = isinstance(envs[0].unwrapped, TaskEnv)
        self._missing = np.full(len(envs), np.nan)  # what `info` lacks
        for i, handle in enumerate(self.handles):
            handle.simulations, handle.row = self._sim, i
        # One row per environment: the reward, then the observation. The hash of an episode covers both.
        parts = [leaf.extract(envs[0].observation_space) for leaf in self.observation.leaves]
        fields: Any = [("reward", np.float64, ()), *((str(k), one.dtype, one.shape) for k, one in enumerate(parts))]
        rows = np.zeros(len(envs), fields)
        self._bytes = [row.data for row in rows.view(np.uint8).reshape(len(envs), -1)]
        self._rewards, *self._raw = (rows[name] for name, *_ in fields)

    def _step_environments(
        self, actions: list[Any], rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
    ) -> dict[int, EnvError]:
        idle = [i for i, action in enumerate(actions) if action is None]
        for i, action in enumerate(actions) if self._skip_failed else ():
            if action is not None and (taken := self._begun[i][1]) is not None:
                taken.append(action)  # a failed episode is repeated
        if idle:
            other = next(action for action in actions if action is not None)
            actions = [other if action is None else action for action in actions]
        batch = batch_actions(self._space, actions)
        try:
            raised = self._sim.step(batch, idle)
            if self._is_own:
                raised |= self._sim.unstable()
            rewards[:], terminated[:], self._reward_info = self._sim.outcome(batch)
            observation = self._sim.task.observe(self._sim)
            for leaf, raw, obs in zip(self.observation.leaves, self._raw, self.obs, strict=True):
                raw[...] = checked("observe", leaf.extract(observation), raw.shape)
                obs[...] = leaf.to_storage(raw, raw.shape[:1])
        except FAILURES as error:
            first, last = self.handles[0].index, self.handles[-1].index
            raise self._raised(0, f"the task, with environments {first} … {last},", error) from error
        np.equal(self.lengths, self._time_limit - 1, out=truncated)
        self._stepped.fill(1)
        if idle:
            rewards[idle] = terminated[idle] = truncated[idle] = self._stepped[idle] = 0
        self._rewards[:] = rewards
        self.hashes = list(map(zlib.crc32, self._bytes, self.hashes))
        return {i: self._raised(i, "step", error) for i, error in raised.items()}

    def _read_info(self, key: InfoKey, indices: Sequence[int]) -> np.ndarray:
        numbers = np.asarray(self._reward_info.get("/".join(key.path), self._missing), np.float64)
        return numbers if len(indices) == len(numbers) else numbers[indices]  # a selection takes longer

    def reset_env(self, i: int, episode: int, options: Options | None = None) -> None:
        super().reset_env(i, episode, options)
        self._sim.load(i)

    def _advance(self, i: int, action: Any) -> tuple[float, bool, bool]:
        result = super()._advance(i, action)
        self._sim.load(i)
        return result

    def _remake(self, i: int) -> None:
        super()._remake(i)
        env: Any = self.handles[i].env.unwrapped
        self._sim.replace(i, env.model, env.data)


CHECKED_STEPS = 32


def function_that_rounds(config: TrainConfig, env: gymnasium.Env) -> str | None:
    """Return why a task is stepped one by one: a function gives other bits for several simulations. None: none does.

    Args:
        config: the configuration of the run.
        env: an environment that `reason_for_gymnasium` accepts.

    Raises:
        ConfigError: if a function returns another shape or raises for several simulations, or if the model is another
            one in each environment.
    """
    base: Any = env.unwrapped
    if not isinstance(base, TaskEnv):
        return None
    where = f"--env {config.env_id}"
    with closing(make_environment(config)) as made:
        other: Any = made.unwrapped
        equal = base.content_sha256 == other.content_sha256
        require(equal, f"{where} has another model each time that it is made; change models in `randomize`")
    with as_config_error(f"{where}, for several simulations at once,", "; return a row for each of them"):
        env.reset(seed=0)
        actions = [random_action(base.action_space) for _ in range(CHECKED_STEPS)]
        batches = [batch_actions(base.action_space, [action]) for action in actions]
        steps: list[Simulations] = []
        for batch in batches:
            if base.sim.step(batch) or base.sim.unstable():
                break
            steps.append(base.sim.copied([base.sim], base.task))
        if not steps:
            return None
        leaves = observation_spec(base.observation_space, where).leaves
        alone = [_computed(one.copied([one], base.task), batches[k], leaves) for k, one in enumerate(steps)]
        # The task of `other` has no state of this episode.
        batch = batch_actions(base.action_space, actions[: len(steps)])
        together = _computed(base.sim.copied(steps, other.task), batch, leaves)
    for k, (name, rows) in enumerate(together):
        if rows.tobytes() != b"".join(parts[k][1].tobytes() for parts in alone):
            return f"{name} gives other bits for several simulations than for one (does it mix rows, use @, or state?)"
    return None


def _computed(sim: Simulations, actions: Any, leaves: Sequence[Leaf]) -> list[tuple[str, np.ndarray]]:
    """Return arrays that the functions of the task compute after a step, each with the name of its function."""
    rewards, terminated, info = sim.outcome(actions)
    observation = sim.task.observe(sim)
    named: Any = [("reward", [rewards, *info.values()]), ("observe", [leaf.extract(observation) for leaf in leaves])]
    named += [("terminated", [terminated]), ("control", [sim.controls(actions)])]
    return [(name, np.asarray(array)) for name, arrays in named for array in arrays]
