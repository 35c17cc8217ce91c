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
    "policy_loss": "policy loss, mean over the minibatches of the update; −log π(a|s) with `--objective clone`",
    "value_loss": "½(V − R)², mean over the minibatches of the update",
    "entropy": "policy entropy in nats, mean over the minibatches of the update",
    "approx_kl": "mean KL(old ‖ new) in nats over the minibatches, each measured before its optimizer step; estimated "
    "by ratio − 1 − log ratio (k3), or in closed form with objectives other than `clip`",
    "approx_kl_last_epoch": "the same over the last M minibatches; β and `--lr-schedule kl-adaptive` adapt to it",
    "clip_fraction": "fraction of ratios outside 1 ± clip range, mean over the minibatches of the update",
    "teacher_kl": "mean KL(teacher ‖ policy) in nats over the minibatches, each measured before its optimizer step",
    "auxiliary_loss": "loss of `--auxiliary` without its coefficient, mean over the minibatches of the update",
    "gradient_norm": "L2 norm of the gradient before clipping, mean over the minibatches of the update",
    "first_log_ratio": "largest |log ratio| in the first minibatch: the difference between acting and learning",
    "optimizer_steps": "optimizer steps of the update; fewer than epochs × minibatches after a target-KL stop",
    "explained_variance": "1 − Var(target − value) / Var(target) over the rollout",
    "state_drift": "root mean square change of stored recurrent states by a refresh, mean over the refreshes",
    "learning_rate": "learning rate of this iteration",
    "clip_range": "clip range of this iteration",
    "policy_coef": "weight of the objective in this iteration: 1, or 0 with `--objective distill` and in the critic's "
    "warm-up",
    "entropy_coef": "coefficient of the entropy bonus in this iteration",
    "penalty_coef": "β of `--objective penalty` in this iteration",
    "teacher_coef": "coefficient of `teacher_kl` in the loss in this iteration",
    "sync_seconds": "seconds spent on sending commands to workers and receiving acknowledgements",
    "collect_seconds": "seconds until the slowest worker had finished its part of the rollout",
    "allreduce_seconds": "seconds of collective operations with other ranks, including the wait for them",
    "straggler_wait": "time spent waiting for the slowest worker, mean over workers, as a fraction of its time",
    "preempted_steps": "steps that are missing from this rollout because of `--preempt-fraction`, over all ranks",
    "slowest_worker": "index of the worker that needed the most time for its part of the rollout",
    **{f"{phase}_seconds": f"seconds of this iteration in phase {phase}" for phase in PHASES},
    WEIGHTS_HASH: "first 16 digits of the SHA-256 of the weights after this iteration",
}
"""Every column of metrics.csv, except `info/KEY` (--info-keys) and those of `AGENT_GLOSSARY`."""

AGENT_GLOSSARY: dict[str, str] = {
    "agent_steps": "steps at which an agent acted, of all agents: the steps that the policy has learned from",
    "elo": "Elo rating of the policy against its opponents (`--self-play`); the initial weights have 0",
}
"""Further columns of runs with several agents, which also have `info/return/NAME`, the return of each agent, and in
self-play `info/win`, `info/draw`, and `info/loss`."""

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

TRACKER_GROUPS: dict[str, tuple[str, ...]] = {
    "rollout": (
        "episodes", "failed_episodes", "return_mean_100", "length_mean_100", "preempted_steps", "agent_steps", "elo",
    ),
    "losses": ("policy_loss", "value_loss", "entropy", "auxiliary_loss", "explained_variance", "gradient_norm"),
    "policy": (
        "approx_kl", "approx_kl_last_epoch", "clip_fraction", "teacher_kl", "first_log_ratio", "optimizer_steps",
        "state_drift", "learning_rate", "clip_range", "policy_coef", "entropy_coef", "penalty_coef", "teacher_coef",
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
    for name in dict.fromkeys([*GLOSSARY, *AGENT_GLOSSARY, *EVALUATION_GLOSSARY])
    if name not in (*TIMED_COLUMNS, "eval/seconds", "state_drift", WEIGHTS_HASH)
)
"""Metrics that are the same in two runs of one configuration, also after crashes and resumes.

After the replacement of a worker, state_drift is too small."""

_TRACKER_NAMES = {name: f"{group}/{name}" for group, names in TRACKER_GROUPS.items() for name in names}


def tracker_name(name: str) -> str:
    """Return the name of a metric in trackers: with its group, or unchanged for iteration and env_steps."""
    return _TRACKER_NAMES.get(name, name)
