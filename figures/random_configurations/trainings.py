"""Train random small configurations in several variants. Prints a row per case on the command line, as JSON."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from figures.random_configurations.generate import small_configuration
from figures.random_configurations.judge import judge_variants
from shmppo import resume, train
from shmppo.config.train_config import TrainConfig

COLUMNS = ("case", "outcome", "weights_sha256", "fields", "message")
VARIANTS: dict[str, dict[str, Any]] = {
    "0": {"workers": 0, "learning": "central"},
    "2 sharded": {"workers": 2, "learning": "sharded"},
    "2 central": {"workers": 2, "learning": "central"},
}


def resumed(fields: dict[str, Any], run_dir: str) -> dict[str, Any]:
    """Train one iteration with one worker, resume with two, and return the summary."""
    first = TrainConfig(**fields, workers=1, learning="central", stop_at_iteration=1, run_dir=run_dir)
    train(first)
    last = max(first.iterations, 1)
    return resume(run_dir, workers=2, learning="auto", stop_at_iteration=last)


def measure(case: int) -> dict[str, Any]:
    """Train one case in all variants, and return its row."""
    fields = small_configuration(case)
    results: dict[str, dict[str, Any] | BaseException] = {}
    with tempfile.TemporaryDirectory() as directory:
        for name in (*VARIANTS, "resumed"):
            run_dir = str(Path(directory) / name.replace(" ", "-"))
            try:
                if name in VARIANTS:
                    results[name] = train(TrainConfig(**fields, **VARIANTS[name], run_dir=run_dir))
                else:
                    results[name] = resumed(fields, run_dir)
            except Exception as error:
                results[name] = error
    outcome, message = judge_variants(results)
    first = results["0"]
    weights = "" if isinstance(first, BaseException) else first["weights_sha256"]
    text = json.dumps(fields) if outcome == "wrong" else ""
    return dict(zip(COLUMNS, (case, outcome, weights, text, message), strict=True))


def main(arguments: Sequence[str]) -> None:
    for case in map(int, arguments):
        print(json.dumps(measure(case)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
