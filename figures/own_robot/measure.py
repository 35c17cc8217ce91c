"""Train the arm of examples/own_robot.py with memory, without memory, and as a teacher that sees everything.

    python -m figures.own_robot.measure --seeds 1 2 3

Appends a row to own_robot.csv after each run, and skips runs that the table has.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from figures.common.command_line import script_parser
from figures.common.evaluated_runs import CURVE_COLUMNS, add_run, evaluate_run
from figures.common.paths import ROOT

TABLE = Path(__file__).with_name("own_robot.csv")
CASES = {"memory": [], "memoryless": ["--core", "none"], "teacher": ["--core", "none", "--actor-obs", "None"]}
"""Case -> its flags."""


def success(run_dir: Path) -> dict[str, float]:
    """Evaluate a run over 100 episodes, and return its rate of success."""
    return {"success": evaluate_run(run_dir, 100)["info/is_success_mean"]}


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    options = parser.parse_args()
    columns = [*CURVE_COLUMNS, "info/is_success"]
    for seed, (case, flags) in itertools.product(options.seeds, CASES.items()):
        script = ROOT / "examples" / "own_robot.py"
        add_run(TABLE, {"case": case}, seed, [script, *flags], columns=columns, more=success)


if __name__ == "__main__":
    main()
