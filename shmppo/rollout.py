"""Sampling: T steps of one contiguous range of environments into one view. Knows nothing of processes.

Acting is a pure function of (weights, observation, state, noise); the noise of a whole rollout is drawn
ahead from each environment's own stream, and every reduction is per environment. So the columns that a
range produces do not depend on where the range begins or ends.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from shmppo.config import TrainConfig
from shmppo.distributions import Distribution
from shmppo.envs import EnvironmentSlot, Task
from shmppo.inference import ActingNetwork
from shmppo.layout import Arena
from shmppo.model import ActorCritic
from shmppo.normalize import CLIP, column_moments
from shmppo.streams import action_noise
from shmppo.timers import PhaseTimer

_STEP_FIELDS = (
    "obs", "first", "value", "actions", "reward", "terminated", "truncated", "bootstrap", "log_prob"
)  # fmt: skip


@dataclass(frozen=True)
class _Tile:
    """The part of tile `index` that this range owns: its rows, and the same environments within the range."""

    index: int
    rows: slice
    own: slice


def tiles_of(low: int, high: int, rows: int) -> list[_Tile]:
    """The tiles that environments low … high − 1 lie in, environment n being row n mod `rows`."""
    tiles = []
    for index, tile in enumerate(range(low // rows, (high - 1) // rows + 1)):
        begin, end = max(low, tile * rows), min(high, (tile + 1) * rows)
        tiles.append(_Tile(index, slice(begin - tile * rows, end - tile * rows), slice(begin - low, end - low)))
    return tiles


class Collector:
    """Samples the columns low … high − 1 of the shared rollout."""

    def __init__(
        self,
        config: TrainConfig,
        task: Task,
        model: ActorCritic,
        arena: Arena,
        *,
        low: int,
        high: int,
        progress: np.ndarray,
    ) -> None:
        """progress: [1], counts the steps taken, so that slow can be told from stalled."""
        self._config = config
        self._arena = arena
        self._distribution: Distribution = task.distribution
        self._progress = progress
        self._own = slice(low, high)
        self._slots = [EnvironmentSlot(config, n) for n in range(low, high)]
        self._tiles = tiles_of(low, high, config.tile)
        # One tile more than owned: scratch for the values of final observations.
        self.network = ActingNetwork(
            model,
            task.distribution,
            tiles=len(self._tiles) + 1,
            rows=config.tile,
            observation_size=task.observation_size,
        )
        count, T = high - low, config.rollout_steps
        self._obs = np.zeros((count, task.observation_size), np.float32)
        self._first = np.ones(count, bool)
        self._actions = np.zeros((count, task.distribution.action_size), np.float32)
        # The whole rollout's noise, in tiles like everything that enters a numeric call.
        self._noise = torch.zeros(T, len(self._tiles), config.tile, task.distribution.noise_size)
        self._params = torch.zeros(T, count, task.distribution.num_params)
        self._row_age = np.zeros(count, np.int64)  # steps since the row in progress began
        self._next_slot = np.zeros(count, np.int64)
        self._episode_return = np.zeros(count)
        self._episode_length = np.zeros(count, np.int64)
        self._obs_mean = self._obs_scale = np.zeros(0, np.float32)

    def start(self) -> None:
        """Begin episode 0 of every environment and write the carry that iteration 0 reads."""
        for i, slot in enumerate(self._slots):
            self._obs[i] = slot.begin(0)
        self._write_carry(0)

    def close(self) -> None:
        for slot in self._slots:
            slot.close()

    @torch.inference_mode()
    def collect(self, iteration: int, timer: PhaseTimer) -> None:
        """Write this range's columns of the rollout, and of the carry for the next iteration.

        Raises:
            EnvironmentFault: naming the environment that raised.
        """
        timer.switch("inference")
        self._begin_rollout(iteration)
        timer.switch("other")
        own = {name: self._arena.array(name)[:, self._own] for name in _STEP_FIELDS}
        for t in range(self._config.rollout_steps):
            self._progress += 1
            own["obs"][t] = self._obs
            own["first"][t] = self._first
            self._store_row_states()
            timer.switch("inference")
            self._act(t, own["value"][t])
            own["actions"][t] = self._actions
            timer.switch("environment")
            rewards, terminated, truncated, finals = self._step_environments(t)
            timer.switch("other")
            own["reward"][t] = rewards
            own["terminated"][t] = terminated
            own["truncated"][t] = truncated
            np.logical_or(terminated, truncated, out=self._first)
            if self._first.any():
                timer.switch("inference")
                self._bootstrap(own["bootstrap"][t], finals)
                timer.switch("other")
                for i in np.flatnonzero(self._first).tolist():
                    self._state_of(i).zero_()
        timer.switch("inference")
        self._finish_rollout(own)
        timer.switch("other")
        self._write_carry((iteration + 1) % 2)

    def _begin_rollout(self, iteration: int) -> None:
        """Take over weights, statistics and carry; draw the rollout's noise."""
        config, read = self._config, self._arena.array
        self.network.load()
        self._obs_mean, self._obs_scale = read("obs_mean").copy(), read("obs_scale").copy()
        carry, own = iteration % 2, self._own
        self._obs[:] = read("carry_obs")[carry, own]
        self._first[:] = read("carry_first")[carry, own]
        self._episode_return[:] = read("carry_return")[carry, own]
        self._episode_length[:] = read("carry_length")[carry, own]
        state = self._arena.tensor("carry_state")[carry, own]
        T = config.rollout_steps
        noise = [self._distribution.noise(action_noise(config.seed, slot.index, iteration), T) for slot in self._slots]
        stacked = torch.from_numpy(np.stack(noise, axis=1))  # [T, own, noise size]
        for tile in self._tiles:
            self.network.state[tile.index, tile.rows] = state[tile.own]
            self._noise[:, tile.index, tile.rows] = stacked[:, tile.own]
        self._row_age[:] = 0
        self._next_slot[:] = 0

    def _store_row_states(self) -> None:
        """Keep the state at steps where a row begins; at an episode's start it is zero and not kept."""
        self._row_age[self._first] = 0
        if self._config.recurrent:
            begins = (self._row_age == 0) & ~self._first
            if begins.any():
                row_state = self._arena.tensor("row_state")
                for i in np.flatnonzero(begins).tolist():
                    row_state[self._next_slot[i], self._own.start + i] = self._state_of(i)
                    self._next_slot[i] += 1
        self._row_age += 1
        self._row_age[self._row_age == self._config.row_steps] = 0

    def _state_of(self, i: int) -> torch.Tensor:
        """The packed state [S] of the i-th own environment."""
        n = self._own.start + i
        tile = n // self._config.tile - self._own.start // self._config.tile
        return self.network.state[tile, n % self._config.tile]

    def _seen_by_policy(self, obs: np.ndarray) -> torch.Tensor:
        """Observations [n, D] as the network gets them: normalised with the statistics frozen for this phase."""
        if not self._config.normalize_obs:
            return torch.from_numpy(obs)
        return torch.from_numpy(np.clip((obs - self._obs_mean) * self._obs_scale, -CLIP, CLIP))

    def _act(self, t: int, value: np.ndarray) -> None:
        """Actions and values [own] of step t; keeps the policy parameters for the log-probabilities."""
        obs = self._seen_by_policy(self._obs)
        for tile in self._tiles:
            self.network.obs[tile.index, tile.rows] = obs[tile.own]
            params, values = self.network.step(tile.index)
            sampled = self._distribution.sample(params, self._noise[t, tile.index])
            self._params[t, tile.own] = params[tile.rows]
            self._actions[tile.own] = sampled.numpy()[tile.rows]
            value[tile.own] = values.numpy()[tile.rows, 0]

    def _step_environments(self, t: int) -> tuple[list[float], list[bool], list[bool], list[tuple[int, np.ndarray]]]:
        """Step every own environment, resetting those that end; their next observations go to `_obs`.

        Returns:
            (rewards, terminated, truncated, (i, final observation) of those only truncated).
        """
        rewards, terminations, truncations = [], [], []
        finals: list[tuple[int, np.ndarray]] = []
        actions = self._distribution.to_env(self._actions)
        for i, (slot, action) in enumerate(zip(self._slots, actions, strict=True)):
            seen, reward, terminated, truncated = slot.step(action)
            self._episode_return[i] += reward
            self._episode_length[i] += 1
            rewards.append(reward)
            terminations.append(terminated)
            truncations.append(truncated)
            if terminated or truncated:
                if not terminated:
                    finals.append((i, seen))
                seen = self._next_episode(t, i)
            self._obs[i] = seen
        return rewards, terminations, truncations, finals

    def _next_episode(self, t: int, i: int) -> np.ndarray:
        """Book the episode that ended with step t and begin the next; returns its first observation."""
        n = self._own.start + i
        self._arena.array("ended_return")[t, n] = self._episode_return[i]
        self._arena.array("ended_length")[t, n] = self._episode_length[i]
        self._episode_return[i] = 0.0
        self._episode_length[i] = 0
        return self._slots[i].begin(self._slots[i].episode + 1)

    def _bootstrap(self, bootstrap: np.ndarray, finals: list[tuple[int, np.ndarray]]) -> None:
        """Values of final observations, with the state after the step: it is not reset yet."""
        for tile in self._tiles:
            inside = [(i, seen) for i, seen in finals if tile.own.start <= i < tile.own.stop]
            if inside:
                members = [i for i, _ in inside]
                obs = self._obs.copy()
                obs[members] = [seen for _, seen in inside]
                bootstrap[members] = self._values_ahead(tile, obs)[[i - tile.own.start for i in members]]

    def _values_ahead(self, tile: _Tile, obs: np.ndarray) -> np.ndarray:
        """V(obs, present state) of a tile's own environments, computed in the scratch tile. obs: [own, D]."""
        scratch = len(self._tiles)
        self.network.state[scratch] = self.network.state[tile.index]
        self.network.obs[scratch] = 0.0
        self.network.obs[scratch, tile.rows] = self._seen_by_policy(obs)[tile.own]
        _, values = self.network.step(scratch)
        return values.numpy()[tile.rows, 0].copy()

    def _finish_rollout(self, own: dict[str, np.ndarray]) -> None:
        """What is computed once per rollout: the values after it, log-probabilities, observation moments."""
        going_on = ~self._first
        for tile in self._tiles:
            values = self._values_ahead(tile, self._obs)
            np.copyto(own["bootstrap"][-1, tile.own], values, where=going_on[tile.own])
        moments = self._arena.array("obs_moments")
        for i, slot in enumerate(self._slots):
            params = self._params[:, i].clone(memory_format=torch.contiguous_format)
            actions = torch.from_numpy(own["actions"][:, i].copy())
            own["log_prob"][:, i] = self._distribution.log_prob(params, actions).sum(-1).numpy()
            if self._config.normalize_obs:
                moments[slot.index, 0], moments[slot.index, 1] = column_moments(own["obs"][:, i])

    def _write_carry(self, carry: int) -> None:
        write, own = self._arena.array, self._own
        write("carry_obs")[carry, own] = self._obs
        write("carry_first")[carry, own] = self._first
        write("carry_return")[carry, own] = self._episode_return
        write("carry_length")[carry, own] = self._episode_length
        write("carry_episode")[carry, own] = [slot.episode for slot in self._slots]
        state = self._arena.tensor("carry_state")[carry, own]
        for tile in self._tiles:
            state[tile.own] = self.network.state[tile.index, tile.rows]
