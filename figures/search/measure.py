"""Search on CartPole with hidden velocities, and compare the best configuration with the default one on new seeds.

    python -m figures.search.measure

The search is that of docs/guides/search.md: 30 trials on the default job. Writes trials.csv and the plots of the
search. fresh.csv has the environment steps of new seeds until the mean return of 100 episodes reaches the target, and
"" for runs that do not reach it. search.csv has the steps of the search, and those of the same search if each continued
trial began again, or if all trials trained to the end. These two are computed: the test of the search shows that a
trial that begins again has the same result.
"""

from __future__ import annotations

import csv
import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from figures.common.command_line import script_parser
from figures.common.paths import ROOT
from figures.common.tables import read_rows, write_rows
from shmppo import TrainConfig

FOLDER = Path(__file__).parent
TARGET = 475.0  # CartPole-v1 counts as solved
SEARCH = ("--trials", "30", "--objective", "mean")


def search(directory: Path) -> float:
    """Search. Returns the wall-clock seconds."""
    began = time.monotonic()
    command = [sys.executable, "-m", "shmppo.search", *SEARCH, "--search-dir", str(directory)]
    subprocess.run(command, cwd=ROOT, check=True)
    return time.monotonic() - began


def steps_to_target(flags: list[str], seed: int, run_dir: Path) -> int | None:
    """Train with a new seed. Returns the environment steps until the target; None if it is not reached."""
    command = [sys.executable, "-m", "shmppo.train", *flags, "--seed", str(seed), "--workers", "0", "--quiet"]
    subprocess.run([*command, "--run-dir", str(run_dir)], cwd=ROOT, check=True)
    for row in read_rows(run_dir / "metrics.csv"):
        if row["return_mean_100"] and float(row["return_mean_100"]) >= TARGET and float(row["episodes"]) >= 100:
            return int(float(row["env_steps"]))
    return None


def spent_steps(trials: list[dict[str, str]]) -> dict[str, int]:
    """Return the steps of the search, and of the same search without continued trials or without early stopping."""
    spent = {"steps": 0, "steps_if_begun_again": 0, "steps_without_stopping": 0}
    for trial in trials:
        steps, iteration = int(trial["env_steps"]), int(trial["iteration"])
        if iteration:
            batch = steps // iteration
            whole = math.ceil(TrainConfig().total_steps / batch)
            rungs = [math.ceil(whole / part) for part in (9, 3, 1)]  # of the defaults, --rungs 3 and --eta 3
            spent["steps"] += steps
            spent["steps_if_begun_again"] += batch * sum(rung for rung in rungs if rung <= iteration)
            spent["steps_without_stopping"] += batch * whole
    return spent


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--seeds", nargs="+", type=int, default=[101, 102, 103, 104, 105], help="new seeds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary) / "search"
        seconds = search(directory)
        for name in ("trials.csv", "best.json", "importance.svg", "slices.svg"):
            shutil.copy(directory / name, FOLDER / name)
        best = [json.dumps(json.loads((directory / "best.json").read_text()))]
        fresh = []
        for seed in options.seeds:
            for name, flags in (("default", []), ("best", ["--config", str(directory / "best.json")])):
                steps = steps_to_target(flags, seed, Path(temporary) / f"{name}-{seed}")
                fresh.append({"configuration": name, "seed": seed, "steps_to_target": steps or ""})
                print(fresh[-1], flush=True)
    write_rows(FOLDER / "fresh.csv", fresh)
    with open(FOLDER / "trials.csv", newline="") as file:
        trials = list(csv.DictReader(file))
    row = {"trials": len(trials), "wall_seconds": round(seconds), **spent_steps(trials), "best": best[0]}
    for name in ("default", "best"):
        steps = [row["steps_to_target"] or math.inf for row in fresh if row["configuration"] == name]
        row[f"median_{name}"] = median(steps)
    write_rows(FOLDER / "search.csv", [row])
    print(row)


if __name__ == "__main__":
    main()
