"""Collect rollouts: T steps of a contiguous range of environments. One process or several may do this.

Acting is a pure function of (weights, observation, recurrent state, noise). The noise of a whole rollout is drawn in
advance, from one generator per environment, and every reduction is per environment, so the data of an environment does
not depend on where the range begins or ends.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from shmppo.config.train_config import TrainConfig
from shmppo.envs.backends import make_range
from shmppo.envs.episode_info import info_row
from shmppo.envs.schedule import Options, read_options
from shmppo.envs.spec import EnvSpec
from shmppo.envs.vector_env import EpisodeEnd, EpisodeToRestore, Progress
from shmppo.models.actor_critic import ActorCritic
from shmppo.parallel.shared_buffers import Carry, Rollout, SharedBuffers, declared_arrays
from shmppo.sampling.actor import Actor, LearnerActing
from shmppo.sampling.extension import used_extensions
from shmppo.sampling.idle_steps import held_starts, hold_back_steps, insert_held_steps, leave_out_idle_steps
from shmppo.spaces.normalization import column_moments
from shmppo.utils.phase_timer import PhaseTimer
from shmppo.utils.rng import ACTION_NOISE, keyed_generator


@dataclass(frozen=True)
class EpisodeInProgress:
    """An episode that has begun and not ended."""

    env_index: int
    """Index of the environment within its rank."""
    number: int
    """Number of the episode in this environment, from 0."""
    actions: np.ndarray | None
    """Actions as sampled, float32 [steps so far, A]. None if the episode is longer than the log's limit."""
    iteration: int
    """The iteration in which it began, counted from 1."""
    options: Options | None = None
    """The options of its reset. None: no options."""


def own_columns(rollout: Rollout, own: slice) -> Rollout:
    """Return views of the part of a rollout that belongs to the environments `own`."""
    declared = declared_arrays(Rollout)

    def part(name: str, array: np.ndarray) -> np.ndarray:
        return array[own] if declared[name]["axes"].startswith("N") else array[:, own]

    arrays = {name: part(name, array) for name, array in vars(rollout).items() if name not in ("obs", "added")}
    added = {name: part(name, array) for name, array in rollout.added.items()}
    return Rollout(**arrays, obs=tuple(leaf[:, own] for leaf in rollout.obs), added=added)


class SequenceStarts:
    """Tracks where the sequences of each environment begin, and stores their initial recurrent states.

    A sequence begins at step 0, at the start of an episode, and `sequence_steps` steps after the sequence before it.

    Attributes:
        next_step: earliest step at which a sequence may begin.
        acted: bool [T, own], with idle columns: whether each column was active at each step.
        last_states: [own, S], with idle columns: recurrent states before the last step at which each was active.
    """

    def __init__(self, config: TrainConfig, states: np.ndarray) -> None:
        """states: recurrent states of the environments, [own, S]."""
        count = len(states)
        self._config = config
        self._begin = np.zeros(count, np.int64)  # step at which the current sequence began
        self._next_slot = np.zeros(count, np.int64)  # slot of the next stored state
        self._steps = np.zeros(count, np.int64)  # with idle columns: the steps at which each was active
        self.acted, self.last_states = np.zeros((config.rollout_steps, count), bool), np.zeros_like(states)
        self.next_step = 0

    def reset(self) -> None:
        """Prepare for the first step of a rollout."""
        # Pretend that the last sequence began L steps ago, so that a sequence begins at step 0.
        self._begin[:] = -self._config.sequence_steps
        self._next_slot[:] = self._steps[:] = 0
        self.next_step = 0

    def update_active(self, t: int, active: Any, first: np.ndarray, states: np.ndarray, stored: np.ndarray) -> None:
        """Update the columns that are active at step t. The steps of each column are counted without idle ones."""
        self.acted[t], self.last_states[active] = active, states[active]
        self.update(self._steps, first, states, stored, active)
        self._steps += active

    def update(
        self, t: int | np.ndarray, first: np.ndarray, states: np.ndarray, stored: np.ndarray, active: Any = True
    ) -> None:
        """Begin the sequences that begin with step t, and store their initial states.

        An episode begins with a zero state, which is not stored.

        Args:
            t: step of the rollout, or of each column [own].
            first: bool [own], whether an episode begins.
            states: [own, S], recurrent states before step t.
            stored: [C, own, S], written.
            active: bool [own], the columns to update.
        """
        config = self._config
        due = self._begin + config.sequence_steps  # step at which the next sequence begins
        on_time = (due == t) & active
        if config.recurrent:
            kept = np.flatnonzero(on_time & ~first)
            stored[self._next_slot[kept], kept] = states[kept]
            self._next_slot[kept] += 1
        self._begin = np.where(on_time | (first & active), t, self._begin)
        due = self._begin + config.sequence_steps
        self.next_step = int(due.min())


