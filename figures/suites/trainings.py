"""The part `trainings`: each environment of the suites trains with 0 and with 2 workers."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from figures.common.campaigns import WRONG
from figures.suites.install import prepare, run_module, versions
from figures.suites.suites import SUITES, Environment

TABLE = Path(__file__).with_name("trainings.csv")
CASES = tuple((suite, environment) for suite in SUITES for environment in suite.environments)
ITERATIONS = 3
JOB = (
    "--num-envs 4 --rollout-steps 32 --minibatches 2 --grad-shards 2 --epochs 2 --seq-len 8 --hidden-size 16 "
    "--encoder-sizes 16 --quiet --worker-timeout 120"
)
SECONDS = 900


def train(python: Path, environment: Environment, workers: int, directory: Path) -> tuple[dict[str, Any], str]:
    """Train with a Python. Returns the summary (empty after a failure), and the error."""
    run_dir = directory / str(workers)
    words = ["--env", environment.env, *environment.flags, *JOB.split(), "--workers", str(workers)]
    words += ["--total-steps", str(ITERATIONS * 4 * 32), "--run-dir", str(run_dir)]
    _, error = run_module(python, "shmppo.train", words, SECONDS)
    summary: dict[str, Any] = {} if error else json.loads((run_dir / "summary.json").read_text())
    return summary, error


def judge(summaries: Sequence[dict[str, Any]], errors: Sequence[str], *, reproducible: bool) -> tuple[str, str]:
    """Return the outcome of an environment and a message.

    Args:
        summaries: of the runs.
        errors: of the runs, "" for a run without an error.
        reproducible: whether the environment is a function of its seed. The part `checks` shows that the check of
            determinism agrees; these runs are shorter than the check.
    """
    if any(errors):
        refused = all(error.startswith("code 2: error: ") for error in errors)
        return "refused" if refused else WRONG, next(error for error in errors if error)
    reasons = "; ".join(sorted({reason for summary in summaries for reason in summary["inexact_reasons"]}))
    if not reproducible:
        return "not reproducible", reasons
    if reasons:
        return WRONG, reasons
    same = len({summary["weights_sha256"] for summary in summaries}) == 1
    return ("one hash", "") if same else (WRONG, "different hashes, but exact")


def measure(cases: Sequence[int], directory: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of these cases."""
    for case in cases:
        suite, environment = CASES[case]
        python, message = prepare(suite, directory)
        row = {
            "case": case, "suite": suite.name, "install": suite.install, "conflicts": message,
            "versions": versions(python, suite), "env": environment.env, "flags": " ".join(environment.flags),
        }  # fmt: skip
        with tempfile.TemporaryDirectory() as runs:
            results = [train(python, environment, workers, Path(runs)) for workers in (0, 2)]
        summaries, errors = [summary for summary, _ in results], [error for _, error in results]
        outcome, text = judge(summaries, errors, reproducible=environment.reproducible)
        weights = summaries[0].get("weights_sha256", "")
        yield row | {"weights_sha256": weights, "outcome": outcome, "message": text[:400]}
