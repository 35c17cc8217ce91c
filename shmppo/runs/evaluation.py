"""Evaluation during training (--eval-every): a phase of lock-step, in which all workers of all ranks play episodes.

The episodes have the same seeds in every evaluation, and their results do not depend on the number of workers.
"""

from __future__ import annotations

import time

import numpy as np

from shmppo.loggers.trackers import Row
from shmppo.parallel.process_group import ProcessGroup
from shmppo.parallel.shared_buffers import EvaluationResults
from shmppo.ppo.learner import Learner
from shmppo.sampling.pool import Pool


def evaluate_weights(
    learner: Learner, pool: Pool, results: EvaluationResults, process_group: ProcessGroup, iteration: int
) -> Row:
    """Play the episodes of --eval-episodes with the current weights.

    Args:
        learner: contains the weights, and the statistics that normalize observations.
        pool: of this rank, which plays its part of the episodes.
        results: where the pool writes them.
        iteration: number of finished iterations.

    Returns:
        The columns of eval.csv, except env_steps. They are the same on all ranks. Failed episodes do not count.

    Raises:
        ShmppoError, WorkerError: if an environment or a worker fails.
        RankError: if a rank fails.
    """
    began = time.monotonic()
    learner.publish_statistics()
    pool.evaluate(iteration)
    own = np.column_stack([results.returns, results.lengths])
    played = np.concatenate(process_group.gather_rows(own))
    returns, lengths = played[played[:, 1] > 0].T
    known = len(returns) > 0
    return {
        "iteration": iteration,
        "eval/return": float(returns.mean()) if known else np.nan,
        "eval/return_std": float(returns.std()) if known else np.nan,
        "eval/return_min": float(returns.min()) if known else np.nan,
        "eval/return_max": float(returns.max()) if known else np.nan,
        "eval/length": float(lengths.mean()) if known else np.nan,
        "eval/episodes": len(returns),
        "eval/seconds": time.monotonic() - began,
    }
