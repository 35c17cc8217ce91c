"""Training with several ranks on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from figures.common.jobs import flags
from figures.common.paths import ROOT
from shmppo.plotting.curves import read_columns

WARM_UP = 3  # iterations at the start of each run that do not count
SLEEPING_JOB: dict[str, Any] = {
    "env": "figures.common.rank_environments:make", "hide_obs": (1, 3), "num_envs": 4, "rollout_steps": 128,
    "minibatches": 4, "epochs": 4, "hidden_size": 64,
}  # fmt: skip


def rank_variables(rank: int, size: int, port: int) -> dict[str, str]:
    """Return the environment variables that torchrun sets for a rank. port: where the ranks meet on this machine."""
    return {
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def torchrun(ranks: int, module: str, arguments: Sequence[str] = (), **variables: str) -> str:
    """Run a module in several processes under torchrun.

    Args:
        ranks: number of processes.
        module: the module to run.
        arguments: its command line.
        variables: additional environment variables.

    Returns:
        What the processes print.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += ["-m", module, *arguments]
    result = subprocess.run(command, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, check=False)
    if result.returncode:
        raise SystemExit(result.stderr)
    return result.stdout


def train_ranks(
    ranks: int,
    fields: Mapping[str, Any],
    iterations: int,
    run_dir: Path,
    *,
    module: str = "shmppo.train",
    **variables: str,
) -> dict[str, np.ndarray]:
    """Train with several ranks that sample by themselves.

    Args:
        ranks: number of ranks.
        fields: the configuration of one rank; must include num_envs and rollout_steps.
        iterations: length of the run.
        run_dir: directory of the run.
        module: the module to run in place of `shmppo.train`, with the same command line.
        variables: additional environment variables.

    Returns:
        Columns of metrics.csv of rank 0, each [iterations after the warm-up].
    """
    steps = ranks * iterations * fields["rollout_steps"] * fields["num_envs"]
    command = [*flags(fields), "--workers", "0", "--quiet", "--total-steps", str(steps), "--run-dir", str(run_dir)]
    torchrun(ranks, module, command, **variables)
    return {name: values[WARM_UP:] for name, values in read_columns(run_dir / "metrics.csv").items()}
