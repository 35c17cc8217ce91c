"""Training runs that differ only in their seed: `python -m shmppo.train --seeds 1 2 3`."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from shmppo.config.checks import require
from shmppo.config.info_keys import PREFIX
from shmppo.config.train_config import TrainConfig
from shmppo.config.trust import Trusted
from shmppo.errors import ShmppoError, printable
from shmppo.loggers.text import number
from shmppo.runs.startup import check_early
from shmppo.tools.run_process import RunPool, RunProcess
from shmppo.utils.files import config_error_if_unwritable, short_path, user_path
from shmppo.utils.signals import StopRequest


def train_seeds(config: TrainConfig, seeds: Sequence[int], jobs: int, trust: Trusted = ()) -> None:
    """Train a run for each seed, in RUN_DIR-sSEED, and print a table of them. Runs that exist are continued.

    Args:
        config: of the runs, apart from the seed.
        jobs: most runs at the same time.
        trust: modules of which the runs may import code.

    Raises:
        ConfigError: if an option is invalid, or if a directory has a run with another configuration.
        ShmppoError: if a run has failed. The others have been trained.
        KeyboardInterrupt: if a signal has stopped the runs. They have saved checkpoints.
    """
    require(config.run_dir is not None, "--seeds needs --run-dir RUN_DIR; its runs are RUN_DIR-s1, RUN_DIR-s2, …")
    require(jobs >= 1, f"--jobs is {jobs}; it must be at least 1")
    require("RANK" not in os.environ, "--seeds cannot be combined with torchrun; start one run per seed")
    check_early(replace(config, run_dir=None))  # RUN_DIR itself may hold a run
    base = user_path(str(config.run_dir), "--run-dir")
    runs = [RunProcess(replace(config, seed=seed), Path(f"{base}-s{seed}")) for seed in dict.fromkeys(seeds)]
    waiting = deque(run for run in runs if not run.finished)
    pool, stop = RunPool[RunProcess](jobs, trust), StopRequest()
    view = Live(console=Console(quiet=config.quiet), get_renderable=lambda: summary_table(runs), refresh_per_second=1)
    with config_error_if_unwritable(base), stop.by_signals(), view:
        pool.train(waiting, lambda: stop.made)
    if stop.made:
        raise KeyboardInterrupt
    failures = [f"{short_path(run.run_dir)}: {run.failure}" for run in runs if run.failure]
    if failures:
        raise ShmppoError(f"{len(failures)} of {len(runs)} runs failed: {'; '.join(failures)}")


def summary_table(runs: Sequence[RunProcess]) -> Group:
    """Return a table with a row per run and a row of means over the finished runs, followed by an empty line."""
    start = {"iteration": "0", "env_steps": "0", "return_mean_100": "nan"}
    last = [start | (run.rows("eval.csv") or [{}])[-1] | (run.rows() or [start])[-1] for run in runs]
    known = dict.fromkeys(name for row in last for name in row)
    metrics = [name for name in known if name in ("return_mean_100", "eval/return") or name.endswith("success")]
    finished = [row for run, row in zip(runs, last, strict=True) if run.finished]
    footer = "mean" if len(finished) == len(runs) else f"mean of {len(finished)}"
    columns = [Column("seed", footer=footer), Column("iterations"), Column("steps")]
    for name in metrics:
        title = escape(printable("return" if name == "return_mean_100" else name.replace(PREFIX, "")))
        mean = number(fmean(float(row.get(name, "nan")) for row in finished)) if finished else ""
        columns.append(Column(title, mean, overflow="fold"))  # a narrow terminal breaks the name, and hides nothing
    table = Table(*columns, Column("weights", no_wrap=True), box=None, header_style="", show_footer=True)
    for run, row in zip(runs, last, strict=True):
        iterations = f"{float(row['iteration']):,.0f}/{run.config.last_iteration:,}"
        state = "failed" if run.failure else escape(printable(row.get("weights_hash", "")[:8]))
        values = (number(float(row.get(name, "nan"))) for name in metrics)
        table.add_row(str(run.config.seed), iterations, f"{float(row['env_steps']):,.0f}", *values, state)
    return Group(Text(f"{short_path(runs[0].run_dir).removesuffix(f'-s{runs[0].config.seed}')}-sSEED"), table, "")
