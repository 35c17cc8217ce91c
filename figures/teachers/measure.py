"""Measure how much teachers and demonstrations improve returns.

    python -m figures.teachers.measure --seeds 1 2 3

The teachers are the policies of examples/trained, which see everything. The student of examples/teacher_student.py sees
positions only and learns alone or with the teacher; a student that sees everything only imitates. On Hopper, a policy
without memory starts from random weights, or from a clone of 50 recorded episodes. Runs that the table has are not
repeated. Appends to teachers.csv.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

from figures.common.command_line import script_parser
from figures.common.evaluated_runs import RUNS, add_run, train
from figures.common.paths import ROOT

TABLE = Path(__file__).with_name("teachers.csv")
TASKS = {"HalfCheetah-v5": (8, -2.0), "Hopper-v5": (5, -1.0)}
"""Task -> how many of the first numbers of the observation are positions, and the initial log standard deviation."""
STUDENTS = ("alone", "teacher", "teacher to the end", "imitate")
HOPPER = ("-m", "shmppo.train", "--preset", "HalfCheetah-v5", "--env", "Hopper-v5")


def teacher_of(task: str) -> Path:
    """Return the directory of the policy that was trained on a task."""
    return ROOT / "examples" / "trained" / task.partition("-")[0].lower()


def student(task: str, case: str, steps: int) -> list[object]:
    """Return the program that trains the student of a task for some steps, and its flags."""
    positions, log_std = TASKS[task]
    wrapper = f"shmppo.envs.wrappers:SplitObservation(everything=[None], positions=[{positions}])"
    script = ROOT / "examples" / "teacher_student.py"
    teacher = None if case == "alone" else teacher_of(task)
    flags = ["--env", task, "--wrappers", wrapper, "--log-std-init", log_std]
    teacher_steps = {"teacher": 200_000, "teacher to the end": steps}.get(case)
    flags += ["--teacher", teacher, "--teacher-steps", teacher_steps, "--total-steps", steps]
    if case == "imitate":
        flags += ["--objective", "distill", "--actor-obs", "everything"]
    return [script, *flags]


def clone(seed: int) -> Path:
    """Record 50 episodes of Hopper, clone them, and return the directory of the clone."""
    episodes, run_dir = RUNS / "teachers" / "hopper.npz", RUNS / "teachers" / f"clone-s{seed}"
    if not episodes.exists():
        command = ["-m", "shmppo.evaluate", teacher_of("Hopper-v5"), "--episodes", 50, "--record", episodes]
        subprocess.run([sys.executable, *map(str, command)], check=True, cwd=ROOT)
    flags = ["--objective", "clone", "--demonstrations", episodes, "--total-steps", 300_000]
    train([*HOPPER, *flags], seed, run_dir)
    return run_dir


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--steps", nargs="+", type=int, default=[300_000, 1_000_000], help="of a student")
    options = parser.parse_args()
    for seed in options.seeds:
        for steps, task, case in itertools.product(options.steps, options.tasks, STUDENTS):
            key = {"task": task, "case": case, "steps": str(steps)}
            add_run(TABLE, key, seed, student(task, case, steps))
        warm = ["--init-from", clone(seed), "--log-std-min", -2]
        for case, starts in {"scratch": [], "clone": warm}.items():
            key = {"task": "Hopper-v5", "case": case, "steps": "300000"}
            add_run(TABLE, key, seed, [*HOPPER, *starts, "--total-steps", 300_000])


if __name__ == "__main__":
    main()
