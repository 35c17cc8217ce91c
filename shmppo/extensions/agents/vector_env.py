"""A vector environment of environments with several agents: each environment has a column per agent."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from statistics import mean
from typing import Any, cast

import gymnasium
import numpy as np

from shmppo.config.info_keys import PREFIX, InfoKey
from shmppo.config.train_config import TrainConfig
from shmppo.envs.episode_info import number_of
from shmppo.envs.schedule import Options
from shmppo.envs.spec import EnvSpec
from shmppo.envs.sync_vector_env import GymnasiumHandle, make_handles
from shmppo.envs.vector_env import EpisodeEnd, EpisodeToRestore, RenderedHandle, VectorEnv
from shmppo.errors import EnvError
from shmppo.extensions.agents.envs import AgentsEnv
from shmppo.extensions.agents.options import RESULTS, AgentOptions
from shmppo.utils.rng import keyed_generator
from shmppo.utils.user_code import FAILURES, describe_error, reraise_ctrl_c, user_traceback

_DOUBLE = struct.Struct("d")


class AgentsVectorEnv(VectorEnv):
    """The columns of some environments. An episode of a column ends when its agent or its environment ends.

    `returns` and `lengths` are those of the environment's episode: the rewards of each agent, and all steps.

    Attributes:
        active: bool [n], the columns in which the policy acts in the next step.
        opponent_active: bool [n], the columns in which an opponent acts in the next step. Other actions are ignored.
        finished: the episodes of environments that ended at the last step, with the index of their first column. The
            return is the sum over the agents that the policy plays; each number of `info` is the mean over those of
            them that have it.
    """

    handles: list[RenderedHandle]
    active: np.ndarray

    def __init__(self, config: TrainConfig, task: EnvSpec, low: int, high: int, render_mode: str | None = None) -> None:
        """Create the environments of the columns low … high − 1.

        Raises:
            EnvError: if an environment cannot be created.
        """
        self._size, self._options = config.columns_per_env, AgentOptions.of(config)
        self._config = config
        indices = range(low // self._size, high // self._size)
        self._of_envs = make_handles(GymnasiumHandle, config, task, indices, render_mode)
        self._envs = [cast(AgentsEnv, handle.env) for handle in self._of_envs]
        super().__init__(config, task, [RenderedHandle(n) for n in range(low, high)])
        for i, handle in enumerate(self.handles):
            handle.env = self._envs[i // self._size]
        self.active, self.opponent_active, self._opponents = np.zeros((3, high - low), bool)
        self.finished: list[EpisodeEnd] = []

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """The action space of one agent."""
        return self._envs[0].action_space

    def seen(self, i: int) -> Any:
        """Return the last observation of the agent of column i."""
        return self._envs[i // self._size].seen[i % self._size]

    def total(self, i: int) -> float:
        return float(sum(self.returns[j] for j in range(i, i + self._size) if not self._opponents[j]))

    def _columns(self, e: int) -> range:
        """Return the columns of environment e."""
        return range(e * self._size, (e + 1) * self._size)

    def reset_all(self, episode: int) -> None:
        for e in range(len(self._envs)):
            self._reset(e, episode)

    def reset_env(self, i: int, episode: int) -> None:
        self._reset(i // self._size, episode)

    def reported(self, ended: list[EpisodeEnd]) -> list[EpisodeEnd]:
        return self.finished

    def restore(self, episodes: Sequence[EpisodeToRestore], progress: np.ndarray) -> list[bool]:
        restored: list[bool] = []
        for e in range(len(self._envs)):
            own = [episodes[i] for i in self._columns(e)]
            succeeded = self._repeat(e, own, progress)
            if not succeeded:
                self._reset(e, own[0].number + 1)
            restored += [succeeded] * self._size
        return restored

    def _repeat(self, e: int, episodes: Sequence[EpisodeToRestore], progress: np.ndarray) -> bool:
        """Repeat the actions of an episode. Return whether this has restored the environment."""
        recorded = [episode.actions or [] for episode in episodes]
        if episodes[0].actions is None:  # then those of the other agents are unknown, too
            return False
        self._reset(e, episodes[0].number, episodes[0].options)
        for actions in zip(*recorded, strict=True):
            if self._envs[e].done:
                return False
            self._advance(e, actions)
            progress += 1
        hashes = [episode.expected_hash for episode in episodes]
        return not self._envs[e].done and hashes == [self.hashes[i] for i in self._columns(e)]

    def close(self) -> None:
        for handle in self._of_envs:
            handle.close()

    def _step_environments(
        self, actions: list[Any], rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
    ) -> dict[int, EnvError]:
        self.finished = []
        for e in range(len(self._envs)):
            columns = slice(self._columns(e).start, self._columns(e).stop)
            self._stepped[columns] = played = actions[columns.start] is not None
            results = self._advance(e, actions[columns]) if played else (0.0, False, False)
            rewards[columns], terminated[columns], truncated[columns] = results
        return {}

    def _advance(self, e: int, actions: Sequence[Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Step environment e. Returns (rewards, terminated, truncated) of its columns."""
        try:
            with self._of_envs[e].generators:
                results = self._envs[e].advance(actions)
        except FAILURES as error:
            raise self._raised(self._columns(e).start, "step", error) from error
        for k, i in enumerate(self._columns(e)):
            self.hashes[i] = zlib.crc32(_DOUBLE.pack(results[0][k]), self.hashes[i])
        self._store(e, "step")
        return results

    def _reset(self, e: int, episode: int, options: Options | None = None) -> None:
        """Start the episode with this number in environment e. options: of its reset. None: `self.options`."""
        columns, options = self._columns(e), self.options if options is None else options
        for i in columns:
            self._begin_episode(i, episode)
        handle = self._of_envs[e]
        handle.index = self.handles[columns.start].index // self._size  # an evaluation may have changed it
        self._opponents[columns.start : columns.stop] = self._seats(e, episode)
        handle.reset(episode, options)
        for i in columns:
            self.handles[i].seed = handle.seed
        for leaf in self.obs:
            leaf[columns.start : columns.stop] = 0
        self._store(e, "reset")
        self._hide()
        for i in columns:
            self._check_finite(i, "reset", self._env_obs[i])

    def _seats(self, e: int, episode: int) -> Any:
        """Return which agents opponents play in an episode: bool [A], or False for none."""
        opponents = self._options.self_play
        if opponents is None:
            return False
        if opponents:
            return [name in opponents for name in self._envs[e].names]
        seat = keyed_generator(self._config.seed, 4, index=self._of_envs[e].stream, epoch=episode).integers(self._size)
        return np.arange(self._size) != seat

    def _store(self, e: int, call: str) -> None:
        """Store the new observations of environment e, continue the hashes, and set which columns are active."""
        env = self._envs[e]
        for k, i in enumerate(self._columns(e)):
            self.active[i] = env.active[k] and not self._opponents[i]
            self.opponent_active[i] = env.active[k] and self._opponents[i]
            if env.updated[k]:
                self._store_leaves(i, call, env.seen[k], self.hashes[i])

    def _read_info(self, key: InfoKey, indices: Sequence[int]) -> np.ndarray:
        numbers = np.full(len(indices), np.nan)
        for j, i in enumerate(indices):
            env, k = self._envs[i // self._size], i % self._size
            if key.how == "last" or env.updated[k]:  # the last info of an idle agent counts once
                numbers[j] = number_of(env.infos[k], key)
        return numbers

    def _error(self, i: int, message: str, details: str = "") -> EnvError:
        return self._of_environment(i, f"agent {self._envs[i // self._size].names[i % self._size]}: {message}", details)

    def _raised(self, i: int, call: str, error: BaseException) -> EnvError:
        reraise_ctrl_c(error)
        return self._of_environment(i, f"{call} raised {describe_error(error)}", user_traceback(error))

    def _of_environment(self, i: int, message: str, details: str) -> EnvError:
        error = super()._error(i, message, details)
        return EnvError(error.env_index // self._size, error.message, details=error.details)

    def _begin_next(self, indices: Sequence[int]) -> None:
        for e in sorted({i // self._size for i in indices}):
            if self._envs[e].done:
                columns = self._columns(e)
                total, length = self.total(columns.start), int(self.lengths[columns.start])
                number, crc = self.handles[columns.start].episode, self.hashes[columns.start]
                end = EpisodeEnd(columns.start, (), False, False, total, length, self.info_of(e), number, crc)
                self.finished.append(end)
                self._reset(e, number + 1)

    def info_of(self, e: int) -> dict[str, float]:
        """Return the numbers of `info` as means over the agents that the policy plays, and each agent's return."""
        parts = self.episode_info([i for i in self._columns(e) if not self._opponents[i]])
        found = {name: [part[name] for part in parts if name in part] for part in parts for name in part}
        means = {name: sum(values) / len(values) for name, values in found.items()}
        columns = self._columns(e)
        returns, opponents = self.returns[columns], self._opponents[columns]
        results = {f"return/{name}": number for name, number in zip(self._envs[e].names, returns.tolist(), strict=True)}
        if opponents.any():
            lead = np.sign(mean(returns[~opponents].tolist()) - mean(returns[opponents].tolist()))
            game = dict(zip(RESULTS, (float(lead == sign) for sign in (1, 0, -1)), strict=True))
            slot = self._options.slot_of(self._config.first_row + self.handles[columns.start].index)
            results |= game | {f"{result}/{slot}": value for result, value in game.items()}
        return means | {PREFIX + name: value for name, value in results.items()}
