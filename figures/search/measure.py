"""Search for hyperparameters of tasks, and compare the best configuration with the default one.

    python -m figures.search.measure search cartpole double_pendulum swimmer
    python -m figures.search.measure fresh cartpole --seeds 101 102 103 104 105

search: 30 trials. The next call continues an interrupted search. A folder for each task gets trials.csv and best.json.
Tasks in search.csv are skipped: remove a row to search again. Then the rows of this task in fresh.csv are removed, too,
because they belong to the previous search.
search.csv has the steps of each search, the steps if each paused trial restarted, and the steps if all trials trained
to the end. The last two are computed. A test of the search shows that a trial that restarts has the same result.

fresh: trains the default and the best configuration with new seeds, and appends a row for each run to fresh.csv. Runs
that are in the table are skipped. If a task has a preset, the preset is trained: the best configuration with rounded
numbers.

About 48 checkpoints of a run are kept, or one per iteration if there are fewer. `steps_to_solve` is the step of the
first checkpoint whose policy reaches the target as the mean return of 20 episodes with the most likely actions.
`steps_to_mean` is the step at which the mean return of the last 100 episodes of training reaches the target. On
CartPole, these 100 episodes take at least 47,500 steps. A cell is empty if a run does not reach the target.
`train_return_100` is the mean return of the last 100 episodes of training, and `evaluate_return` that of 20 episodes
with the most likely actions at the end.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from figures.common.command_line import script_parser
from figures.common.paths import ROOT
from figures.common.tables import append_rows, has_row, read_rows, write_rows
from shmppo.config.flags import parse_start
from shmppo.policies.evaluation import evaluate
from shmppo.utils.machine import git_revision

FOLDER = Path(__file__).parent
SEARCHES, FRESH = FOLDER / "search.csv", FOLDER / "fresh.csv"


class Task(NamedTuple):
    """A task to search for."""

    train: str
    """Flags of `train`: the default configuration. It is the first trial."""
    search: str
    """Flags of `search`."""
    seeds: int
    """Runs per trial."""
    total_steps: int
    """Of each run."""
    target: float
    """Mean return. Gymnasium's threshold for a solved task."""
    preset: str = ""
    """Name of the preset with the best configuration. Empty: there is none."""


TASKS = {
    "cartpole": Task("", "--objective mean", 3, 100_000, 475.0),
    "double_pendulum": Task(
        "--env InvertedDoublePendulum-v5 --hide-obs 5 6 7", "", 1, 100_000, 9_100.0, "InvertedDoublePendulum-v5-memory"
    ),
    "lunarlander": Task("--env LunarLander-v3 --hide-obs 2 3 5", "", 3, 200_000, 200.0),
    "pendulum": Task("--preset Pendulum-v1-memory", "", 3, 100_000, -200.0),
    "hopper": Task("--preset Hopper-v5", "", 1, 1_000_000, 3_000.0),
    "swimmer": Task(
        "--env Swimmer-v5 --core none --encoder-sizes 64 64 --separate-critic all --num-envs 1 --rollout-steps 2048 "
        "--minibatches 32 --epochs 10 --learning-rate 3e-4 --value-clip",  # as the presets for other MuJoCo tasks
        "--space figures/search/swimmer/space.yaml",
        3,
        300_000,
        360.0,
    ),
}
TRIALS = 30
CHECKPOINTS = 48
EPISODES = 20


def train_flags(task: str) -> list[str]:
    """Return the flags of `train` with which the search of a task starts."""
    return [*TASKS[task].train.split(), "--total-steps", str(TASKS[task].total_steps)]


