"""Record whole episodes of training while their iterations are executed again. `shmppo.replay` uses this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from shmppo.config.checks import require
from shmppo.config.train_config import TrainConfig
from shmppo.envs.schedule import read_options
from shmppo.envs.spec import EnvSpec
from shmppo.lockstep.action_log import episode_ends
from shmppo.lockstep.learner import Learner
from shmppo.lockstep.worker_pool import WorkerPool
from shmppo.policies.policy import input_names
from shmppo.sampling.actor import Actor


@dataclass
class EpisodeRecord:
    """An episode of training, and what iterations that were executed again have recorded of its environment."""

    row: Mapping[str, float]
    """Its row of episodes.csv."""
    first_iteration: int
    """The earliest iteration in which the step before the episode may be, counted from 1."""
    iterations: list[dict[str, np.ndarray]] = field(default_factory=list)
    """The steps of the environment by name, each [steps, …]."""

    def steps(self) -> tuple[dict[str, np.ndarray], Any]:
        """Return the steps of the episode by name, each [length, …], and the options of its reset.

        Raises:
            ConfigError: if the execution gave another episode than training.
        """
        arrays = {name: np.concatenate([one[name] for one in self.iterations]) for name in self.iterations[0]}
        ended, options = arrays.pop("ended"), arrays.pop("options")
        ends = [*np.flatnonzero(ended[:, 0] == self.row["episode"]), -1]
        names = "episode", "crc", "return", "length"
        for name, value in zip(names, ended[ends[0]].tolist(), strict=True):
            again, recorded = f"{value:.10g}", f"{self.row[name]:.10g}"
            require(
                again == recorded,
                f"this machine does not repeat episode {self.row['episode']:.0f} of environment "
                f"{self.row['environment']:.0f}: {name} is {again}, but episodes.csv has {recorded}; see what shmppo "
                "verify says about the run",
            )
        begin = ends[0] + 1 - int(self.row["length"])
        episode = {name: array[begin : ends[0] + 1] for name, array in arrays.items()}
        return episode, options[max(begin - 1, 0)]  # the step before has reset the environment


class EpisodeRecorder(Learner):
    """A learner that records the steps of the environments in which episodes are."""

    def __init__(self, records: list[EpisodeRecord], config: TrainConfig, task: EnvSpec, *others: Any) -> None:
        super().__init__(config, task, *others)
        self._records, self._task = records, task

    def update(self, iteration: int, pool: WorkerPool) -> dict[str, float]:
        """Record the rollout, its advantages, and the recurrent states before its steps."""
        for record in self._records:
            if record.first_iteration <= iteration + 1 <= record.row["iteration"]:
                record.iterations.append(self._steps_of(int(record.row["environment"]), iteration))
        return super().update(iteration, pool)

    def _steps_of(self, n: int, iteration: int) -> dict[str, np.ndarray]:
        """Copy the valid steps of environment n by name, each [steps, …]."""
        rollout, shape = self._buffers.rollout, self._buffers.rollout.reward.shape
        columns = dict(zip(input_names(self.config, self._task.observation), rollout.obs, strict=True))
        columns |= {name: getattr(rollout, name) for name in ("actions", "reward", "log_prob", "value")}
        columns["advantage"] = self._buffers.minibatches.step_targets[:, 0].reshape(shape)
        columns["iteration"] = np.full(shape, iteration + 1)
        columns["options"] = np.full(shape, read_options(self._buffers.published.reset_options), object)
        ended = np.dstack([rollout.ended_episode, rollout.ended_return, rollout.ended_length])
        finished = episode_ends(rollout) & (rollout.ended_length > 0)
        columns["ended"] = np.where(finished[:, :, None], ended, -1)
        arrays = {name: column[: rollout.valid_steps[n], n].copy() for name, column in columns.items()}
        return arrays | {"state": self._states_of(n, iteration)}

    @torch.inference_mode()
    def _states_of(self, n: int, iteration: int) -> np.ndarray:
        """Act once more in environment n. Return the recurrent states before its valid steps, float32 [steps, S].

        They have the bits of the rollout, unless a GPU acts (--act-on device).
        """
        rollout, published = self._buffers.rollout, self._buffers.published
        obs = [np.zeros((1, *leaf.shape), leaf.dtype) for leaf in self._task.observation.leaves]
        actor = Actor(self.config, self.model, self._task.distribution, obs, low=n)
        actor.load(published.obs_mean, published.obs_scale)
        actor.states[0] = self._buffers.carries[iteration % 2].state[n]
        states = np.zeros((rollout.valid_steps[n], actor.states.shape[1]), np.float32)
        for t in range(len(states)):
            states[t] = actor.states[0] = np.where(rollout.first[t, n], 0, actor.states[0])
            for target, leaf in zip(obs, rollout.obs, strict=True):
                target[0] = leaf[t, n]
            actor.advance()
        return states
