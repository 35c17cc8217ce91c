"""Statistics of an iteration that the state of a run computes."""

from __future__ import annotations

import numpy as np
import pytest

from shmppo.runs.training import waiting_share


def test_the_waiting_share_is_the_mean_over_the_workers() -> None:
    assert waiting_share(np.array([1.0, 2.0, 4.0, 1.0])) == pytest.approx(0.5)
    assert waiting_share(np.array([3.0])) == 0