def measure_search(task: str) -> None:
    """Search, or continue an interrupted search. Write the files of the task and its row of search.csv."""
    directory = ROOT / "runs" / "search" / task
    began, continued = time.monotonic(), directory.exists()
    search = [*TASKS[task].search.split(), "--trials", str(TRIALS), "--seeds", str(TASKS[task].seeds)]
    command = [sys.executable, "-m", "shmppo.search", *search, "--search-dir", str(directory), "--", *train_flags(task)]
    subprocess.run(command, cwd=ROOT, check=True)
    duration = round(time.monotonic() - began)
    (FOLDER / task).mkdir(exist_ok=True)
    for name in ("trials.csv", "best.json"):
        shutil.copy(directory / name, FOLDER / task / name)
    rows = read_rows(FOLDER / task / "trials.csv")
    row = {
        "task": task,
        "trials": len(rows),
        "wall_seconds": "" if continued else duration,
        **spent_steps(rows, TASKS[task]),
        "commit": (git_revision() or "installed")[:7],
    }
    write_rows(SEARCHES, [*(other for other in read_rows(SEARCHES) if other["task"] != task), row])
    fresh = [other for other in read_rows(FRESH) if other["task"] != task]
    if fresh:
        write_rows(FRESH, fresh, note=None)
    else:
        FRESH.unlink(missing_ok=True)
    shutil.rmtree(directory)


def spent_steps(trials: Iterable[Mapping[str, str]], task: Task) -> dict[str, int]:
    """Return the steps of the search, and of the same search without continued trials or without early stopping."""
    spent = {"steps": 0, "steps_if_begun_again": 0, "steps_without_stopping": 0}
    for trial in trials:
        steps, iteration = int(trial["env_steps"]), int(trial["iteration"])
        if iteration:
            batch = steps // iteration // task.seeds
            whole = math.ceil(task.total_steps / batch)
            rungs = [math.ceil(whole / part) for part in (9, 3, 1)]  # of the defaults, --rungs 3 and --eta 3
            spent["steps"] += steps
            spent["steps_if_begun_again"] += task.seeds * batch * sum(rung for rung in rungs if rung <= iteration)
            spent["steps_without_stopping"] += task.seeds * batch * whole
    return spent


def measure_fresh(task: str, configuration: str, seed: int, run_dir: Path) -> dict[str, Any]:
    """Train with a new seed, and return the row of fresh.csv. configuration: "default" or "best"."""
    preset = TASKS[task].preset
    best = ["--preset", preset] if preset else ["--config", str(FOLDER / task / "best.json")]
    flags = best if configuration == "best" else train_flags(task)
    keep = max(1, TASKS[task].total_steps // CHECKPOINTS // parse_start(flags)[0].batch_steps)
    command = [sys.executable, "-m", "shmppo.train", *flags, "--seed", str(seed), "--keep-every", str(keep)]
    command += ["--workers", "0", "--quiet", "--run-dir", str(run_dir)]
    subprocess.run(command, cwd=ROOT, check=True)
    rows = read_rows(run_dir / "metrics.csv")
    target = TASKS[task].target
    steps = {int(row["iteration"]): int(float(row["env_steps"])) for row in rows}
    mean = [row for row in rows if float(row["episodes"]) >= 100 and float(row["return_mean_100"]) >= target]
    kept = [iteration for iteration in steps if iteration % keep == 0]
    solved = (steps[i] for i in kept if fmean(evaluate(run_dir, checkpoint=i, episodes=EPISODES).returns) >= target)
    return {
        "task": task,
        "configuration": configuration,
        "seed": seed,
        "steps_to_solve": next(solved, ""),
        "steps_to_mean": int(float(mean[0]["env_steps"])) if mean else "",
        "train_return_100": round(float(rows[-1]["return_mean_100"]), 2),
        "evaluate_return": round(fmean(evaluate(run_dir, episodes=EPISODES).returns), 2),
    }


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("part", choices=("search", "fresh"), help="what to measure")
    parser.add_argument("tasks", nargs="+", choices=TASKS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[101, 102, 103, 104, 105], help="new seeds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        for task in options.tasks:
            if options.part == "search":
                if not has_row(SEARCHES, {"task": task}):
                    measure_search(task)
                continue
            for seed in options.seeds:
                for name in ("default", "best"):
                    if not has_row(FRESH, {"task": task, "configuration": name, "seed": seed}):
                        row = measure_fresh(task, name, seed, Path(directory) / f"{task}-{name}-{seed}")
                        append_rows(FRESH, [row])
                        print(row, flush=True)


if __name__ == "__main__":
    main()
