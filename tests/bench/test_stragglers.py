"""The stragglers benchmark, and the environment with random latencies that it is tried with."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import numpy as np
import pytest

from shmppo.testing import Latency


@pytest.mark.parametrize("tail", ["none", "exponential", "pareto"])
def test_latencies_have_their_mean_and_are_a_function_of_the_seed(tail: str) -> None:
    env = Latency(mean=0.01, tail=tail)  # type: ignore[arg-type]
    env.reset(seed=5)
    drawn = np.array([env.seconds() for _ in range(40_000)])
    assert np.median(drawn) <= 0.01
    assert drawn[drawn < 10].mean() == pytest.approx(0.01, rel=0.1)
    env.reset(seed=5)
    assert [env.seconds() for _ in range(3)] == drawn[:3].tolist()


@pytest.mark.long
def test_the_stragglers_command_lists_workers_and_environments(
    run_command: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    flags = ("--env", "shmppo.testing:Latency", "--env-kwargs", "mean=0.0005", "tail=exponential", "--num-envs", 4)
    small = ("--rollout-steps", 16, "--minibatches", 2, "--hidden-size", 8, "--workers", 2, "--iterations", 6)
    done = run_command("shmppo.bench", "stragglers", *flags, *small, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert 0 < result["straggler_wait"] < 1
    assert [row["environments"] for row in result["workers"]] == [2, 2]
    means = [row["mean_seconds"] for row in result["environments"]]
    assert means == sorted(means, reverse=True)
    assert min(means) > 0.0004
    text = run_command("shmppo.bench", "stragglers", *flags, *small)
    assert "waits for the slowest" in text.stdout
    refused = run_command("shmppo.bench", "stragglers", "--iterations", 3)
    assert refused.returncode == 2
    assert "must be above 3" in refused.stderr
