"""Sampling: T steps of one contiguous range of environments into one view. Knows nothing of processes.

Acting is a pure function of (weights, observation, state, noise); the noise of a whole rollout is drawn
ahead from each environment's own stream, and every reduction is per environment. So the columns that a
range produces do not depend on where the range begins or ends.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
import torch

from shmppo.config.train_config import TrainConfig
from shmppo.envs.envpool import EnvPoolVectorEnv
from shmppo.envs.spec import Task
from shmppo.envs.sync import SyncVectorEnv, TimedSyncVectorEnv
from shmppo.envs.vector_env import EpisodeEnd, VectorEnv
from shmppo.models.actor_critic import ActorCritic
from shmppo.models.distributions import Distribution
from shmppo.models.inference import ActingNetwork, inference_batches
from shmppo.models.normalization import column_moments, leaf_statistics, normalize_leaf
from shmppo.parallel.shared_buffers import SharedBuffers
from shmppo.sampling.action_log import EpisodeInProgress
from shmppo.utils.phase_timer import PhaseTimer
from shmppo.utils.rng import action_noise_generator

_STEP_FIELDS = (
    "first", "value", "actions", "reward", "terminated", "truncated", "bootstrap", "log_prob", "policy_params",
    "ended_return", "ended_length",
)  # fmt: skip


class Collector:
    """Samples the columns low … high − 1 of the shared rollout."""

    def __init__(
        self,
        config: TrainConfig,
        task: Task,
        model: ActorCritic,
        arena: SharedBuffers,
        *,
        low: int,
        high: int,
        progress: np.ndarray,
    ) -> None:
        """progress: [2], this range's row of the control table (layout.PROGRESS)."""
        self._config = config
        self._arena = arena
        self._task = task
        self._distribution: Distribution = task.distribution
        self._progress = progress
        self._own = slice(low, high)
        self._leaves = task.observation.leaves
        self._parts = task.observation.normalized
        self._batch = self._make_batch()
        self._obs = [torch.from_numpy(leaf) for leaf in self._batch.obs]
        self._tiles, rows = inference_batches(model, task.distribution, low, high, config.inference_rows)
        # One tile more than owned: scratch for values that are not acted on.
        self.network = ActingNetwork(model, task.distribution, tiles=len(self._tiles) + 1, rows=rows)
        self._network_params, self._network_values = self.network.params.numpy(), self.network.values.numpy()
        # Tiles follow each other in memory, so the rows of this range are one run of rows.
        skipped = low % config.inference_rows
        self._own_states = self.network.state.flatten(0, 1)[skipped : skipped + high - low].numpy()  # [own, S]
        count, T = high - low, config.rollout_steps
        self._first = np.ones(count, bool)
        self._actions = np.zeros((count, task.distribution.action_size), np.float32)
        # The whole rollout's noise, in tiles like everything that enters a numeric call.
        self._noise = torch.zeros(len(self._tiles), T, rows, task.distribution.noise_size)
        # Statistics as frozen for a phase; what shows a leaf reads these views.
        self._obs_mean, self._obs_scale = torch.zeros(task.observation.numbers), torch.ones(task.observation.numbers)
        self._statistics = leaf_statistics(self._parts, self._obs_mean, self._obs_scale, config.normalize_obs)
        self._tile_views = [
            (
                [
                    (leaf[tile.own], statistics, seen[tile.index, tile.rows])
                    for leaf, statistics, seen in zip(self._obs, self._statistics, self.network.obs, strict=True)
                ],
                self._noise[tile.index].unbind(0),
            )
            for tile in self._tiles
        ]
        self._params = np.zeros((T, count, task.distribution.num_params), np.float32)
        self._row_begin = np.zeros(count, np.int64)  # step at which the row in progress began
        self._next_slot = np.zeros(count, np.int64)

    def _make_batch(self) -> VectorEnv:
        config, low, high = self._config, self._own.start, self._own.stop
        if config.env_backend == "envpool":
            begun = self._arena.array("carry_episode")[:, self._own].max(axis=0) + 1
            return EnvPoolVectorEnv(config, self._task, low, high, begun.tolist())
        if config.step_times:
            return TimedSyncVectorEnv(config, self._task, low, high, self._arena.array("step_seconds")[:, self._own])
        return SyncVectorEnv(config, self._task, low, high)

    def start(self) -> None:
        """Begin episode 0 of every environment and write the carry that iteration 0 reads."""
        self._batch.begin(0)
        self._write_carry(0)

    @torch.inference_mode()
    def restore(self, iteration: int, episodes: list[EpisodeInProgress]) -> tuple[int, ...]:
        """Bring every environment to where it was before `iteration`, by replaying its episode in progress.

        Returns:
            Indices of the environments that did not get there; their carry is that of the next episode's start.
        """
        carry, read, lost = iteration % 2, self._arena.array, []
        self._progress[:] = iteration * self._config.rollout_steps, 0
        for i, episode in enumerate(episodes):
            n = episode.env_index
            self._progress[1] += 1
            if not self._bring_back(i, episode, carry):
                lost.append(n)
                for leaf, obs in zip(self._leaves, self._batch.obs, strict=True):
                    read(f"carry_{leaf.field}")[carry, n] = obs[i]
                read("carry_first")[carry, n] = True
                read("carry_state")[carry, n] = 0.0
                read("carry_episode")[carry, n] = episode.number + 1
                read("carry_return")[carry, n] = 0.0
                read("carry_length")[carry, n] = 0
                read("carry_hash")[carry, n] = self._batch.hashes[i]
        return tuple(lost)

    def _bring_back(self, i: int, episode: EpisodeInProgress, carry: int) -> bool:
        """Bring environment i of the range to where its episode was; if that fails, to the start of the next one."""
        read, n = self._arena.array, episode.env_index
        if self._task.snapshot is not None:
            self._batch.begin_one(i, episode.number)
            self._batch.handles[i].restore_snapshot(read("carry_snapshot")[carry, n])
            return True
        if episode.actions is None or self._task.seeding != "episode":
            self._batch.begin_one(i, episode.number + 1)
            return False
        actions = self._distribution.to_env(episode.actions)
        expected = int(read("carry_hash")[carry, n])
        return self._batch.replay(i, episode.number, actions, expected, self._progress[1:])

    def close(self) -> None:
        self._batch.close()

    @torch.inference_mode()
    def collect(self, iteration: int, timer: PhaseTimer) -> None:
        """Write this range's columns of the rollout, and of the carry for the next iteration.

        Raises:
            EnvError: naming the environment that raised.
        """
        timer.switch("inference")
        self._begin_rollout(iteration)
        timer.switch("other")
        own = {name: self._arena.array(name)[:, self._own] for name in _STEP_FIELDS}
        kept = [self._arena.array(leaf.field)[:, self._own] for leaf in self._leaves]
        next_row = 0  # the earliest step at which a row begins
        for t in self._steps(iteration):
            self._progress[0] = iteration * self._config.rollout_steps + t + 1
            for rows, obs in zip(kept, self._batch.obs, strict=True):
                rows[t] = obs
            own["first"][t] = self._first
            if t == next_row:
                next_row = self._begin_rows(t)
            timer.switch("inference")
            self._act(t, own["value"][t])
            own["actions"][t] = self._actions
            actions = self._distribution.to_env(self._actions)
            timer.switch("environment")
            ended = self._batch.step(actions, own["reward"][t], own["terminated"][t], own["truncated"][t])
            timer.switch("other")
            self._first[:] = False
            if ended:
                next_row = t + 1
                self._end_episodes(t, ended, own, timer)
        timer.switch("inference")
        self._finish_rollout(own, t + 1)
        timer.switch("other")
        self._write_carry((iteration + 1) % 2)
        self._arena.array("rollouts")[self._own] = iteration + 1

    def _steps(self, iteration: int) -> Iterable[int]:
        """The steps of a rollout: all T, or those up to the moment at which the learner halts it."""
        steps, least = range(self._config.rollout_steps), self._config.min_steps
        if self._config.preempt_fraction is None:
            return steps
        halt = self._arena.array("halt")
        return itertools.takewhile(lambda t: t < least or halt[0] <= iteration, steps)

    def _begin_rollout(self, iteration: int) -> None:
        """Take over weights, statistics and carry; draw the rollout's noise."""
        config, read, carry, own = self._config, self._arena.array, iteration % 2, self._own
        self.network.load()
        self._obs_mean.copy_(self._arena.tensor("obs_mean"))
        self._obs_scale.copy_(self._arena.tensor("obs_scale"))
        for leaf, obs in zip(self._leaves, self._batch.obs, strict=True):
            obs[:] = read(f"carry_{leaf.field}")[carry, own]
        self._batch.returns[:] = read("carry_return")[carry, own].tolist()
        self._batch.lengths[:] = read("carry_length")[carry, own].tolist()
        self._batch.hashes[:] = read("carry_hash")[carry, own].tolist()
        self._first[:] = read("carry_first")[carry, own]
        self._own_states[:] = read("carry_state")[carry, own]
        noise = [
            self._distribution.noise(
                action_noise_generator(config.seed, config.first_env + slot.index, iteration), config.rollout_steps
            )
            for slot in self._batch.handles
        ]
        stacked = torch.from_numpy(np.stack(noise, axis=1))  # [T, own, noise size]
        for tile in self._tiles:
            self._noise[tile.index, :, tile.rows] = stacked[:, tile.own]
        # As if every row had begun a full row ago, so that one begins at step 0.
        self._row_begin[:] = -config.sequence_steps
        self._next_slot[:] = 0

    def _begin_rows(self, t: int) -> int:
        """Keep the states before step t of rows that begin there, or --burn-in steps later.

        An episode's start is a zero state and not kept. A state kept for a row that then never begins gives its slot to
        the next.

        Returns:
            The next step at which a row begins or its state is due, unless an episode ends before.
        """
        config = self._config
        due = self._row_begin + config.sequence_steps  # where the next rows begin
        on_time = due == t
        if config.recurrent:
            keep = (on_time if t == 0 else due == t + config.burn_in) & ~self._first & (due < config.rollout_steps)
            kept = np.flatnonzero(keep)
            self._arena.array("sequence_state")[self._next_slot[kept], self._own.start + kept] = self._own_states[kept]
            self._next_slot += on_time & ~self._first
        self._row_begin[on_time | self._first] = t
        due = self._row_begin + config.sequence_steps
        return int(np.where(due - config.burn_in > t, due - config.burn_in, due).min())

    def _act(self, t: int, value: np.ndarray) -> None:
        """Actions and values [own] of step t; keeps the policy parameters for the log-probabilities."""
        network, params = self.network, self._params[t]
        for tile, (leaves, noise) in zip(self._tiles, self._tile_views, strict=True):
            for obs, statistics, seen in leaves:
                normalize_leaf(obs, statistics, out=seen)
            network.step(tile.index)
            sampled = self._distribution.sample(network.params, noise[t])
            self._actions[tile.own] = sampled.numpy()[tile.rows]
            params[tile.own] = self._network_params[tile.rows]
            value[tile.own] = self._network_values[tile.rows, 0]

    def _end_episodes(self, t: int, ended: list[EpisodeEnd], own: dict[str, np.ndarray], timer: PhaseTimer) -> None:
        """Book the episodes that ended with step t; bootstrap those only truncated, then reset the states."""
        for one in ended:
            own["ended_return"][t, one.i] = one.total
            own["ended_length"][t, one.i] = one.length
            self._first[one.i] = True
            if one.bad and self._config.gamma > 0:
                # The step has no outcome: as if it had led to its own value, so that its advantage is 0.
                own["bootstrap"][t, one.i] = own["value"][t, one.i] / self._config.gamma
        truncated = [one for one in ended if not one.terminated and not one.bad]
        if truncated:
            timer.switch("inference")
            finals = [leaf.clone() for leaf in self._obs]
            for one in truncated:
                for leaf, final in zip(finals, one.final, strict=True):
                    leaf[one.i] = torch.from_numpy(final)
            values = self._values_ahead(finals)
            for one in truncated:
                own["bootstrap"][t, one.i] = values[one.i]
            timer.switch("other")
        for one in ended:
            self._own_states[one.i] = 0.0

    def _values_ahead(self, obs: list[torch.Tensor]) -> np.ndarray:
        """V(obs, present state) [own] of observations [own, …] per leaf, computed in the scratch tile."""
        values, scratch = np.empty(len(self._first), np.float32), len(self._tiles)
        for tile in self._tiles:
            self.network.state[scratch] = self.network.state[tile.index]
            for leaf, statistics, seen in zip(obs, self._statistics, self.network.obs, strict=True):
                seen[scratch].zero_()
                normalize_leaf(leaf[tile.own], statistics, out=seen[scratch, tile.rows])
            self.network.step(scratch)
            values[tile.own] = self._network_values[tile.rows, 0]
        return values

    def _finish_rollout(self, own: dict[str, np.ndarray], taken: int) -> None:
        """What is computed once per rollout: the values after it, log-probabilities, observation moments.

        taken: its steps; what the arena holds behind them is an earlier rollout's, and made to look like nothing.
        """
        np.copyto(own["bootstrap"][taken - 1], self._values_ahead(self._obs), where=~self._first)
        self._arena.array("taken")[self._own] = taken
        for name in ("reward", "first", "terminated", "truncated"):
            own[name][taken:] = 0
        if self._config.objective == "penalty":
            own["policy_params"][:] = self._params
        moments = self._arena.array("obs_moments")
        for i, slot in enumerate(self._batch.handles):
            params = torch.from_numpy(self._params[:, i].copy())
            actions = torch.from_numpy(own["actions"][:, i].copy())
            log_prob = self._distribution.log_prob(params, actions)
            if self._config.ratio == "joint":
                log_prob = log_prob.sum(-1, keepdim=True)
            own["log_prob"][:, i] = log_prob.numpy()
            for leaf, part in zip(self._leaves, self._parts, strict=True):
                if part is not None and self._config.normalize_obs:
                    column = self._arena.array(leaf.field)[:taken, slot.index]
                    moments[slot.index, 0, part], moments[slot.index, 1, part] = column_moments(column)

    def _write_carry(self, carry: int) -> None:
        write, own, batch = self._arena.array, self._own, self._batch
        for leaf, obs in zip(self._leaves, batch.obs, strict=True):
            write(f"carry_{leaf.field}")[carry, own] = obs
        write("carry_first")[carry, own] = self._first
        write("carry_return")[carry, own] = batch.returns
        write("carry_length")[carry, own] = batch.lengths
        write("carry_hash")[carry, own] = batch.hashes
        write("carry_episode")[carry, own] = [slot.episode for slot in batch.handles]
        for slot, snapshot in zip(batch.handles, write("carry_snapshot")[carry, own], strict=True):
            slot.keep(snapshot)
        write("carry_state")[carry, own] = self._own_states
