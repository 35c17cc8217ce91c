"""Evaluation during training (--eval-every): a phase of lock-step, in which all workers of all ranks play episodes.

The episodes have the same seeds in every evaluation, and their results do not depend on the number of workers.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from shmppo.config.train_config import TrainConfig
from shmppo.envs.episode_info import info_means
from shmppo.envs.schedule import read_options
from shmppo.envs.spec import EnvSpec
from shmppo.errors import EnvError
from shmppo.lockstep.learner import Learner
from shmppo.lockstep.pool import Evaluate
from shmppo.loggers.trackers import Row
from shmppo.parallel.process_group import ProcessGroup
from shmppo.parallel.shared_buffers import SharedBuffers
from shmppo.policies.evaluation import record_episode
from shmppo.policies.policy import TrainedPolicy
from shmppo.sampling.evaluation import evaluation_errors
from shmppo.storage.run_directory import VIDEOS
from shmppo.utils.phase_timer import PhaseTimer

log = logging.getLogger(__name__)


class Evaluations:
    """The evaluations of one run.

    Attributes:
        task: description of the environment.
        evaluated_at: number of finished iterations at the last evaluation. −1 before the first one.
    """

    def __init__(
        self, config: TrainConfig, task: EnvSpec, buffers: SharedBuffers, run_dir: Path, process_group: ProcessGroup
    ) -> None:
        self._config, self.task, self._buffers = config, task, buffers
        self._run_dir, self._process_group = run_dir, process_group
        self.evaluated_at = -1

    def evaluate(self, learner: Learner, timer: PhaseTimer, execute: Callable[[Evaluate], None], iteration: int) -> Row:
        """Play the episodes of --eval-episodes with the current weights.

        Args:
            learner: contains the weights, and the statistics that normalize observations.
            timer: measures the phases of the learner.
            execute: lets the processes of this rank play their part of the episodes.
            iteration: number of finished iterations.

        Returns:
            The columns of eval.csv, except env_steps. They are the same on all ranks. Failed episodes do not count.

        Raises:
            ShmppoError, WorkerError: if an environment or a worker fails.
            RankError: if a rank fails.
            ConfigError: if a video cannot be recorded.
        """
        began, self.evaluated_at = timer.switch("evaluation"), iteration
        learner.publish_statistics(iteration)
        execute(Evaluate(iteration))
        timer.switch("evaluation")
        results = self._buffers.evaluation
        own = np.column_stack([results.returns, results.lengths, results.info])
        played = np.concatenate(self._process_group.gather_rows(own))
        returns, lengths, *info = played[played[:, 1] > 0].T
        means = info_means(self._config.reported_info, np.transpose(info).tolist())
        if self._config.eval_videos:
            file = self._run_dir / VIDEOS / f"{iteration:06d}.mp4"
            with evaluation_errors(iteration):
                try:
                    record_episode(self.policy(learner, iteration), file)
                except EnvError as error:
                    if not self._config.skip_bad_episodes:
                        raise
                    log.warning("the video of iteration %d was not recorded: %s", iteration, error.message)
        known = len(returns) > 0
        seconds = timer.switch("other") - began
        return {
            "iteration": iteration,
            "eval/return": float(returns.mean()) if known else np.nan,
            "eval/return_std": float(returns.std()) if known else np.nan,
            "eval/return_min": float(returns.min()) if known else np.nan,
            "eval/return_max": float(returns.max()) if known else np.nan,
            "eval/length": float(lengths.mean()) if known else np.nan,
            "eval/episodes": len(returns),
            "eval/seconds": seconds,
            **{f"eval/{name}": mean for name, mean in means.items()},
        }

    def check_video(self, learner: Learner, iteration: int) -> None:
        """Raise ConfigError if no video of --eval-videos can be recorded here."""
        with tempfile.TemporaryDirectory() as directory, suppress(EnvError):
            record_episode(self.policy(learner, iteration), Path(directory) / "video.mp4", max_steps=1)

    def policy(self, learner: Learner, iteration: int) -> TrainedPolicy:
        """Return the current policy in the environment of evaluations. It shares the weights with the learner."""
        config = self._config.with_env_kwargs(self._config.eval_env_kwargs)
        options = read_options(self._buffers.published.reset_options)
        return TrainedPolicy(config, self.task, learner.model, learner.obs_moments, iteration, options)
