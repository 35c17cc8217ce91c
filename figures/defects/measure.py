"""Run the tests of known defects with the version that had them, and with this checkout.

    python -m figures.defects.measure 2881fb8

The tests are those of this checkout. They use only the command line and the public API, so they also run with the
package of an older commit. Writes one row per test case to defects.csv: its outcome with both versions: "fails" if an
assertion does not hold, "other words" if only the text of a message differs, "error" after another exception. Tests
that need what is not permitted, such as mounting a disk, are "skipped".
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from figures.commits.measure import checkout
from figures.common.command_line import script_parser
from figures.common.paths import ROOT
from figures.common.tables import read_rows, write_rows
from figures.defects.tests import DEFECTS

TABLE = Path(__file__).with_name("defects.csv")
TESTS = ROOT / "tests"
SECONDS = 600  # per test case, after which it fails
NOT_TRIED = "num-layers or verify"  # the old version makes layers until the memory is full, and has no such command
MARK = "SHMPPO_DEFECTS"  # variable in the environment of the processes of a test
MESSAGE = 160  # characters of an assertion in the table


class Outcome(NamedTuple):
    """The outcome of a test case, and the first line of its failure."""

    name: str
    message: str


def run_tests(selected: Sequence[str], package: Path) -> dict[str, Outcome]:
    """Run tests of this checkout with the package of another one. Return the outcome of each case.

    Args:
        selected: the tests, as `FILE::NAME` below tests/.
        package: root of the checkout whose package the tests import.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=", "--timeout", SECONDS]
    command += ["-c", ROOT / "setup.cfg", "--rootdir", ROOT]
    if package != ROOT:  # conftest.py imports the package of this checkout
        command += ["--noconftest", "-p", "public_helpers", "-k", f"not ({NOT_TRIED})"]
    paths = os.pathsep.join(map(str, (package, TESTS)))
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        command += ["-o", f"pythonpath={package} {TESTS}", "--junitxml", report, *(TESTS / test for test in selected)]
        mark = {MARK: directory}
        subprocess.run(
            list(map(str, command)),
            cwd=package,
            env=os.environ | {"PYTHONPATH": paths} | mark,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        _kill_processes(mark)
        return read_report(report)


def _kill_processes(mark: Mapping[str, str]) -> None:
    """Kill the processes that failed tests have left. They have this mark in their environment."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if mark.items() <= process.environ().items():
                process.kill()


def read_report(report: Path) -> dict[str, Outcome]:
    """Read the outcomes from a report of pytest in the format of JUnit."""
    found: dict[str, Outcome] = {}
    if not report.exists():  # the tests were killed
        return found
    for case in ElementTree.parse(report).iter("testcase"):
        outcome = Outcome("passes", "")
        for result in case:
            message = result.get("message", "")
            first = message.partition("\n")[0]
            if result.tag == "failure":
                outcome = Outcome(_kind_of_failure(message), first)
                break
            if result.tag in ("error", "skipped"):
                outcome = Outcome(result.tag, first)
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        if name not in found or found[name].name == "passes":  # the teardown after a failure does not count
            found[name] = outcome
    return found


def _kind_of_failure(message: str) -> str:
    if message.startswith("AssertionError: the message is: "):
        return "other words"
    return "fails" if message.startswith(("AssertionError", "assert ", "Failed: ")) else "error"


def cases_of(selected: Sequence[str], outcomes: Iterable[str]) -> list[str]:
    """Return the test cases that belong to selected tests, in the order of `outcomes`."""
    keys = []
    for test in selected:
        file, _, name = test.partition("::")
        keys.append(f"{Path(file).stem}::{name}" if name else Path(file).stem)
    return [
        case for case in outcomes if any(key in (case, case.partition("[")[0], case.partition("::")[0]) for key in keys)
    ]


def measure(chosen: Sequence[str], old: Path, commit: str) -> list[dict[str, str]]:
    """Return the rows of some defects."""
    selected = [test for defect in chosen for test in DEFECTS[defect]]
    before, now = run_tests(selected, old), run_tests(selected, ROOT)
    missing = Outcome("not tried", "")
    return [
        {
            "defect": defect,
            "test": test,
            commit: before.get(test, missing).name,
            "now": now.get(test, missing).name,
            "assertion": before.get(test, missing).message[:MESSAGE],
        }
        for defect in chosen
        for test in cases_of(DEFECTS[defect], {**before, **now})
    ]


def main() -> int:
    parser = script_parser(__doc__)
    parser.add_argument("commit", help="the older commit")
    parser.add_argument("--only", nargs="+", choices=DEFECTS, help="measure only these defects again")
    options = parser.parse_args()
    chosen = options.only or list(DEFECTS)
    with checkout(options.commit) as old:
        rows = measure(chosen, old, options.commit)
    rows += [row for row in read_rows(TABLE) if row["defect"] not in chosen and row["defect"] in DEFECTS]
    rows.sort(key=lambda row: list(DEFECTS).index(row["defect"]))
    shown = sum(row[options.commit] == "fails" and row["now"] == "passes" for row in rows)
    write_rows(TABLE, rows, f"{shown} of {len(rows)} test cases fail with {options.commit} and pass now.")
    for row in rows:
        print(row[options.commit], row["now"], row["test"], sep="\t")
    return int(any(row["now"] not in ("passes", "skipped") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