class Collector:
    """Steps a range of environments and writes their columns of the shared rollout."""

    def __init__(
        self,
        config: TrainConfig,
        task: EnvSpec,
        model: ActorCritic,
        buffers: SharedBuffers,
        columns: range,
        progress: np.ndarray,
        ask: Callable[[], None] | None = None,
    ) -> None:
        """Create the environments.

        Args:
            model: the network that learns. Each rollout copies its weights.
            columns: indices of the environments.
            progress: [2], row of this process in `Control.progress`.
            ask: lets the learner act for this process. None: it acts itself.

        Raises:
            EnvError: if an environment cannot be created.
        """
        self._config, self._task, self._buffers = config, task, buffers
        self._progress = progress
        self._own = slice(columns.start, columns.stop)
        self._envs = make_range(config, task, columns.start, columns.stop)
        count, envs = len(columns), self._envs
        acting = None if ask is None else LearnerActing(buffers.acting, self._own, ask)
        self._actor = Actor(
            config, model, task.distribution, envs.obs, low=columns.start, active=envs.active, learner=acting
        )
        self._rollout = own_columns(buffers.rollout, self._own)
        self._first = np.ones(count, bool)
        self._params = np.zeros((config.rollout_steps, count, task.distribution.num_params), np.float32)
        self._sequences = SequenceStarts(config, self._actor.states)
        self._extensions = used_extensions(config, task, buffers, envs, columns, progress[1:])
        self._normalized = task.observation.normalized_slices if config.normalize_obs else []

    def start(self) -> None:
        """Begin episode 0 of every environment, and write the carry that iteration 0 reads.

        Raises:
            EnvError: if an environment raises.
        """
        self._load_options()
        self._envs.reset_all(0)
        self._write_carry(self._buffers.carries[0], self._own)

    @torch.inference_mode()
    def restore(self, iteration: int, episodes: list[EpisodeInProgress]) -> tuple[int, ...]:
        """Restore every environment to its state before `iteration`, from a snapshot or by a replay of its episode.

        Args:
            iteration: the iteration that is collected next.
            episodes: the episode in progress of each environment of the range.

        Returns:
            Indices of the environments that could not be restored. They begin their next episode, also in the carry.

        Raises:
            EnvError: if an environment raises.
        """
        carry = self._buffers.carries[iteration % 2]
        self._progress[:] = iteration * self._config.rollout_steps, 0
        self._load_options()
        restored = self._envs.restore([self._to_restore(episode, carry) for episode in episodes], self._progress[1:])
        lost = tuple(one.env_index for one, succeeded in zip(episodes, restored, strict=True) if not succeeded)
        for n in lost:  # before the first rollout of this collector, `_first` is True and the recurrent states are zero
            self._write_carry(carry, slice(n, n + 1))
            carry.held[n : n + 1] = 0
        return lost

    def _to_restore(self, episode: EpisodeInProgress, carry: Carry) -> EpisodeToRestore:
        """Describe an episode in progress for the environments."""
        n, actions = episode.env_index, None
        seeded = self._task.seeding == "episode" or self._config.recording() is not None
        if episode.actions is not None and seeded:
            actions = self._task.distribution.to_env(episode.actions)
        snapshot = None if self._task.snapshot is None else carry.snapshot[n]
        return EpisodeToRestore(episode.number, actions, int(carry.episode_hash[n]), snapshot, episode.options)

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()

    @torch.inference_mode()
    def collect(self, iteration: int, timer: PhaseTimer) -> None:
        """Collect one rollout: write the own columns of `Rollout` and of the carry for the next iteration.

        Args:
            timer: measures the phases "inference", "environment", and "other".

        Raises:
            EnvError: if an environment raises; the error names it.
        """
        timer.switch("inference")
        self._begin_rollout(iteration)
        timer.switch("other")
        envs, actor, rollout = self._envs, self._actor, self._rollout
        for t in self._steps(iteration):
            self._progress[0] = iteration * self._config.rollout_steps + t + 1
            for column, obs in zip(rollout.obs, envs.obs, strict=True):
                column[t] = obs
            rollout.first[t] = self._first
            if envs.active is not None:
                self._sequences.update_active(t, envs.active, self._first, actor.states, rollout.sequence_state)
            elif t == self._sequences.next_step:
                self._sequences.update(t, self._first, actor.states, rollout.sequence_state)
            timer.switch("inference")
            chosen = actor.act(t)
            self._params[t], rollout.value[t] = actor.params, actor.values
            for extension in self._extensions:
                extension.act(chosen, actor.states, t)
            rollout.actions[t] = chosen
            if envs.active is not None:
                rollout.joint_actions[t], rollout.joint_end[t] = chosen, False
            actions = self._task.distribution.to_env(chosen)
            timer.switch("environment")
            ended = envs.step(actions, rollout.reward[t], rollout.terminated[t], rollout.truncated[t])
            timer.switch("other")
            self._first[... if envs.active is None else self._sequences.acted[t]] = False
            if ended:
                self._sequences.next_step = t + 1
                self._end_episodes(t, ended, timer)
        timer.switch("inference")
        self._finish_rollout(iteration, t + 1)
        timer.switch("other")
        self._write_carry(self._buffers.carries[(iteration + 1) % 2], self._own)
        self._buffers.control.finished_rollouts[self._own] = iteration + 1

    def _steps(self, iteration: int) -> Iterable[int]:
        """Iterate over the steps of a rollout: all T, or those before the learner stops the rollout early."""
        steps, minimum = range(self._config.rollout_steps), self._config.min_steps
        stop_early = self._buffers.control.stop_early
        return itertools.takewhile(lambda t: t < minimum or stop_early[0] <= iteration, steps)

    def _begin_rollout(self, iteration: int) -> None:
        """Load the weights, the statistics, and the carry, and draw the noise of the rollout."""
        config, own, envs, carry = self._config, self._own, self._envs, self._buffers.carries[iteration % 2]
        distribution = self._task.distribution
        self._actor.load(self._buffers.published.obs_mean, self._buffers.published.obs_scale)
        self._load_options()
        self._rollout.bootstrap[:] = 0.0
        for carried, current in self._carried(carry):
            current[:] = carried[own]
        envs.hashes[:] = carry.episode_hash[own].tolist()
        rows = [config.first_row + handle.index for handle in envs.handles]
        generators = [keyed_generator(config.seed, ACTION_NOISE, index=row, iteration=iteration) for row in rows]
        # [T, own, noise_size]
        noise = np.stack([distribution.noise(generator, config.rollout_steps) for generator in generators], axis=1)
        self._actor.load_noise(noise)
        for extension in self._extensions:
            extension.begin_rollout(noise)
        self._sequences.reset()
        if envs.active is not None:  # sequences may begin with a step that was held back
            starts = held_starts(carry, own, self._actor.states.shape[1])
            self._sequences.update_active(0, *starts, self._rollout.sequence_state)

    def _load_options(self) -> None:
        """Load the options of the episodes that begin in this iteration."""
        if self._config.env_schedule is not None:
            self._envs.options = read_options(self._buffers.published.reset_options)

    def _end_episodes(self, t: int, ended: list[EpisodeEnd], timer: PhaseTimer) -> None:
        """Record the episodes that ended with step t, bootstrap those that were truncated, and reset their states."""
        rollout, rows_ended = self._rollout, [end.i for end in ended]
        for end in self._envs.reported(ended):
            if self._envs.active is not None:
                columns = slice(end.i, end.i + self._config.columns_per_env)
                rollout.joint_end[t, columns], rollout.ended_length[t, columns] = True, -1
            rollout.ended_return[t, end.i] = end.episode_return
            rollout.ended_length[t, end.i] = end.length
            rollout.ended_episode[t, end.i] = end.number, end.crc
            rollout.ended_info[t, end.i] = info_row(self._config.reported_info, end.info)
        self._first[rows_ended] = True
        truncated = [end for end in ended if not end.terminated and not end.failed]
        if truncated:
            timer.switch("inference")
            finals = [leaf.copy() for leaf in self._envs.obs]
            for end in truncated:
                for leaf, final in zip(finals, end.final, strict=True):
                    leaf[end.i] = final
            rows = [end.i for end in truncated]
            rollout.bootstrap[t, rows] = self._actor.values_of(finals)[rows]
            timer.switch("other")
        self._actor.states[rows_ended] = 0.0

    @np.errstate(over="ignore", invalid="ignore")  # if the policy has diverged, the update says so
    def _finish_rollout(self, iteration: int, valid_steps: int) -> None:
        """Compute what is computed once per rollout: last values, log_probs, and moments of the observations.

        valid_steps: number of steps in this rollout. Later steps are stale. Their rewards and flags are set to zero.
        """
        rollout, distribution = self._rollout, self._task.distribution
        values = self._actor.values_of(self._envs.obs)
        np.copyto(rollout.bootstrap[valid_steps - 1], values, where=~self._first)
        rollout.valid_steps[:] = valid_steps
        rollout.unrepeated[:] = self._envs.unrepeated | Progress.interrupted
        rollout.failed_starts[:], self._envs.failed_starts[:] = self._envs.failed_starts, 0
        if self._envs.active is not None:
            steps, carries = (rollout, self._params, self._sequences.acted), self._buffers.carries
            insert_held_steps(*steps, carries[iteration % 2], self._own)
            waits, states = ~(self._envs.active | self._first), self._sequences.last_states
            hold_back_steps(*steps, states, waits, carries[(iteration + 1) % 2], self._own)
            leave_out_idle_steps(*steps)
        for array in (rollout.reward, rollout.first, rollout.terminated, rollout.truncated):
            array[valid_steps:] = 0
        for extension in self._extensions:
            extension.end_rollout(rollout, iteration, valid_steps)
        if self._config.objective != "clip":
            rollout.policy_params[:] = self._params
        # A contiguous copy: a reduction may round differently with other strides.
        log_prob = distribution.log_prob(distribution.normalized(self._params), np.ascontiguousarray(rollout.actions))
        joint = self._config.ratio == "joint"
        rollout.log_prob[:] = np.add.reduce(log_prob, -1, keepdims=True) if joint else log_prob
        for i in range(len(self._first)):
            for leaf, part in zip(rollout.obs, self._normalized, strict=False):
                if part is not None:
                    mean, m2 = column_moments(leaf[: rollout.valid_steps[i], i])
                    rollout.obs_moments[i, 0, part], rollout.obs_moments[i, 1, part] = mean, m2

    def _write_carry(self, carry: Carry, columns: slice) -> None:
        """Write the state of some own environments and their recurrent states into their columns of `carry`."""
        envs, own = self._envs, slice(columns.start - self._own.start, columns.stop - self._own.start)
        for carried, current in self._carried(carry):
            carried[columns] = current[own]
        carry.episode_hash[columns] = envs.hashes[own]
        carry.episode[columns] = [handle.episode for handle in envs.handles[own]]
        for handle, snapshot in zip(envs.handles[own], carry.snapshot[columns], strict=True):
            handle.save_snapshot(snapshot)

    def _carried(self, carry: Carry) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield each array of a carry for all environments, with the current values of the own ones."""
        envs = self._envs
        yield from zip(carry.obs, envs.obs, strict=True)
        yield carry.first, self._first
        yield carry.state, self._actor.states
        yield carry.episode_return, envs.returns
        yield carry.episode_length, envs.lengths
        yield carry.episode_info, envs.info.combined
