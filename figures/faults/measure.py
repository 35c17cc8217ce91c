"""Disturb runs, train random configurations, and train for a long time.

    python -m figures.faults.measure kills --cases 200
    python -m figures.faults.measure configurations --cases 300
    python -m figures.faults.measure soak --minutes 30

kills: small jobs with one or two ranks and 0 to 4 workers. At a random moment, also during the start, a worker or a
learner is killed or stalls, or the run gets SIGINT or SIGTERM. A run must survive the failure or the stall of a worker.
A run that ended is resumed with another number of workers. Each run must end with the weights of the undisturbed run,
and leave no process. Writes kills.csv.

configurations: random command lines. Each is refused in one sentence, or trains to the same weights without and with
workers. Writes configurations.csv.

soak: the memory and the file descriptors of a run of HalfCheetah with two workers. Writes soak.csv.

A campaign that was stopped continues at its next case. `--only NUMBER` repeats cases.
"""

from __future__ import annotations

import sys

from figures.common.campaigns import run_campaign
from figures.common.command_line import script_parser
from figures.common.paths import FIGURES
from figures.common.tables import write_rows
from figures.faults import configurations, kills, soak

FOLDER = FIGURES / "faults"
CAMPAIGNS = {"kills": kills.measure, "configurations": configurations.measure}


def main() -> int:
    parser = script_parser(__doc__)
    parser.add_argument("part", choices=(*CAMPAIGNS, "soak"))
    parser.add_argument("--cases", type=int, default=200, help="length of the table at the end, in cases")
    parser.add_argument("--only", type=int, nargs="+", default=(), help="run only these cases, and write no table")
    parser.add_argument("--parallel", type=int, default=2, help="cases at the same time")
    parser.add_argument("--minutes", type=float, default=30.0, help="length of the soak")
    options = parser.parse_args()
    table = FOLDER / f"{options.part}.csv"
    if options.part == "soak":
        write_rows(table, soak.measure(options.minutes))
        print(table.read_text(), end="")
        return 0
    return run_campaign(table, options.cases, CAMPAIGNS[options.part], only=options.only, parallel=options.parallel)


if __name__ == "__main__":
    sys.exit(main())
