"""Train tasks of POPGym with several recurrent cores.

    python -m figures.popgym.measure --tasks RepeatPreviousEasy --cores gru lmu --seeds 1 2 --steps 15000000
    python -m figures.popgym.measure --tasks AutoencodeEasy --variants preset seq128 --steps 2000000

Trains the cases one after the other with the preset `popgym`, and appends a row to popgym.csv after each. The script
can be stopped at any time: the next call with the same --steps resumes the unfinished case, and skips the finished
ones. Needs the extra `popgym`.

`max_return` is POPGym's measure, the maximum over training of the mean episodic return. It is taken over whole blocks
of 65,536 steps, which is the published batch: the mean over a block's iterations of the mean return of the last 100
episodes. A case ends early after a block in which this mean was at least 0.99 in every iteration. `env_steps` is the
step at which it ended. Further seeds are trained of the cases whose first seed ended within 5 million steps.
"""

from __future__ import annotations

import itertools
import math
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from figures.common.command_line import script_parser
from figures.common.evaluated_runs import commits_of, save_curve
from figures.common.paths import FIGURES, ROOT
from figures.common.tables import append_rows, has_row, read_rows, rows_with
from figures.popgym.cases import CORES, TASKS, VARIANTS, config_of
from shmppo import TrainConfig, resume, train
from shmppo.utils.machine import processor

TABLE = FIGURES / "popgym" / "popgym.csv"
BLOCK_STEPS = 65_536
SOLVED = 0.99  # no return of POPGym is greater than 1
MORE_SEEDS = 5_100_000  # a last iteration may exceed 5 million steps
CHECKPOINT_EVERY = 100  # iterations, one to two minutes


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


def train_or_resume(config: TrainConfig) -> dict[str, Any]:
    """Train, or resume the run in `config.run_dir`, until its last step or until it is solved. Returns the summary.

    Raises:
        SystemExit: if a signal has stopped the run.
    """
    run_dir = Path(str(config.run_dir))
    returns = {int(row["iteration"]): _return_of(row) for row in read_rows(run_dir / "metrics.csv")}
    iterations = max(1, BLOCK_STEPS // config.batch_steps)

    def is_solved(iteration: int) -> bool:
        whole = iteration % iterations == 0
        return whole and all(returns.get(iteration - i, -math.inf) >= SOLVED for i in range(iterations))

    def stop(row: Mapping[str, float]) -> bool:
        returns[int(row["iteration"])] = _return_of(row)
        return is_solved(int(row["iteration"]))

    if (run_dir / "checkpoint.pt").exists():
        summary = resume(run_dir, callback=stop, trust=("popgym",), workers=config.workers)
    else:
        shutil.rmtree(run_dir, ignore_errors=True)  # it was killed before its first checkpoint
        summary = train(config, callback=stop)
    if summary["env_steps"] < config.total_steps and not is_solved(summary["iterations"]):
        raise SystemExit(f"the training in {run_dir} was stopped; run the same command again to resume it")
    return summary


def _return_of(row: Mapping[str, Any]) -> float:
    """Return the mean return of the last 100 episodes. It is minus infinity before 100 episodes have ended.

    row: of metrics.csv.
    """
    return float(row["return_mean_100"]) if float(row["episodes"]) >= 100 else -math.inf


def name_of(key: Mapping[str, Any]) -> str:
    """Return the name of a case in file names."""
    variant = "" if key["variant"] == "preset" else f"-{key['variant']}"
    return f"{key['task']}-{key['core']}{variant}-s{key['seed']}"


def measure(key: Mapping[str, Any], config: TrainConfig, table: Path) -> None:
    """Train one case and append its row.

    Args:
        key: columns that identify the case.
        config: of the run. Its directory is removed when the row is written.
        table: the CSV file. The learning curve is written into a folder of `curves/` beside it.
    """
    summary = train_or_resume(config)
    run_dir = Path(str(config.run_dir))
    blocks = block_means(read_rows(run_dir / "metrics.csv")).values()
    row = dict(key) | {
        "env_steps": summary["env_steps"],
        "wall_seconds": round(summary["wall_seconds"]),
        "max_return": f"{max(blocks):.4f}" if blocks else "",
        "weights_sha256": summary["weights_sha256"],
        "exact": summary["exact"],
        "commit": commits_of(run_dir),
        "processor": processor(),
    }
    save_curve(run_dir, table.parent / "curves" / str(key["steps"]) / f"{name_of(key)}.csv")
    append_rows(table, [row])
    shutil.rmtree(run_dir)
    print(row, flush=True)


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS, metavar="TASK")
    parser.add_argument("--cores", nargs="+", choices=CORES, default=["gru"])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=["preset"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--steps", type=int, default=15_000_000, help="environment steps of each case")
    parser.add_argument("--workers", type=int, help="worker processes; they do not change the results")
    options = parser.parse_args()
    cases = itertools.product(options.seeds, options.tasks, options.cores, options.variants)
    for seed, task, core, variant in cases:
        key = {"task": task, "core": core, "variant": variant, "seed": seed, "steps": options.steps}
        long = any(int(row["env_steps"]) > MORE_SEEDS for row in rows_with(TABLE, key | {"seed": 1}))
        if has_row(TABLE, key) or (seed > 1 and long):
            continue
        run_dir = ROOT / "runs" / "popgym" / f"{name_of(key)}-{options.steps}"
        config = config_of(
            task, core, variant, seed, total_steps=options.steps, run_dir=str(run_dir), workers=options.workers,
            quiet=True, checkpoint_every=CHECKPOINT_EVERY,
        )  # fmt: skip
        measure(key, config, TABLE)


if __name__ == "__main__":
    main()
