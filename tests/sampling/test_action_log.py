"""The action log stores the actions of the episodes in progress, up to a limit, and restores itself from its state."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from shmppo.lockstep.action_log import ActionLog


def test_it_stores_the_actions_since_the_last_end_of_an_episode() -> None:
    actions = np.arange(2 * 4 * 3, dtype=np.float32).reshape(8, 3, 1)
    log = ActionLog(3, 1, limit=100)
    ended = np.zeros((4, 3), bool)
    ended[1, 1] = ended[3, 2] = True
    log.commit(actions[:4], ended, np.array([0, 1, 1]))
    assert [e.actions[:, 0].tolist() for e in log.episodes(range(3))] == [[0, 3, 6, 9], [7, 10], []]
    log.commit(actions[4:], np.zeros((4, 3), bool), np.array([0, 1, 1]))
    expected = [[0, 3, 6, 9, 12, 15, 18, 21], [7, 10, 13, 16, 19, 22], [14, 17, 20, 23]]
    assert [e.actions[:, 0].tolist() for e in log.episodes(range(3))] == expected
    other = ActionLog(3, 1, limit=100)
    other.load(log.state(), 2)
    assert [e.actions[:, 0].tolist() for e in other.episodes(range(3))] == expected
    assert [e.number for e in other.episodes(range(3))] == [0, 1, 1]
    log.mark_lost(0)
    assert (log.episodes(range(1))[0].number, len(log.episodes(range(1))[0].actions)) == (1, 0)


def test_an_episode_as_long_as_the_limit_can_be_replayed() -> None:
    log = ActionLog(1, 1, limit=6)
    for _ in range(2):
        log.commit(np.ones((3, 1, 1)), np.zeros((3, 1), bool), np.array([0]))
    actions = log.episodes(range(1))[0].actions
    assert actions is not None
    assert len(actions) == 6


def test_it_drops_an_episode_that_is_longer_than_its_limit() -> None:
    log = ActionLog(1, 1, limit=5)
    numbers, continues = np.array([0]), np.zeros((3, 1), bool)
    ended = np.array([[False], [True], [False]])
    log.commit(np.zeros((3, 1, 1)), continues, numbers)
    log.commit(np.ones((3, 1, 1)), continues, numbers)
    assert log.episodes(range(1))[0].actions is None
    again = ActionLog(1, 1, limit=5)
    again.load(log.state(), 2)
    assert again.episodes(range(1))[0].actions is None
    again.commit(np.full((3, 1, 1), 7.0), ended, np.array([1]))
    actions = again.episodes(range(1))[0].actions
    assert actions is not None
    assert actions.tolist() == [[7.0]]


def test_the_log_names_the_environment_of_several_agents(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log = ActionLog(6, 1, limit=5, columns_per_env=3)
    for steps in ([3, 3, 3, 3, 3, 3], [1, 1, 1, 1, 3, 1]):
        log.commit(np.zeros((3, 6, 1)), np.zeros((3, 6), bool), np.zeros(6, int), np.array(steps))
    assert [record.getMessage() for record in caplog.records] == [
        "environment 1: the episode has more than 5 steps, so it cannot be replayed"
    ]
