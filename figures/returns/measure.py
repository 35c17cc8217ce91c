"""Train and evaluate the reference tasks.

    python -m figures.returns.measure cartpole_memory halfcheetah --seeds 1 2 3
    python -m figures.returns.measure --all

Runs one seed after the other with `--workers 0`, because the number of workers does not change the result. Appends to
returns.csv, and writes the learning curves into curves/. Runs that are in the table are not repeated. After a
change of results, remove the table and the folder runs/returns. The script can be stopped at any time: the next call
resumes the unfinished run. Several copies of this script can share a machine, if each has tasks of its own.
"""

from __future__ import annotations

from pathlib import Path

from figures.common.command_line import script_parser
from figures.common.evaluated_runs import add_run
from figures.common.jobs import TASK_A
from shmppo.config.checks import flags_with_values

TABLE = Path(__file__).with_name("returns.csv")
TASKS = {
    "cartpole": "-m shmppo.train --env CartPole-v1 --core none --total-steps 100000",
    "cartpole_memory": "examples/cartpole_memory.py",
    "cartpole_memoryless": "examples/cartpole_memory.py --core none",
    "pendulum_memory": "examples/pendulum_memory.py",
    "mountaincar_memory": "examples/mountaincar_memory.py",
    "acrobot": "-m shmppo.train --env Acrobot-v1 --core none --total-steps 200000",
    "halfcheetah": "examples/halfcheetah.py",
    "halfcheetah_lstm": " ".join(["-m shmppo.train --total-steps 1000000", *flags_with_values(TASK_A)]),
    "hopper": "examples/hopper.py",
    "walker2d": "examples/walker2d.py",
    "swimmer": "-m shmppo.train --preset Swimmer-v5",
    "ant": "examples/ant.py",
    "humanoid": "examples/humanoid.py",
    "humanoid_v4": "examples/humanoid.py --env Humanoid-v4",
    "lunarlander": "-m shmppo.train --preset LunarLander-v3",
    "minigrid_memory": "examples/minigrid_memory.py",
    "pong": "examples/pong.py",
}
TASKS |= {
    f"{task}_torch": f"{TASKS[task]} --kernel torch"
    for task in ("cartpole_memory", "pendulum_memory", "mountaincar_memory", "halfcheetah")
}
"""Task -> program and flags. Tasks with torch's own modules round differently, and are otherwise the same."""
SEED_COUNTS = {
    "cartpole_memory": 5,
    "minigrid_memory": 5,
    "pong": 5,
    "cartpole_memory_torch": 4,
    "halfcheetah": 5,
    "halfcheetah_lstm": 1,
    "walker2d": 5,
}
"""Number of seeds, where it is not 3."""


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"one of {', '.join(TASKS)}")
    parser.add_argument("--all", action="store_true", help="all tasks")
    parser.add_argument("--seeds", nargs="+", type=int, help="by default the seeds that the documentation shows")
    options = parser.parse_args()
    unknown = ", ".join(set(options.tasks) - set(TASKS))
    if unknown or bool(options.tasks) == options.all:
        parser.error(f"unknown task: {unknown}" if unknown else "name tasks, or give --all")
    for task in TASKS if options.all else options.tasks:
        for seed in options.seeds or range(1, SEED_COUNTS.get(task, 3) + 1):
            add_run(TABLE, {"task": task}, seed, TASKS[task].split())


if __name__ == "__main__":
    main()
