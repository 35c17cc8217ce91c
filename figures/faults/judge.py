"""Judge a disturbed run: list what it did wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from figures.faults.disturbances import Disturbance
from figures.faults.environments import EXIT_CODE
from shmppo.errors import INTERRUPTED, ConfigError

SIGNAL_CODES = {"KILL": -9, "SEGV": -11, "STOP": -9, "STOP-CONT": -9}
"""Exit code of a process that gets this signal. The campaign kills a learner that stays stopped."""


@dataclass(frozen=True)
class Evidence:
    """What was observed of a disturbed run."""

    hit: bool
    """Whether the fault affected something."""
    hung: bool
    codes: Sequence[int]
    """Exit code of each rank."""
    stderr: Sequence[str]
    """Text of each rank on stderr."""
    resumed_codes: Sequence[int]
    """Exit codes of the run that continued it; empty if it needed none."""
    resumed_stderr: Sequence[str]
    same_hash: bool
    """Whether the weights at the end are those of the undisturbed run."""
    exact: bool
    left_processes: Sequence[str]
    """Commands of processes that have not ended with the run."""


def defects(chosen: Disturbance, seen: Evidence) -> list[str]:
    """Return the defects that the evidence shows; an empty list if the run did what it should."""
    found = []
    if seen.hung:
        found.append("hung")
    if seen.left_processes:
        found.append(f"processes left: {', '.join(seen.left_processes)}")
    ended = not seen.resumed_codes or any(map(_errors, seen.stderr))  # when the signal came, at least on one rank
    for rank, (code, text) in enumerate(zip(seen.codes, seen.stderr, strict=False)):
        allowed = allowed_codes(chosen, rank)
        if chosen.stopped_by and ended:
            allowed |= {INTERRUPTED, -2, -15}
        found += [f"rank {rank}: {defect}" for defect in _rank_defects(chosen, rank, code, text, allowed)]
    if must_survive(chosen) and seen.hit and any(seen.codes):
        found.append(f"ended with {list(seen.codes)} instead of replacing the process")
    if any(seen.resumed_codes):
        found.append(f"could not continue: codes {list(seen.resumed_codes)}, {_end(seen.resumed_stderr[0])}")
    elif not seen.hung:
        found += [] if seen.same_hash else ["other weights than the undisturbed run"]
        found += [] if seen.exact or not seen.same_hash else ["not exact"]
    return found


def must_survive(chosen: Disturbance) -> bool:
    """Return whether the run must continue by itself: a worker or the evaluator fails after the first iteration."""
    if chosen.moment == "start" or chosen.stopped_by:
        return False
    by_environment = chosen.fault in ("raise", "exit") and chosen.workers > 0
    return by_environment or (chosen.target in ("worker", "evaluator") and chosen.fault != "none")


def allowed_codes(chosen: Disturbance, rank: int) -> set[int]:
    """Return the exit codes that a rank may have."""
    codes = {0}
    if chosen.fault != "none":
        codes.add(1)
    if chosen.moment == "start" and chosen.stopped_by:  # before the run handles signals
        codes |= {1, INTERRUPTED, -2, -15}
    if rank == chosen.rank and chosen.target == "learner":
        codes.add(SIGNAL_CODES.get(chosen.fault, 1))
    in_learner = not chosen.workers or chosen.moment == "start"  # which also makes environments to check them
    if chosen.fault == "exit" and in_learner:
        codes.add(EXIT_CODE)
    if chosen.fault == "raise" and in_learner:
        codes.add(2)
    if chosen.fault in ("disk", "delete") and chosen.moment == "start":  # the run cannot open its files
        codes.add(2)
    return codes


def _rank_defects(chosen: Disturbance, rank: int, code: int, text: str, allowed: set[int]) -> list[str]:
    found = []
    if code not in allowed:
        found.append(f"code {code}: {_end(text)}")
    elif code in (1, 2):
        printed = 0 if code == ConfigError.exit_code and rank else 1  # all ranks raise the same ConfigError
        if len(_errors(text)) != printed:
            found.append(f"code {code} with {len(_errors(text))} lines of errors: {_end(text)}")
    if "Traceback" in text and chosen.fault != "raise" and code != INTERRUPTED:
        found.append(f"a traceback: {_end(text)}")
    return found


def _errors(text: str) -> list[str]:
    """Return the errors in a text."""
    return [line for line in text.splitlines() if line.startswith("error:")]


def _end(text: str) -> str:
    """Return the last lines of a text, for a cell of the table."""
    return " | ".join(text.strip().splitlines()[-3:])[-300:]
