"""The action log, from which environments are restored when a worker is replaced or a run is resumed."""

from __future__ import annotations

import logging

import numpy as np

from shmppo.envs.schedule import Options
from shmppo.parallel.shared_buffers import Rollout
from shmppo.sampling.collector import EpisodeInProgress

log = logging.getLogger(__name__)


def episode_ends(rollout: Rollout) -> np.ndarray:
    """Return whether an episode ended with each step, bool [T, N]. With idle steps: that of all columns."""
    ended: np.ndarray = rollout.joint_end if rollout.joint_end.size else rollout.terminated | rollout.truncated
    return ended


class ActionLog:
    """The actions of the episode in progress of every environment, up to the last committed rollout.

    Seed and actions determine an episode, so a replay restores the environment. Workers keep no copy of the log.

    Attributes:
        iteration: number of committed rollouts. The next rollout starts from the carry that this iteration reads.
        options: options of `reset` (--env-schedule) by the iteration, counted from 1, in which episodes got them: the
            current iteration, and those in which episodes in progress have begun.
    """

    def __init__(self, num_envs: int, action_size: int, limit: int, columns_per_env: int = 1) -> None:
        """Create an empty log.

        Args:
            limit: the log stores no actions of episodes with more steps.
            columns_per_env: each of them has an index of its own.
        """
        self.iteration = 0
        self.options: dict[int, Options] = {}
        self._limit, self._columns_per_env = limit, columns_per_env
        self._action_size = action_size
        self._numbers = [0] * num_envs
        self._began = [1] * num_envs
        self._parts: list[list[np.ndarray]] = [[] for _ in range(num_envs)]
        self._lengths = [0] * num_envs  # steps of the episode in progress, stored or not

    def commit(
        self, actions: np.ndarray, ended: np.ndarray, numbers: np.ndarray, valid_steps: np.ndarray | None = None
    ) -> None:
        """Append a rollout.

        Args:
            actions: [T, N, A], as sampled.
            ended: bool [T, N], whether an episode ended with the step.
            numbers: [N], number of the episode in progress after the rollout.
            valid_steps: [N], number of valid steps of each environment. None: all T.
        """
        steps = len(actions)
        ends = [steps] * len(self._parts) if valid_steps is None else valid_steps.tolist()
        # The step after the last end of an episode; 0 if no episode ended in this rollout.
        begins = np.where(ended.any(axis=0), steps - np.argmax(ended[::-1], axis=0), 0)
        for n, (begin, end) in enumerate(zip(begins.tolist(), ends, strict=True)):
            if begin:
                self._parts[n].clear()
                self._lengths[n] = 0
                self._began[n] = self.iteration + 1
            self._lengths[n] += end - begin
            if self._lengths[n] > self._limit:
                if self._parts[n]:
                    message = "environment %d: the episode has more than %d steps, so it cannot be replayed"
                    log.info(message, n // self._columns_per_env, self._limit)
                self._parts[n].clear()
            elif begin < end:
                self._parts[n].append(actions[begin:end, n].copy())
        self._numbers = numbers.tolist()
        self.iteration += 1

    def begin_iteration(self, options: Options) -> None:
        """Set the options of the episodes that begin in the next iteration."""
        needed = {*self._began, self.iteration}  # the next options may depend on those of the last iteration
        self.options = {began: known for began, known in self.options.items() if began in needed}
        self.options[self.iteration + 1] = options

    def mark_lost(self, env_index: int) -> None:
        """Drop the episode of an environment that could not be restored and has begun its next episode."""
        self._numbers[env_index] += 1
        self._began[env_index] = self.iteration + 1
        self._parts[env_index].clear()
        self._lengths[env_index] = 0

    def episodes(self, columns: range) -> list[EpisodeInProgress]:
        """Return the episodes in progress of the environments `columns`."""
        return [
            EpisodeInProgress(
                n,
                self._numbers[n],
                self._joined(n) if self._lengths[n] <= self._limit else None,
                self._began[n],
                self.options.get(self._began[n]),
            )
            for n in columns
        ]

    def _joined(self, n: int) -> np.ndarray:
        """Return the stored actions of environment n as one array, [steps, A]."""
        if not self._parts[n]:
            return np.zeros((0, self._action_size), np.float32)
        joined = np.concatenate(self._parts[n])
        self._parts[n] = [joined]
        return joined

    def state(self) -> dict[str, np.ndarray]:
        """Return the log as arrays for a checkpoint. The actions of all environments are concatenated."""
        joined = [self._joined(n) for n in range(len(self._parts))]
        return {
            "numbers": np.array(self._numbers),
            "began": np.array(self._began),
            "lengths": np.array(self._lengths),
            "stored": np.array([len(actions) for actions in joined]),
            "actions": np.concatenate(joined),
        }

    def load(self, state: dict[str, np.ndarray], iteration: int) -> None:
        """Restore what `state` returned, in a run that resumes at `iteration`."""
        self.iteration = iteration
        self._numbers, self._lengths = state["numbers"].tolist(), state["lengths"].tolist()
        self._began = state["began"].tolist()
        ends = np.cumsum(state["stored"])
        self._parts = [[part.copy()] if len(part) else [] for part in np.split(state["actions"], ends[:-1])]
