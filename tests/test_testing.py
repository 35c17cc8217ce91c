"""The environment with random latencies."""

from __future__ import annotations

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
