"""The metrics of a run: the meaning of every column and key."""

from __future__ import annotations

from shmppo.utils.phase_timer import PHASES

WEIGHTS_HASH = "weights_hash"
"""The column of metrics.csv that is no number."""
HASH_DIGITS = 16
"""Hexadecimal digits of its values."""

GLOSSARY: dict[str, str] = {
    "iteration": "finished iterations",
    "env_steps": "finished environment steps of all environments",
    "wall_seconds": "seconds spent in the training loop so far",
    "steps_per_second": "environment steps per second in this iteration, without the time of an evaluation",
    "episodes": "finished episodes",
    "failed_episodes": "episodes that `--skip-bad-episodes` ended at a failed step; no other metric counts them",
    "return_mean_100": "mean undiscounted return of the last 100 finished episodes",
    "length_mean_100": "mean length of the last 100 finished episodes, in steps",
    "policy_loss": "policy loss, mean over the minibatches of the update",
    "value_loss": "½(V − R)², mean over the minibatches of the update",
    "entropy": "policy entropy in nats, mean over the minibatches of the update",
    "approx_kl": "mean KL(old ‖ new) in nats over the minibatches, each measured before its optimizer step; estimated "
    "by ratio − 1 − log ratio (k3), or in closed form with `--objective penalty`",
    "approx_kl_last_epoch": "the same over the last M minibatches; β and `--lr-schedule kl-adaptive` adapt to it",
    "clip_fraction": "fraction of ratios outside 1 ± clip range, mean over the minibatches of the update",
    "gradient_norm": "L2 norm of the gradient before clipping, mean over the minibatches of the update",
    "first_log_ratio": "largest |log ratio| in the first minibatch: the difference between acting and learning",
    "optimizer_steps": "optimizer steps of the update; fewer than epochs × minibatches after a target-KL stop",
    "explained_variance": "1 − Var(target − value) / Var(target) over the rollout",
    "state_drift": "root mean square change of stored recurrent states by a refresh, mean over the refreshes",
    "learning_rate": "learning rate of this iteration",
    "clip_range": "clip range of this iteration",
    "entropy_coef": "coefficient of the entropy bonus in this iteration",
    "penalty_coef": "β of `--objective penalty` in this iteration",
    "sync_seconds": "seconds spent on sending commands to workers and receiving acknowledgements",
    "collect_seconds": "seconds until the slowest worker had finished its part of the rollout",
    "allreduce_seconds": "seconds of collective operations with other ranks, including the wait for them",
    "straggler_wait": "time spent waiting for the slowest worker, mean over workers, as a fraction of its time",
    "preempted_steps": "steps that are missing from this rollout because of `--preempt-fraction`, over all ranks",
    "slowest_worker": "index of the worker that needed the most time for its part of the rollout",
    **{f"{phase}_seconds": f"seconds of this iteration in phase {phase}" for phase in PHASES},
    WEIGHTS_HASH: "first 16 digits of the SHA-256 of the weights after this iteration",
}
"""Every column of metrics.csv, except `info/KEY` (--info-keys)."""

EVALUATION_GLOSSARY: dict[str, str] = {
    "iteration": "finished iterations",
    "env_steps": "finished environment steps",
    "eval/return": "mean undiscounted return of the episodes",
    "eval/return_std": "standard deviation of the returns over the episodes",
    "eval/return_min": "smallest return",
    "eval/return_max": "largest return",
    "eval/length": "mean length of the episodes, in steps",
    "eval/episodes": "number of episodes, without those that failed",
    "eval/seconds": "duration of the evaluation in seconds",
}
"""Every column of eval.csv, except `eval/info/KEY` (--info-keys)."""

SUMMARY_GLOSSARY: dict[str, str] = {
    "run_dir": "directory of the run",
    "config": "the resolved configuration",
    "weights_sha256": "hash of the weights; null if an error ended the run during an update",
    "exact": "whether the determinism guarantee holds for this run, as far as shmppo can tell; null: the check of the "
    "environment has not finished",
    "inexact_reasons": "why it does not hold",
    "environment_check": "whether the environment has the same bits for the same seed and actions, in the steps that "
    "`--check-determinism` compares: `passed`, `failed`, `not finished`, or `none` without the check",
    "initial_weights": "path, iteration, and hash of the weights of `--init-from`; null without it",
    "env_steps": "environment steps of all ranks",
    "iterations": "iterations finished",
    "episodes": "episodes finished",
    "failed_episodes": "episodes that `--skip-bad-episodes` ended at a failed step",
    "return_mean_100": "mean return of the last 100 finished episodes; null if none has finished",
    "info": "`info/KEY` of metrics.csv at the end, by its name; null if none of the last 100 episodes has the key",
    "best_by": "the metric of `--best-by`",
    "best_value": "its highest value at which a checkpoint was saved; null if it has had no value",
    "best_checkpoint": "file of the best checkpoint in the run directory; null if there is none",
    "workers": "number of workers of one rank",
    "worker_restarts": "workers that were replaced",
    "num_envs": "number of environments of one rank",
    "ranks": "number of ranks",
    "wall_seconds": "seconds in the training loop",
    "steps_per_second": "`env_steps` / `wall_seconds`",
    "phase_seconds": "seconds in each phase, and the totals of sampling, learning, and communication",
    "sync_seconds": "seconds spent on signaling workers",
    "peak_memory_bytes": "largest memory of all processes together",
    "shared_memory_bytes": "size of the shared buffers",
    "stop_reason": "why the run ended: `finished`, `signal`, `callback`, `error`, or the condition of "
    "`--stop-when` that held",
    "error": "the error that ended the run; null if there was none",
}
"""Every key of summary.json."""

TRACKER_GROUPS: dict[str, tuple[str, ...]] = {
    "rollout": ("episodes", "failed_episodes", "return_mean_100", "length_mean_100", "preempted_steps"),
    "losses": ("policy_loss", "value_loss", "entropy", "explained_variance", "gradient_norm"),
    "policy": (
        "approx_kl", "approx_kl_last_epoch", "clip_fraction", "first_log_ratio", "optimizer_steps", "state_drift",
        "learning_rate", "clip_range", "entropy_coef", "penalty_coef",
    ),
    "time": (
        "wall_seconds", "steps_per_second", "sync_seconds", "collect_seconds", "allreduce_seconds", "straggler_wait",
        "slowest_worker", *(f"{phase}_seconds" for phase in PHASES),
    ),
}  # fmt: skip
"""The group of each metric in trackers, which show `approx_kl` as `policy/approx_kl`."""

TIMED_COLUMNS = TRACKER_GROUPS["time"]
"""Columns of metrics.csv that depend on the clock. All others are functions of the configuration."""

DECISIVE = tuple(
    name
    for name in dict.fromkeys([*GLOSSARY, *EVALUATION_GLOSSARY])
    if name not in (*TIMED_COLUMNS, "eval/seconds", "state_drift", WEIGHTS_HASH)
)
"""Metrics that are the same in two runs of one configuration, also after crashes and resumes.

After the replacement of a worker, state_drift is too small."""

_TRACKER_NAMES = {name: f"{group}/{name}" for group, names in TRACKER_GROUPS.items() for name in names}


def tracker_name(name: str) -> str:
    """Return the name of a metric in trackers: with its group, or unchanged for iteration and env_steps."""
    return _TRACKER_NAMES.get(name, name)
