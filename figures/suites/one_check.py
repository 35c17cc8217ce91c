"""Check one environment, and print the finding in JSON: python -m figures.suites.one_check --env ENV [FLAG …]

If a check of 1,000 steps finds a difference, the environment is checked again with several seeds. For each seed, the
output names the smallest number of steps of LADDER that finds a difference, or null.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from contextlib import closing

from figures.suites.checks import STEPS
from shmppo.config.flags import parse_config
from shmppo.config.train_config import TrainConfig
from shmppo.envs.check_process import CheckProcess
from shmppo.envs.determinism_check import Finding
from shmppo.envs.inspection import inspect_task
from shmppo.envs.spec import Task
from shmppo.errors import run_command

LADDER = (1, 10, 100, 500, 1_000, 2_000, 5_000)
SEEDS = range(1, 6)


def check(config: TrainConfig, task: Task, steps: int) -> Finding:
    """Check an environment as `shmppo check-env` does."""
    with closing(CheckProcess(config, task, steps, niceness=0)) as process:
        return process.wait()


def smallest(config: TrainConfig, task: Task, seed: int) -> int | None:
    """Return the smallest number of steps of LADDER that finds a difference."""
    seeded = dataclasses.replace(config, seed=seed)
    return next((steps for steps in LADDER if check(seeded, task, steps).difference), None)


def main() -> None:
    config = dataclasses.replace(parse_config(sys.argv[1:]), workers=0)
    task = inspect_task(config)
    finding = check(config, task, STEPS)
    seeds = SEEDS if finding.difference else ()
    print(json.dumps(finding._asdict() | {"smallest": [smallest(config, task, seed) for seed in seeds]}))


if __name__ == "__main__":
    sys.exit(run_command(main))
