"""Try random configurations: each is refused in one sentence, or trains with the same weights in all variants.

    python -m figures.random_configurations.measure validation --cases 10000
    python -m figures.random_configurations.measure trainings --cases 500
    python -m figures.random_configurations.measure commands --cases 300

validation: fields and command lines with many flags, odd sizes, extreme values, and wrong types are only checked.
trainings: small configurations train with 0 workers, with 2 workers and both ways of learning, and stopped and resumed.
Runs that report `exact` must have one hash. commands: `python -m shmppo.train` trains one iteration, or ends with exit
code 2 and one line on stderr, or with exit code 1 if the training itself fails.

Each part writes its table and continues it if it was stopped. The number of a case determines its configuration;
`--only NUMBER` repeats it.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from figures.common.campaigns import WRONG, campaign_parser, in_fresh_processes, run_campaign
from figures.common.paths import ROOT
from figures.random_configurations.generate import command_line, configuration, small_command_line
from figures.random_configurations.judge import Outcome, judge_command, judge_validation
from shmppo.config.flags import parse_config
from shmppo.config.train_config import TrainConfig

FOLDER = Path(__file__).parent
CASES_PER_PROCESS = 25
TIMEOUT = 300.0  # seconds for one case


def validate(case: int) -> Outcome:
    """Check one configuration: even cases by `TrainConfig`, odd cases by the parser of the command line."""
    result: TrainConfig | BaseException
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("error")
        try:
            result = parse_config(command_line(case)) if case % 2 else TrainConfig(**configuration(case))
            return judge_validation(result)
        except (Exception, SystemExit) as error:
            return judge_validation(error)


def validations(cases: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield the rows of the part `validation`."""
    for case in cases:
        outcome, message = validate(case)
        given = (command_line(case) if case % 2 else configuration(case)) if outcome == WRONG else ""
        yield {"case": case, "outcome": outcome, "given": repr(given)[:300] if given else "", "message": message}


def trainings(cases: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield the rows of the part `trainings`."""
    from figures.random_configurations.trainings import COLUMNS

    command = ["figures.random_configurations.trainings"]
    yield from in_fresh_processes(command, cases, every=CASES_PER_PROCESS, timeout=TIMEOUT, columns=COLUMNS)


def commands(cases: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield the rows of the part `commands`."""
    for case in cases:
        words = small_command_line(case)
        with tempfile.TemporaryDirectory() as directory:
            outcome, message = run_command(words, Path(directory))
        given = " ".join(words) if outcome == WRONG else ""
        yield {"case": case, "outcome": outcome, "given": given, "message": message}


def run_command(words: Sequence[str], directory: Path, timeout: float = TIMEOUT) -> Outcome:
    """Run `train` with these words in an empty directory, and judge how it ended."""
    run_dir = directory / "run"
    command = [sys.executable, "-m", "shmppo.train", "--run-dir", str(run_dir), *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command, cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    try:
        stderr = process.communicate(timeout=timeout)[1]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return WRONG, f"hung for {timeout:g} s"
    files = sorted(path.name for path in directory.rglob("*") if path.is_file())
    return judge_command(process.returncode, stderr, files)


PARTS = {"validation": (validations, 10_000), "trainings": (trainings, 500), "commands": (commands, 300)}
"""The rows of each part, and its number of cases."""


def main() -> int:
    parser = campaign_parser(__doc__, 0)
    parser.add_argument("part", choices=PARTS, help="what happens to the configurations")
    options = parser.parse_args()
    measure, cases = PARTS[options.part]
    return run_campaign(FOLDER / f"{options.part}.csv", options.cases or cases, measure, options.only)


if __name__ == "__main__":
    sys.exit(main())
