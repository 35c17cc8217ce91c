"""The metrics of a run: the meaning of every column and key."""

from __future__ import annotations

from collections.abc import Sequence

from shmppo.config.extensions import added
from shmppo.config.train_config import TrainConfig
from shmppo.ppo.loss import TERMS, Loss, Term, meanings
from shmppo.utils.phase_timer import PHASES

WEIGHTS_HASH, STATE_HASH = HASHES = "weights_hash", "state_hash"
"""The columns of metrics.csv that are no numbers."""
HASH_DIGITS = 16
"""Hexadecimal digits of the hash of the weights. The other one has twice as many."""

Described = dict[str, tuple[str, str]]
"""By name of a metric: its group in trackers, which show `approx_kl` as `policy/approx_kl`, and its meaning."""


_EVERY = [term for term in TERMS if term.is_used is None]
_SOME = [term for term in TERMS if term.is_used is not None]


def _of_terms(terms: Sequence[Term]) -> Described:
    return {name: (term.group, text) for term in terms for name, text in meanings([term.compute]).items()}


def _of_coefficients(terms: Sequence[Term]) -> Described:
    used = meanings(term.coefficient for term in terms if term.coefficient)
    return {name: ("policy", text) for name, text in used.items()}


_DESCRIBED: Described = {
    "iteration": ("", "finished iterations"),
    "env_steps": ("", "finished environment steps of all environments"),
    "wall_seconds": ("time", "seconds in the training loop so far"),
    "steps_per_second": ("time", "environment steps per second of this iteration, without evaluations"),
    "episodes": ("rollout", "finished episodes"),
    "failed_episodes": (
        "rollout", "episodes that `--skip-bad-episodes` ended at a failed step; no other metric counts them"
    ),
    "return_mean_100": ("rollout", "mean undiscounted return of the last 100 finished episodes"),
    "return_min_100": ("rollout", "smallest return of these episodes"),
    "return_max_100": ("rollout", "largest return of these episodes"),
    "length_mean_100": ("rollout", "mean length of the last 100 finished episodes, in steps"),
    **_of_terms(_EVERY),
    "approx_kl_last_epoch": (
        "policy", "`approx_kl` over the last M minibatches; β and `--lr-schedule kl-adaptive` adapt to it"
    ),
    "gradient_norm": ("losses", "L2 norm of the gradient before clipping, mean over the minibatches"),
    "first_log_ratio": (
        "policy", "largest |log ratio| in the first minibatch: the difference between acting and learning"
    ),
    "optimizer_steps": (
        "policy", "optimizer steps of the update; fewer than epochs × minibatches after a target-KL stop"
    ),
    "explained_variance": ("losses", "1 − Var(target − value) / Var(target) over the rollout"),
    "learning_rate": ("policy", "learning rate of this iteration"),
    **_of_coefficients(_EVERY),
    "sync_seconds": ("time", "seconds spent on commands to workers and their acknowledgements"),
    "collect_seconds": ("time", "seconds until the slowest worker had finished its part of the rollout"),
    "allreduce_seconds": ("time", "seconds of collective operations with other ranks, including the wait for them"),
    "straggler_wait": (
        "time", "time spent waiting for the slowest worker, mean over workers, as a fraction of its time"
    ),
    "slowest_worker": ("time", "index of the worker whose part of the rollout took longest"),
    **{f"{phase}_seconds": ("time", "seconds of this iteration in the phase of this name") for phase in PHASES},
    WEIGHTS_HASH: ("", "first 16 digits of the SHA-256 of the weights after this iteration"),
    STATE_HASH: (
        "", "first 32 digits of the SHA-256 of the train state; in every tenth row, this includes the optimizer"
    ),
}  # fmt: skip
GLOSSARY: dict[str, str] = {name: text for name, (_, text) in _DESCRIBED.items()}
"""The columns of metrics.csv that every run has."""

_ADDED: Described = {
    "action_std": ("policy", "standard deviation of Box actions before squashing, mean over dimensions"),
    "entropy/KEY": ("", "entropy of part KEY (its key or index) of Dict, Tuple, and MultiDiscrete actions, in nats"),
    "padded_share": ("policy", "share of padding in the steps of an update on a GPU"),
    **_of_terms(_SOME),
    **_of_coefficients(_SOME),
    **{name: (module.GROUP, text) for module in added("metrics") for name, text in module.GLOSSARY.items()},
}
ADDED_GLOSSARY: dict[str, str] = {name: text for name, (_, text) in _ADDED.items()}
"""Further columns of runs that use a GPU or an extension, or that have actions of several parts, or Box actions with
one deviation for all states. Runs with --info-keys also have `info/KEY`."""

EPISODE_GLOSSARY: dict[str, str] = {
    "iteration": "iteration in which the episode ended, counted from 1",
    "environment": "index of its environment among those of all ranks; each rank writes its own file",
    "episode": "its number in this environment, from 0",
    "crc": "CRC-32 of its observations and rewards; 0 if a vector environment has no seed per episode",
    "return": "undiscounted return",
    "length": "steps",
}
"""Every column of episodes.csv, except `info/KEY`."""

EVALUATION_GLOSSARY: dict[str, str] = {
    "iteration": "finished iterations",
    "env_steps": "finished environment steps",
    "eval/return": "mean undiscounted return",
    "eval/return_std": "standard deviation of the returns",
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
    of_device = () if config.device == "cpu" else ("padded_share",)
    of_extensions = (name for module in added("metrics") for name in module.columns(config))
    return tuple(dict.fromkeys([*GLOSSARY, *loss.metrics, *loss.coefficient_metrics, *of_device, *of_extensions]))


_GROUPS = {name: group for name, (group, _) in (_DESCRIBED | _ADDED).items()}
TIMED_COLUMNS = (*(name for name, group in _GROUPS.items() if group == "time"), "eval/seconds")
"""Columns of metrics.csv and eval.csv that depend on the clock. All others are functions of the configuration."""

DECISIVE = tuple(
    name
    for name in dict.fromkeys([*GLOSSARY, *ADDED_GLOSSARY, *EVALUATION_GLOSSARY])
    if name not in (*TIMED_COLUMNS, *HASHES)
)
"""Metrics that are the same in two runs of one configuration, also after crashes and resumes."""


def episode_columns(config: TrainConfig) -> list[str]:
    """Return the columns of episodes.csv of a run."""
    return [*EPISODE_GLOSSARY, *(key.metric for key in config.reported_info)]


def tracker_name(name: str) -> str:
    """Return the name of a metric in trackers: with its group, or unchanged for iteration and env_steps."""
    return f"{group}/{name}" if (group := _GROUPS.get(name)) else name
