"""Collecting rollouts: T steps of a contiguous range of environments. This module knows nothing about processes.

Acting is a pure function of (weights, observation, recurrent state, noise). The noise of a whole rollout is drawn ahead
from a generator for each environment, and every reduction is per environment. So the numbers of an environment do not
depend on where the range begins or ends.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
import torch

from shmppo.config.train_config import TrainConfig
from shmppo.envs.envpool_vector_env import EnvPoolVectorEnv
from shmppo.envs.spec import Task
from shmppo.envs.timed import TimedSyncVectorEnv
from shmppo.envs.vector_env import EpisodeEnd, SyncVectorEnv, VectorEnv
from shmppo.models.actor_critic import ActorCritic
from shmppo.models.normalization import column_moments
from shmppo.parallel.shared_buffers import Carry, Rollout, SharedBuffers
from shmppo.sampling.action_log import EpisodeInProgress
from shmppo.sampling.actor import Actor
from shmppo.sampling.batch_invariance import inference_batches
from shmppo.utils.phase_timer import PhaseTimer
from shmppo.utils.rng import action_noise_generator


def make_vector_env(config: TrainConfig, task: Task, buffers: SharedBuffers, low: int, high: int) -> VectorEnv:
    """The environments low … high − 1, stepped by the configured backend."""
    own = slice(low, high)
    if config.env_backend == "envpool":
        begun = np.max([carry.episode[own] for carry in buffers.carries], axis=0) + 1
        return EnvPoolVectorEnv(config, task, low, high, begun.tolist())
    if config.step_times:
        return TimedSyncVectorEnv(config, task, low, high, buffers.timings.step_seconds[:, own])
    return SyncVectorEnv(config, task, low, high)


def own_columns(rollout: Rollout, own: slice) -> Rollout:
    """The columns of some environments of every [T, N, …] array of a rollout; of [N, …] arrays their rows."""
    by_env = ("state_drift", "valid_steps", "obs_moments")
    parts = {
        name: array[own] if name in by_env else array[:, own] for name, array in vars(rollout).items() if name != "obs"
    }
    return Rollout(**parts, obs=tuple(leaf[:, own] for leaf in rollout.obs))


class SequenceStarts:
    """Where the sequences of each environment begin, and the recurrent states that they begin with.

    A sequence begins at step 0, at an episode's start, and `sequence_steps` after the sequence before it.
    """

    def __init__(self, config: TrainConfig, count: int) -> None:
        self._config = config
        self._begin = np.zeros(count, np.int64)  # step at which the present sequence began
        self._next_slot = np.zeros(count, np.int64)
        self.next_step = 0
        """The earliest step at which a sequence begins or a state must be stored."""

    def reset(self) -> None:
        """Begin a rollout."""
        # As if every sequence had begun a full length ago, so that one begins at step 0.
        self._begin[:] = -self._config.sequence_steps
        self._next_slot[:] = 0
        self.next_step = 0

    def update(self, t: int, first: np.ndarray, states: np.ndarray, stored: np.ndarray) -> None:
        """Store the states before step t of the sequences that begin there, or --burn-in steps later.

        An episode begins with a zero state, which is not stored. If a state was stored for a sequence that then never
        begins, because its episode ended, the next state overwrites it.

        Args:
            first: [own] bool, an episode begins; states: [own, S]; stored: [C, own, S], written.
        """
        config = self._config
        due = self._begin + config.sequence_steps  # where the next sequences begin
        on_time = due == t
        if config.recurrent:
            keep = (on_time if t == 0 else due == t + config.burn_in) & ~first & (due < config.rollout_steps)
            kept = np.flatnonzero(keep)
            stored[self._next_slot[kept], kept] = states[kept]
            self._next_slot += on_time & ~first
        self._begin[on_time | first] = t
        due = self._begin + config.sequence_steps
        self.next_step = int(np.where(due - config.burn_in > t, due - config.burn_in, due).min())


class Collector:
    """Collects the columns low … high − 1 of the shared rollout."""

    def __init__(
        self,
        config: TrainConfig,
        task: Task,
        model: ActorCritic,
        buffers: SharedBuffers,
        *,
        low: int,
        high: int,
        progress: np.ndarray,
    ) -> None:
        """progress: [2], this range's row of `Control.progress`."""
        self._config, self._task, self._buffers = config, task, buffers
        self._progress = progress
        self._own = slice(low, high)
        self._envs = make_vector_env(config, task, buffers, low, high)
        batches = inference_batches(model, task.distribution, low, high, config.inference_rows)
        steps = config.rollout_steps
        self._actor = Actor(config, model, task.distribution, self._envs.obs, batches, noise_steps=steps)
        self._rollout = own_columns(buffers.rollout, self._own)
        count = high - low
        self._first = np.ones(count, bool)
        self._actions = np.zeros((count, task.distribution.action_size), np.float32)
        self._params = np.zeros((steps, count, task.distribution.num_params), np.float32)
        self._sequences = SequenceStarts(config, count)
        self._normalized = task.observation.normalized_slices if config.normalize_obs else []

    def start(self) -> None:
        """Begin episode 0 of every environment, and write the carry that iteration 0 reads."""
        self._envs.reset_all(0)
        self._write_carry(self._buffers.carries[0])

    @torch.inference_mode()
    def restore(self, iteration: int, episodes: list[EpisodeInProgress]) -> tuple[int, ...]:
        """Bring every environment to its state before `iteration`, by a snapshot or by replaying its episode.

        Returns:
            Indices of the environments that could not be restored. Their next episode has begun, and their carry says
            so.
        """
        carry, lost = self._buffers.carries[iteration % 2], []
        self._progress[:] = iteration * self._config.rollout_steps, 0
        for i, episode in enumerate(episodes):
            n = episode.env_index
            self._progress[1] += 1
            if not self._restore_env(i, episode, carry):
                lost.append(n)
                for carried, obs in zip(carry.obs, self._envs.obs, strict=True):
                    carried[n] = obs[i]
                carry.first[n] = True
                carry.state[n] = 0.0
                carry.episode[n] = episode.number + 1
                carry.episode_return[n] = 0.0
                carry.episode_length[n] = 0
                carry.episode_hash[n] = self._envs.hashes[i]
        return tuple(lost)

    def _restore_env(self, i: int, episode: EpisodeInProgress, carry: Carry) -> bool:
        """Restore environment i of the range; if that fails, begin its next episode and return False."""
        n = episode.env_index
        if self._task.snapshot is not None:
            self._envs.reset_env(i, episode.number)
            self._envs.handles[i].restore_snapshot(carry.snapshot[n])
            return True
        if episode.actions is None or self._task.seeding != "episode":
            self._envs.reset_env(i, episode.number + 1)
            return False
        actions = self._task.distribution.to_env(episode.actions)
        expected = int(carry.episode_hash[n])
        return self._envs.replay(i, episode.number, actions, expected, self._progress[1:])

    def close(self) -> None:
        self._envs.close()

    @torch.inference_mode()
    def collect(self, iteration: int, timer: PhaseTimer) -> None:
        """Write this range's columns of the rollout, and of the carry for the next iteration.

        Raises:
            EnvError: naming the environment that raised.
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
            if t == self._sequences.next_step:
                self._sequences.update(t, self._first, actor.states, rollout.sequence_state)
            timer.switch("inference")
            actor.act(self._actions, self._params[t], rollout.value[t], t)
            rollout.actions[t] = self._actions
            actions = self._task.distribution.to_env(self._actions)
            timer.switch("environment")
            ended = envs.step(actions, rollout.reward[t], rollout.terminated[t], rollout.truncated[t])
            timer.switch("other")
            self._first[:] = False
            if ended:
                self._sequences.next_step = t + 1
                self._end_episodes(t, ended, timer)
        timer.switch("inference")
        self._finish_rollout(t + 1)
        timer.switch("other")
        self._write_carry(self._buffers.carries[(iteration + 1) % 2])
        self._buffers.control.finished_rollouts[self._own] = iteration + 1

    def _steps(self, iteration: int) -> Iterable[int]:
        """The steps of a rollout: all T, or those before the learner stops the rollout early."""
        steps, minimum = range(self._config.rollout_steps), self._config.min_steps
        if self._config.preempt_fraction is None:
            return steps
        stop_early = self._buffers.control.stop_early
        return itertools.takewhile(lambda t: t < minimum or stop_early[0] <= iteration, steps)

    def _begin_rollout(self, iteration: int) -> None:
        """Load weights, statistics, and carry; draw the rollout's noise."""
        config, own, envs, carry = self._config, self._own, self._envs, self._buffers.carries[iteration % 2]
        self._actor.load(self._buffers.published.obs_mean, self._buffers.published.obs_scale)
        for carried, obs in zip(carry.obs, envs.obs, strict=True):
            obs[:] = carried[own]
        envs.returns[:] = carry.episode_return[own].tolist()
        envs.lengths[:] = carry.episode_length[own].tolist()
        envs.hashes[:] = carry.episode_hash[own].tolist()
        self._first[:] = carry.first[own]
        self._actor.states[:] = carry.state[own]
        noise = [
            self._task.distribution.noise(
                action_noise_generator(config.seed, config.first_env + handle.index, iteration), config.rollout_steps
            )
            for handle in envs.handles
        ]
        self._actor.load_noise(np.stack(noise, axis=1))  # [T, own, noise size]
        self._sequences.reset()

    def _end_episodes(self, t: int, ended: list[EpisodeEnd], timer: PhaseTimer) -> None:
        """Record the episodes that ended with step t, bootstrap the truncated ones, reset the recurrent states."""
        rollout = self._rollout
        for end in ended:
            rollout.ended_return[t, end.i] = end.episode_return
            rollout.ended_length[t, end.i] = end.length
            self._first[end.i] = True
            if end.failed and self._config.gamma > 0:
                # A failed step has no outcome. This bootstrap makes its advantage 0.
                rollout.bootstrap[t, end.i] = rollout.value[t, end.i] / self._config.gamma
        truncated = [end for end in ended if not end.terminated and not end.failed]
        if truncated:
            timer.switch("inference")
            finals = [torch.from_numpy(leaf).clone() for leaf in self._envs.obs]
            for end in truncated:
                for leaf, final in zip(finals, end.final, strict=True):
                    leaf[end.i] = torch.from_numpy(final)
            values = self._actor.values_of(finals)
            for end in truncated:
                rollout.bootstrap[t, end.i] = values[end.i]
            timer.switch("other")
        for end in ended:
            self._actor.states[end.i] = 0.0

    def _finish_rollout(self, valid_steps: int) -> None:
        """Compute what is computed once per rollout: last values, log-probabilities, moments of observations.

        valid_steps: steps of the rollout. Later steps are stale and are set to zero.
        """
        rollout, distribution = self._rollout, self._task.distribution
        values = self._actor.values_of([torch.from_numpy(leaf) for leaf in self._envs.obs])
        np.copyto(rollout.bootstrap[valid_steps - 1], values, where=~self._first)
        rollout.valid_steps[:] = valid_steps
        for array in (rollout.reward, rollout.first, rollout.terminated, rollout.truncated):
            array[valid_steps:] = 0
        if self._config.objective == "penalty":
            rollout.policy_params[:] = self._params
        for i in range(len(self._first)):
            params = torch.from_numpy(self._params[:, i].copy())
            actions = torch.from_numpy(rollout.actions[:, i].copy())
            log_prob = distribution.log_prob(params, actions)
            if self._config.ratio == "joint":
                log_prob = log_prob.sum(-1, keepdim=True)
            rollout.log_prob[:, i] = log_prob.numpy()
            for leaf, part in zip(rollout.obs, self._normalized, strict=False):
                if part is not None:
                    mean, m2 = column_moments(leaf[:valid_steps, i])
                    rollout.obs_moments[i, 0, part], rollout.obs_moments[i, 1, part] = mean, m2

    def _write_carry(self, carry: Carry) -> None:
        own, envs = self._own, self._envs
        for carried, obs in zip(carry.obs, envs.obs, strict=True):
            carried[own] = obs
        carry.first[own] = self._first
        carry.episode_return[own] = envs.returns
        carry.episode_length[own] = envs.lengths
        carry.episode_hash[own] = envs.hashes
        carry.episode[own] = [handle.episode for handle in envs.handles]
        for handle, snapshot in zip(envs.handles, carry.snapshot[own], strict=True):
            handle.save_snapshot(snapshot)
        carry.state[own] = self._actor.states
