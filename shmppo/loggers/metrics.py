"""The metrics of a run: the meaning of every column and key."""

from __future__ import annotations

from shmppo.config.extensions import added
from shmppo.config.train_config import TrainConfig
from shmppo.ppo.loss import TERMS, Loss, meanings
from shmppo.utils.phase_timer import PHASES

WEIGHTS_HASH = "weights_hash"
"""The column of metrics.csv that is no number."""
HASH_DIGITS = 16
"""Hexadecimal digits of its values."""

_EVERY = [term for term in TERMS if term.is_used is None]
_SOME = [term for term in TERMS if term.is_used is not None]

GLOSSARY: dict[str, str] = {
    "iteration": "finished iterations",
    "env_steps": "finished environment steps of all environments",
    "wall_seconds": "seconds spent in the training loop so far",
    "steps_per_second": "environment steps per second in this iteration, without the time of an evaluation",
    "episodes": "finished episodes",
    "failed_episodes": "episodes that `--skip-bad-episodes` ended at a failed step; no other metric counts them",
    "return_mean_100": "mean undiscounted return of the last 100 finished episodes",
    "length_mean_100": "mean length of the last 100 finished episodes, in steps",
    **meanings(term.compute for term in _EVERY),
    "approx_kl_last_epoch": "`approx_kl` over the last M minibatches; β and `--lr-schedule kl-adaptive` adapt to it",
    "gradient_norm": "L2 norm of the gradient before clipping, mean over the minibatches",
    "first_log_ratio": "largest |log ratio| in the first minibatch: the difference between acting and learning",
    "optimizer_steps": "optimizer steps of the update; fewer than epochs × minibatches after a target-KL stop",
    "explained_variance": "1 − Var(target − value) / Var(target) over the rollout",
    "learning_rate": "learning rate of this iteration",
    **meanings(term.coefficient for term in _EVERY if term.coefficient),
    "sync_seconds": "seconds spent on sending commands to workers and receiving acknowledgements",
    "collect_seconds": "seconds until the slowest worker had finished its part of the rollout",
    "allreduce_seconds": "seconds of collective operations with other ranks, including the wait for them",
    "straggler_wait": "time spent waiting for the slowest worker, mean over workers, as a fraction of its time",
    "slowest_worker": "index of the worker that needed the most time for its part of the rollout",
    **{f"{phase}_seconds": "seconds of this iteration in the phase of this name" for phase in PHASES},
    WEIGHTS_HASH: "first 16 digits of the SHA-256 of the weights after this iteration",
}
"""The columns of metrics.csv that every run has."""

ADDED_GLOSSARY: dict[str, str] = {
    **meanings(term.compute for term in _SOME),
    **meanings(term.coefficient for term in _SOME if term.coefficient),
    **{name: meaning for module in added("metrics") for name, meaning in module.GLOSSARY.items()},
}
"""Further columns of runs that use an extension. Runs with --info-keys also have `info/KEY`."""

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


def columns(config: TrainConfig) -> tuple[str, ...]:
    """Return the columns of metrics.csv of a run, except `info/KEY`."""
    loss = Loss(config)
    of_extensions = (name for module in added("metrics") for name in module.columns(config))
    return tuple(dict.fromkeys([*GLOSSARY, *loss.metrics, *loss.coefficient_metrics, *of_extensions]))


def _terms(group: str) -> list[str]:
    return [term.metric for term in TERMS if term.group == group]


TRACKER_GROUPS: dict[str, tuple[str, ...]] = {
    "rollout": (
        "episodes", "failed_episodes", "return_mean_100", "length_mean_100",
    ),
    "losses": (*_terms("losses"), "explained_variance", "gradient_norm"),
    "policy": (
        *_terms("policy"), "approx_kl_last_epoch", "first_log_ratio", "optimizer_steps", "learning_rate",
        *(term.coefficient.__name__ for term in TERMS if term.coefficient),
    ),
    "time": (
        "wall_seconds", "steps_per_second", "sync_seconds", "collect_seconds", "allreduce_seconds", "straggler_wait",
        "slowest_worker", *(f"{phase}_seconds" for phase in PHASES),
    ),
}  # fmt: skip
for _module in added("metrics"):
    TRACKER_GROUPS[_module.GROUP] += tuple(_module.GLOSSARY)
"""The group of each metric in trackers, which show `approx_kl` as `policy/approx_kl`."""

TIMED_COLUMNS = TRACKER_GROUPS["time"]
"""Columns of metrics.csv that depend on the clock. All others are functions of the configuration."""

DECISIVE = tuple(
    name
    for name in dict.fromkeys([*GLOSSARY, *ADDED_GLOSSARY, *EVALUATION_GLOSSARY])
    if name not in (*TIMED_COLUMNS, "eval/seconds", WEIGHTS_HASH)
)
"""Metrics that are the same in two runs of one configuration, also after crashes and resumes."""

_TRACKER_NAMES = {name: f"{group}/{name}" for group, names in TRACKER_GROUPS.items() for name in names}


def tracker_name(name: str) -> str:
    """Return the name of a metric in trackers: with its group, or unchanged for iteration and env_steps."""
    return _TRACKER_NAMES.get(name, name)
