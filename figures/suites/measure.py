"""Install suites of environments, train on them, check that they are reproducible, and resume runs.

    python -m figures.suites.measure trainings --directory /tmp/suites
    python -m figures.suites.measure checks --directory /tmp/suites
    python -m figures.suites.measure resumes --directory /tmp/suites

Each suite is installed into a virtual environment of its own in --directory (default: a temporary directory). That
environment also contains the packages of the Python that runs this script, so torch is not installed again.

trainings: each environment of `suites.py` trains for 3 iterations with 0 and with 2 workers. checks: the determinism
check of each environment, and for those that are not reproducible, the number of steps that finds it. resumes: runs of
BipedalWalker are stopped and resumed with another number of workers.

Each part writes a table with one row per case, and continues it if it was stopped. `--only NUMBER` repeats a row.
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path

from figures.common.campaigns import campaign_parser, run_campaign
from figures.suites import checks, resumes, trainings

PARTS = {"trainings": trainings, "checks": checks, "resumes": resumes}


def main() -> int:
    parser = campaign_parser(__doc__, max(len(part.CASES) for part in PARTS.values()))
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--directory", type=Path, help="of the virtual environments (default: a temporary directory)")
    options = parser.parse_args()
    part = PARTS[options.part]
    with tempfile.TemporaryDirectory() as temporary:
        directory = (options.directory or Path(temporary)).absolute()
        directory.mkdir(parents=True, exist_ok=True)
        measure = partial(part.measure, directory=directory)
        return run_campaign(part.TABLE, min(options.cases, len(part.CASES)), measure, options.only)


if __name__ == "__main__":
    sys.exit(main())
