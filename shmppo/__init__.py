"""Reproducible training of recurrent PPO policies, with worker processes and shared memory."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

# The package `shmppo.train` exists for `python -m shmppo.train`. Python binds it to the name `train` when it is first
# imported. It is imported here, before the function `train` is defined, so that it never replaces the function.
import shmppo.train  # noqa: F401
from shmppo.config.extensions import public_names
from shmppo.config.presets import preset
from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError, EnvError, RankError, SaveError, ShmppoError, TrainingError, WorkerError
from shmppo.utils.portable import pin_numpy, pin_torch
from shmppo.version import __version__

if TYPE_CHECKING:
    import numpy as np

    from shmppo.config.trust import Trusted
    from shmppo.loggers.summary import RunSummary
    from shmppo.loggers.trackers import Callback, Logger
    from shmppo.policies.policy import Policy

pin_numpy()  # before NumPy, which nothing above imports

# A library does not print. Log records go to the run's log file.
logging.getLogger(__name__).addHandler(logging.NullHandler())

__all__ = [
    "ConfigError",
    "EnvError",
    "RankError",
    "SaveError",
    "ShmppoError",
    "TrainConfig",
    "TrainingError",
    "WorkerError",
    "__version__",
    "load_policy",
    "plot_runs",
    "portable",
    "preset",
    "read_metrics",
    "resume",
    "train",
    *public_names(),
]


def __getattr__(name: str) -> Any:
    """Return a public name of an extension, which NumPy or an environment's library may take long to import."""
    if name not in public_names():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(public_names()[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *public_names()]


# The functions import torch when they are called, so that `import shmppo` stays fast.


def portable() -> None:
    """Let torch compute the same bits on each x86-64 processor with AVX2 and FMA, for `TrainConfig(portable=True)`.

    Call it before anything imports torch. Everything that torch computes in this process becomes slower.

    Raises:
        ConfigError: if torch was imported without it.
    """
    pin_torch()


def train(
    config: TrainConfig,
    *,
    callback: Callback | None = None,
    loggers: Sequence[Logger] = (),
    trust: Trusted = (),
    overwrite: bool = False,
) -> dict[str, Any]:
    """Train a policy until the configured number of steps.

    Args:
        config: the configuration of the run.
        callback: receives the metrics of each iteration, and as a second argument, if it takes two, a
            `shmppo.runs.handle.RunHandle`. If it returns True, the run stops after that iteration.
        loggers: receive the same metrics (see `shmppo.loggers.trackers.Logger`).
        trust: modules of which code may be imported although only a run that `config` names contains its name.
        overwrite: whether to remove a run that the directory contains. Files that are not the run's stay.

    With several ranks, only rank 0 calls callback and loggers.

    Returns:
        The content of summary.json.

    Raises:
        ConfigError: if the configuration cannot run. It is raised before any process starts.
        WorkerError, EnvError, TrainingError, RankError: if the run cannot continue. All its processes have ended.
        SaveError: if a file of the run cannot be written, or if its directory was removed.
        KeyboardInterrupt: after Ctrl-C, SIGTERM, or SIGUSR1. The run finishes the iteration in progress, or its last
            evaluation, and is saved before; a second signal ends it at once.
    """
    from shmppo.config.trust import trust_own
    from shmppo.runs import launch

    if isinstance(config, TrainConfig):
        trust_own(config)
    made = launch.train(config, callback=callback, loggers=loggers, trust=trust, overwrite=overwrite)
    return _uninterrupted(made)


def resume(
    run_dir: str | Path,
    *,
    checkpoint: str | int | Path = "last",
    new_run_dir: str | Path | None = None,
    callback: Callback | None = None,
    loggers: Sequence[Logger] = (),
    trust: Trusted = (),
    **changes: Any,
) -> dict[str, Any]:
    """Continue a run from its newest checkpoint in the same directory, or from an older one in a new directory.

    Args:
        run_dir: the directory of the run.
        checkpoint: the checkpoint, see `load_policy`.
        new_run_dir: a directory to continue in, as a branch. It gets the metrics up to the checkpoint. None: `run_dir`
            for the newest checkpoint, otherwise RUN_DIR-from-ITERATION.
        callback, loggers: see `train`.
        trust: names of modules and packages. The run may import code only from these, from `gymnasium.wrappers`, and
            from `shmppo.envs.wrappers`, for example its own environment, wrappers, and network.
        changes: fields of the configuration to change, for example total_steps or workers: those in
            `shmppo.config.resumable.RESUMABLE`, or for a branch those in `BRANCHABLE`. Others need a new run.

    Returns:
        The content of summary.json.

    Raises:
        ConfigError: if there is no such checkpoint, if the run names code that is not trusted, if a change is refused,
            or if the run has finished.
        WorkerError, EnvError, TrainingError, RankError, SaveError, KeyboardInterrupt: see `train`.
    """
    from shmppo.runs import launch

    source: dict[str, Any] = {"checkpoint": checkpoint, "new_run_dir": new_run_dir, "trust": trust}
    return _uninterrupted(launch.resume(run_dir, callback=callback, loggers=loggers, **source, **changes))


def _uninterrupted(summary: RunSummary) -> dict[str, Any]:
    """Raise KeyboardInterrupt if a signal came during the run, so that a loop over runs ends too."""
    if summary.interrupted or summary["stop_reason"] == "signal":  # another rank may have received the signal
        raise KeyboardInterrupt(f"{summary['run_dir']} was stopped after iteration {summary['iterations']} and saved")
    return summary


def load_policy(
    run_dir: str | Path, *, checkpoint: str | int | Path = "last", seed: int = 0, trust: Trusted = ()
) -> Policy:
    """Load the policy from a checkpoint of a run.

    Args:
        run_dir: the directory of the run.
        checkpoint: "last" for the newest checkpoint, "best" for the one with the highest value of --best-by, the number
            of an iteration, or the path of a checkpoint file.
        seed: seed of the actions that `act(…, deterministic=False)` samples.
        trust: names of modules and packages. A module of --network or --encoder may be imported only from these. No
            environment is made, so its module is not imported.

    Raises:
        ConfigError: if there is no such checkpoint, or if its network is code that is not trusted.
    """
    from shmppo.policies.policy import Policy, load_trained

    return Policy(load_trained(run_dir, checkpoint, trust), seed)


def plot_runs(
    *run_dirs: str | Path,
    out: str | Path = "curves.svg",
    metrics: Sequence[str] = (),
    x: Literal["steps", "seconds"] = "steps",
) -> Path:
    """Draw learning curves of runs. Runs that differ only in their seed become one curve.

    Args:
        run_dirs: directories of the runs.
        out: file to write. Its suffix selects the format: svg, png, pdf, or html.
        metrics: columns of metrics.csv or eval.csv, one panel each. Empty: an overview.
        x: the x axis of the metrics, environment steps or seconds of training.

    Returns:
        The path of the file.

    Raises:
        ConfigError: if matplotlib is missing, a run cannot be read or has no values of a metric, or the file cannot be
            written.
    """
    from shmppo.config.checks import require
    from shmppo.plotting.plot_curves import plot_curves

    require(bool(run_dirs), "plot_runs got no run directory; pass one: plot_runs(RUN_DIR)")
    require(x in ("steps", "seconds"), f"x is {x!r}; use steps or seconds")
    metrics = (metrics,) if isinstance(metrics, str) else metrics
    plot_curves([Path(run_dir) for run_dir in run_dirs], Path(out), metrics=metrics, x=x)
    return Path(out)


def read_metrics(
    run_dir: str | Path, table: Literal["metrics", "eval", "episodes"] = "metrics"
) -> dict[str, np.ndarray]:
    """Read the metrics of a run, which may still train.

    Args:
        run_dir: the directory of the run.
        table: the file to read, metrics.csv, eval.csv, or episodes.csv.

    Returns:
        Each column of numbers, float64 [rows], by name. NaN where there is no value.

    Raises:
        ConfigError: if there is no such file, if it has no row yet, or if it is damaged.
    """
    from shmppo.plotting.curves import read_columns
    from shmppo.utils.files import refuse_links

    refuse_links(Path(run_dir))
    return read_columns(Path(run_dir) / f"{table}.csv")
