"""Train HalfCheetah with an actor that sees only positions, in four cases.

In the first case the critic also sees the velocities. In the others it sees only positions. Actor and critic have an
LSTM each in the first two cases, an LRU in the third, and no memory in the last.

    python -m figures.privileged_critic.measure --seeds 1 2 3

Trains examples/privileged_critic.py and evaluates the policy over 20 episodes. Appends a row to privileged_critic.csv
after each run, and skips runs that the table has.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from figures.common.command_line import script_parser
from figures.common.evaluated_runs import add_run
from figures.common.paths import ROOT

TABLE = Path(__file__).with_name("privileged_critic.csv")
CASES = {
    "privileged": [],
    "unprivileged": ["--critic-obs", "positions"],
    "lru": ["--critic-obs", "positions", "--core", "lru"],
    "memoryless": ["--critic-obs", "positions", "--core", "none"],
}
"""Case -> its flags."""


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=1_000_000, help="environment steps of each run")
    options = parser.parse_args()
    for seed, (case, flags) in itertools.product(options.seeds, CASES.items()):
        script = ROOT / "examples" / "privileged_critic.py"
        add_run(TABLE, {"case": case}, seed, [script, *flags, "--total-steps", options.steps])


if __name__ == "__main__":
    main()
