"""Train with some seeds, each twice: calm, and with a stop and a resume.

    python -m figures.suites.one_resume SEED,SEED,… --env ENV [FLAG …]

Prints a list in JSON, with one mapping per seed: whether the weights are the same, and how many steps of the
determinism check find that the environment is not reproducible. The runs are shorter than this check, so it is separate
here.
"""

from __future__ import annotations

import dataclasses
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from figures.suites.one_check import check
from shmppo import resume, train
from shmppo.config.flags import parse_config
from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.errors import run_command

ITERATIONS = 6
JOB = (
    f"--num-envs 4 --rollout-steps 64 --total-steps {ITERATIONS * 4 * 64} --minibatches 2 --grad-shards 2 --seq-len 8 "
    "--hidden-size 16 --encoder-sizes 16 --quiet --workers 0 --check-determinism 0"
)
LADDER = (500, 1_000, 2_000, 5_000)
"""Steps of the check until it finds a difference. If the weights are the same, only the first number is tried."""


def resume_once(config: TrainConfig) -> dict[str, Any]:
    """Train calmly, and with a stop and a resume, and check the environment with the seed of the run."""
    stopped_after = random.Random(config.seed).randrange(1, ITERATIONS)
    with tempfile.TemporaryDirectory() as directory:
        first, second = Path(directory, "first"), Path(directory, "second")
        calm = train(dataclasses.replace(config, run_dir=str(first)))
        train(dataclasses.replace(config, run_dir=str(second), stop_at_iteration=stopped_after))
        resumed = resume(second, stop_at_iteration=None)
    found = {"stopped_after": stopped_after, "same_hash": calm["weights_sha256"] == resumed["weights_sha256"]}
    task = inspect_task(config)
    for steps in LADDER[:1] if found["same_hash"] else LADDER:
        if difference := check(config, task, steps).difference:
            return found | {"found_by": steps, "difference": difference}
    return found | {"found_by": None, "difference": None}


def main() -> None:
    seeds, words = map(int, sys.argv[1].split(",")), sys.argv[2:]
    config = parse_config([*JOB.split(), *words])
    print(json.dumps([resume_once(dataclasses.replace(config, seed=seed)) for seed in seeds]))


if __name__ == "__main__":
    sys.exit(run_command(main))
