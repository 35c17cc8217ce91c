"""Statistics of an iteration that the state of a run computes."""

from __future__ import annotations

import numpy as np
import pytest

from shmppo.config.info_keys import parse_info_keys
from shmppo.runs.training import EpisodeStatistics, waiting_share


def test_the_waiting_share_is_the_mean_over_the_workers() -> None:
    assert waiting_share(np.array([1.0, 2.0, 4.0, 1.0])) == pytest.approx(0.5)
    assert waiting_share(np.array([3.0])) == 0


def test_means_are_those_of_the_last_100_episodes() -> None:
    statistics = EpisodeStatistics(parse_info_keys(("level",))[:1])
    for n in range(1, 121):
        statistics.add([[10.0 * n, n, -n]])
    assert (statistics.count, statistics.return_mean, statistics.length_mean) == (120, 705.0, 70.5)
    assert statistics.info_means == {"info/level": -70.5}


def test_a_resume_keeps_the_names_of_metrics_that_recent_episodes_lack() -> None:
    keys = parse_info_keys(())
    before, after = EpisodeStatistics(keys), EpisodeStatistics(keys)
    before.add([[1.0, 2.0, *[0.5] * len(keys)]])
    before.add([[1.0, 2.0, *[np.nan] * len(keys)]] * 100)
    after.load(before.state())
    assert len(before.info_means) == len(keys) > 0
    assert list(after.info_means) == list(before.info_means)
