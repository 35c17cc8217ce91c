"""Train and evaluate the reference tasks.

    python -m figures.returns.measure cartpole_memory cartpole_memoryless pendulum_memory halfcheetah --seeds 1 2 3

Runs one seed after the other with `--workers 0`, because the number of workers does not change the result. Several
copies of this script can share a machine. Runs that are in the table already are not repeated. Appends to returns.csv,
and writes the learning curves into curves/.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from figures.common.command_line import script_parser
from figures.common.evaluated_runs import add_run

TABLE = Path(__file__).with_name("returns.csv")
TASKS = {
    "cartpole": "-m shmppo.train --env CartPole-v1 --core none --total-steps 100000",
    "cartpole_memory": "examples/cartpole_memory.py",
    "cartpole_memoryless": "examples/cartpole_memory.py --core none",
    "pendulum_memory": "examples/pendulum_memory.py",
    "mountaincar_memory": "examples/mountaincar_memory.py",
    "acrobot": "-m shmppo.train --env Acrobot-v1 --core none --total-steps 200000",
    "halfcheetah": "examples/halfcheetah.py",
    "hopper": "examples/hopper.py",
    "walker2d": "examples/walker2d.py",
    "minigrid_memory": "examples/minigrid_memory.py",
    "pong": "examples/pong.py --stop-at-iteration 977",  # the first million of ten million steps
}


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("tasks", nargs="+", choices=TASKS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    options = parser.parse_args()
    for task, seed in itertools.product(options.tasks, options.seeds):
        add_run(TABLE, {"task": task}, seed, TASKS[task].split())


if __name__ == "__main__":
    main()
