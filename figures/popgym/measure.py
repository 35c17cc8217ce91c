"""Train tasks of POPGym with several recurrent cores.

    python -m figures.popgym.measure --tasks RepeatPreviousEasy --cores gru lmu --seeds 1 2 --steps 15000000
    python -m figures.popgym.measure --tasks AutoencodeEasy --variants preset seq128 --steps 2000000

Trains the cases one after the other with the preset `popgym`, and appends a row to popgym.csv after each. The script
can be stopped at any time, also by SIGKILL. `--minutes` limits one sitting. The next call with the same --steps resumes
the unfinished case from its newest checkpoint, and skips the finished ones. Needs the extra `popgym`.

`max_return` is POPGym's measure, the maximum over training of the mean episodic return. It is taken over whole blocks
of 65,536 steps, which is the published batch: the mean over a block's iterations of the mean return of the last 100
episodes. The other returns are those of the last whole block at that number of steps. `max_return_100` is the maximum
over all iterations of the mean return of the last 100 episodes. It is higher, because it is selected from more noise.

A case ends early after a block in which the mean return of the last 100 episodes was at least 0.99 in every iteration.
`env_steps` is the step at which it ended. The columns of later steps are then empty.
"""

from __future__ import annotations

import itertools
import math
import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from figures.common.command_line import script_parser
from figures.common.evaluated_runs import commits_of, save_curve
from figures.common.paths import FIGURES, ROOT
from figures.common.tables import append_rows, has_row, read_rows
from figures.popgym.cases import CORES, TASKS, VARIANTS, config_of
from shmppo import ConfigError, TrainConfig, resume, train
from shmppo.config.train_config import load_config
from shmppo.utils.machine import processor

TABLE = FIGURES / "popgym" / "popgym.csv"
BLOCK_STEPS = 65_536
SOLVED = 0.99  # no return of POPGym is greater than 1
MILESTONES = {"return_500k": 500_000, "return_1m": 1_000_000, "return_2m": 2_000_000, "return_5m": 5_000_000,
              "return_15m": 15_000_000}  # fmt: skip
"""Column -> environment steps."""
CHECKPOINT_MINUTES = 2.0
TRUSTED = ("popgym", "figures.cores")
"""Modules that the run directories name."""


