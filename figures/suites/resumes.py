"""The part `resumes`: runs of BipedalWalker are stopped and resumed, with and without the wrapper `NewWorld`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from figures.common.campaigns import WRONG
from figures.suites.install import prepare, run_module
from figures.suites.suites import SUITES, Environment

TABLE = Path(__file__).with_name("resumes.csv")
RESUMES = 30
CASES_PER_PROCESS = 5
SECONDS = 3600
SUITE = next(suite for suite in SUITES if suite.name == "Box2D")
CASES = tuple(
    (environment, seed)
    for environment in SUITE.environments
    if environment.env == "BipedalWalker-v3"
    for seed in range(1, RESUMES + 1)
)


def measure(cases: Sequence[int], directory: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of these cases. A process runs several of them."""
    python, _ = prepare(SUITE, directory)
    for environment, group in itertools.groupby(cases, key=lambda case: CASES[case][0]):
        numbers = list(group)
        while numbers:
            chunk, numbers = numbers[:CASES_PER_PROCESS], numbers[CASES_PER_PROCESS:]
            yield from _rows(python, environment, chunk)


def _rows(python: Path, environment: Environment, cases: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Run cases of one environment in one process, and yield their rows."""
    seeds = ",".join(str(CASES[case][1]) for case in cases)
    output, error = run_module(
        python, "figures.suites.one_resume", [seeds, "--env", environment.env, *environment.flags], SECONDS
    )
    found: list[dict[str, Any]] = [{"error": error}] * len(cases) if error else json.loads(output)
    for case, result in zip(cases, found, strict=True):
        row = {"case": case, "env": environment.env, "flags": " ".join(environment.flags), "seed": CASES[case][1]}
        yield row | {
            "stopped_after": result.get("stopped_after", ""), "same_hash": result.get("same_hash", ""),
            "found_by": result.get("found_by") or "", "outcome": judge(result, reproducible=environment.reproducible),
            "message": (result.get("error") or result.get("difference") or "")[:400],
        }  # fmt: skip


def judge(found: dict[str, Any], *, reproducible: bool) -> str:
    """Return the outcome of a resumed run. It is wrong if it has another hash and the check finds no difference."""
    if "error" in found or (reproducible and (found["found_by"] or not found["same_hash"])):
        return WRONG
    if found["found_by"] is None:
        return "one hash" if found["same_hash"] else WRONG
    return "same hash, reported" if found["same_hash"] else "other hash, reported"
