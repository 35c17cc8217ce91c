"""The log file of a run: what the check before the run has warned of is written once."""

from __future__ import annotations

import logging
from pathlib import Path

from shmppo.utils.logs import buffer_records, log_to

log = logging.getLogger("shmppo.test")


def test_a_warning_of_the_check_is_not_repeated_but_other_records_are(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    with log_to(path, []):
        log.warning("of an earlier part of the run")
    with buffer_records() as records:
        log.warning("the first line\nthe second line")
    with log_to(path, records):
        for _ in range(2):
            log.warning("the first line\nthe second line")
            log.warning("the second line")
            log.error("an error")
        log.warning("of an earlier part of the run")
    with log_to(path):  # a worker
        for text in ("the first line\nthe second line", "of an earlier part of the run"):
            log.warning(text)
        log.error("an error")
    text = path.read_text()
    assert text.count("WARNING the first line\n    the second line\n") == 1
    assert text.count("WARNING the second line\n") == 2
    assert text.count("WARNING of an earlier part of the run\n") == 2
    assert text.count("ERROR an error\n") == 3


def test_colors_are_removed(tmp_path: Path) -> None:
    with log_to(tmp_path / "run.log", []):
        log.warning("\x1b[33mWARN: out of date\x1b[0m \x1b[2J")
    assert (tmp_path / "run.log").read_text().endswith(" WARNING WARN: out of date \\x1b[2J\n")