def block_means(rows: Iterable[Mapping[str, str]]) -> dict[int, float]:
    """Return the mean return of each whole block of BLOCK_STEPS, by the last step of the block.

    Args:
        rows: of metrics.csv. Iterations before the first 100 finished episodes are left out.
    """
    blocks: dict[int, list[float]] = {}
    steps = 0
    for row in rows:
        steps = int(float(row["env_steps"]))
        if float(row["episodes"]) >= 100:
            blocks.setdefault(-(-steps // BLOCK_STEPS) * BLOCK_STEPS, []).append(float(row["return_mean_100"]))
    return {end: fmean(returns) for end, returns in blocks.items() if end <= steps}


def results(rows: list[dict[str, str]], steps: int) -> dict[str, Any]:
    """Return the columns with returns. A column is empty if the run has not come that far.

    Args:
        rows: of metrics.csv.
        steps: environment steps of the run.
    """
    blocks = block_means(rows)
    singles = [float(row["return_mean_100"]) for row in rows if float(row["episodes"]) >= 100]
    columns: dict[str, Any] = {
        "max_return": f"{max(blocks.values()):.4f}" if blocks else "",
        "max_return_100": f"{max(singles):.4f}" if singles else "",
    }
    for name, milestone in MILESTONES.items():
        whole = [end for end in blocks if end <= milestone]
        columns[name] = f"{blocks[max(whole)]:.4f}" if whole and steps >= milestone else ""
    return columns


def train_until(config: TrainConfig, deadline: float) -> dict[str, Any]:
    """Train, or resume the run in `config.run_dir`. Returns the summary.

    Its `stopped_early` is true if the deadline or a signal stopped the run, and false if the case is solved.

    Args:
        config: of the run.
        deadline: time of `time.monotonic` at which the run stops after its current iteration.

    Raises:
        ConfigError: if the run in the directory was started with other options, for example by an older version.
    """
    run_dir = Path(str(config.run_dir))

    returns = {int(row["iteration"]): _return_of(row) for row in read_rows(run_dir / "metrics.csv")}
    iterations = max(1, BLOCK_STEPS // config.batch_steps)

    def is_solved(iteration: int) -> bool:
        whole = iteration % iterations == 0
        return whole and all(returns.get(iteration - i, -math.inf) >= SOLVED for i in range(iterations))

    def stop(row: Mapping[str, float]) -> bool:
        returns[int(row["iteration"])] = _return_of(row)
        return is_solved(int(row["iteration"])) or time.monotonic() >= deadline

    if (run_dir / "checkpoint.pt").exists():
        if _results_options(load_config(run_dir)) != _results_options(config):
            raise ConfigError(f"{run_dir} was started with other options; remove it to start the case again")
        summary = resume(run_dir, callback=stop, trust=TRUSTED, workers=config.workers, learning=config.learning)
    else:
        shutil.rmtree(run_dir, ignore_errors=True)  # it was killed before its first checkpoint
        summary = train(config, callback=stop)
    return summary | {"stopped_early": summary["stopped_early"] and not is_solved(summary["iterations"])}


def _return_of(row: Mapping[str, Any]) -> float:
    """Return the mean return of the last 100 episodes. It is minus infinity before 100 episodes have ended.

    row: of metrics.csv.
    """
    return float(row["return_mean_100"]) if float(row["episodes"]) >= 100 else -math.inf


def _results_options(config: TrainConfig) -> dict[str, Any]:
    """Return the options that the results depend on."""
    return {name: value for name, value in config.to_json().items() if name not in ("run_dir", "workers", "learning")}


def name_of(key: Mapping[str, Any]) -> str:
    """Return the name of a case in file names."""
    variant = "" if key["variant"] == "preset" else f"-{key['variant']}"
    return f"{key['task']}-{key['core']}{variant}-s{key['seed']}"


def measure(key: Mapping[str, Any], config: TrainConfig, table: Path, deadline: float) -> bool:
    """Train one case and append its row. Returns whether it was finished.

    Args:
        key: columns that identify the case.
        config: of the run. Its directory is removed when the row is written.
        table: the CSV file. The learning curve is written into a folder of `curves/` beside it.
        deadline: see `train_until`.
    """
    summary = train_until(config, deadline)
    name = name_of(key)
    print(f"{name}: {summary['env_steps']:,} steps, {summary['steps_per_second']:,.0f} steps/s", flush=True)
    if summary["stopped_early"]:
        return False
    run_dir = Path(str(config.run_dir))
    metrics = read_rows(run_dir / "metrics.csv")
    row = dict(key) | {
        "env_steps": summary["env_steps"],
        "wall_seconds": round(summary["wall_seconds"]),
        **results(metrics, summary["env_steps"]),
        "weights_sha256": summary["weights_sha256"],
        "exact": summary["exact"],
        "commit": commits_of(run_dir),
        "processor": processor(),
    }
    save_curve(run_dir, table.parent / "curves" / str(key["steps"]) / f"{name}.csv")
    append_rows(table, [row], "The row's commits are those of its first and of its last sitting.")
    shutil.rmtree(run_dir)
    print(row, flush=True)
    return True


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS), metavar="TASK")
    parser.add_argument("--cores", nargs="+", choices=CORES, default=["gru"])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=["preset"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--steps", type=int, default=15_000_000, help="environment steps of each case")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="length of this sitting")
    parser.add_argument("--workers", type=int, help="worker processes; they do not change the results")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "popgym", help="folder of unfinished runs")
    parser.add_argument("--table", type=Path, default=TABLE, help="file to append to")
    options = parser.parse_args()
    deadline = time.monotonic() + 60 * options.minutes
    cases = itertools.product(options.seeds, options.tasks, options.cores, options.variants)
    for seed, task, core, variant in cases:
        key = {"task": task, "core": core, "variant": variant, "seed": seed, "steps": options.steps}
        if has_row(options.table, key):
            continue
        run_dir = options.runs / f"{name_of(key)}-{options.steps}"
        config = config_of(
            task, core, variant, seed, total_steps=options.steps, run_dir=str(run_dir), workers=options.workers,
            quiet=True, checkpoint_minutes=CHECKPOINT_MINUTES,
        )  # fmt: skip
        if not measure(key, config, options.table, deadline):
            return  # the time is over, or a signal has stopped the run


if __name__ == "__main__":
    main()
