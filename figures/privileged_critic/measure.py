"""Train HalfCheetah with positions for the actor, and with a critic that sees the velocities or does not.

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
CRITICS = {"positions and velocities": [], "positions": ["--critic-obs", "positions"]}
"""What the critic sees, and the flags for it."""


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=1_000_000, help="environment steps of each run")
    options = parser.parse_args()
    for seed, (critic, flags) in itertools.product(options.seeds, CRITICS.items()):
        script = ROOT / "examples" / "privileged_critic.py"
        add_run(TABLE, {"critic": critic}, seed, [script, *flags, "--total-steps", options.steps])


if __name__ == "__main__":
    main()
