"""Orders and answers in shared memory: each order is carried out once, in turn, whoever sleeps meanwhile."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import published
from shmppo.parallel.spin_wait import spin_wait

from shmppo.config.train_config import TrainConfig
from shmppo.envs.factory import inspect_task
from shmppo.parallel import mailbox as desk_module
from shmppo.parallel.mailbox import Collect, Gradients, LearnerMailbox, Order, Refresh, Ring, Stop, WorkerMailbox
from shmppo.parallel.shared_buffers import SharedBuffers

CONFIG = TrainConfig(env="CartPole-v1", num_envs=4, rollout_steps=8, minibatches=2, workers=2, quiet=True)
ORDERS: list[Order] = [Collect(1, 0), *(Gradients(version, 0, version % 7) for version in range(2, 40)), Refresh(40)]


@pytest.fixture
def arena() -> SharedBuffers:
    return published(CONFIG, inspect_task(CONFIG))[0]


class Channel:
    """Stands for a queue between threads; `wait` below stands for multiprocessing's."""

    def __init__(self) -> None:
        self.messages: queue.Queue[Any] = queue.Queue()
        self.put, self.get = self.messages.put, self.messages.get
        self._reader = self


@pytest.fixture(autouse=True)
def channels_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    class Learner:
        sentinel = None

    def wait(channels: list[Any], timeout: float) -> list[Any]:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if not channels[0].messages.empty():
                return channels[:1]
            time.sleep(1e-4)
        return []

    monkeypatch.setattr(desk_module, "wait", wait)
    monkeypatch.setattr(desk_module.multiprocessing, "parent_process", Learner)


class Worker(threading.Thread):
    """Carries orders out by writing them down."""

    def __init__(self, arena: SharedBuffers, *, spins: bool = True, pause: Callable[[], float] = lambda: 0.0) -> None:
        super().__init__(daemon=True)
        self.commands, self.reports = Channel(), Channel()
        self.done: list[Order] = []
        self._pause = pause
        self._inbox = WorkerMailbox(arena, 1, 0, self.commands, self.reports, spins=spins)
        self.start()

    def run(self) -> None:
        while (order := self._inbox.next()) is not None:
            time.sleep(self._pause())
            self.done.append(order)
            self._inbox.answer()

    def ring(self) -> None:
        self.commands.put(Ring())

    def end(self) -> None:
        self.commands.put(Stop())
        self.join(5)
        assert not self.is_alive()


@pytest.mark.parametrize("spins", [True, False])
def test_every_order_is_carried_out_once_and_in_turn(arena: SharedBuffers, spins: bool) -> None:
    draw = np.random.default_rng(0)
    worker = Worker(arena, spins=spins, pause=lambda: float(draw.choice([0.0, 0.0, 1e-3, 5e-3])))
    desk, pauses = LearnerMailbox(arena), np.random.default_rng(1)
    for turn, order in enumerate(ORDERS, start=1):
        desk.give(1, order, worker.ring)
        assert spin_wait(lambda: desk.answered(1), seconds=5)
        assert (desk.turn(1), len(worker.done)) == (turn, turn)
        time.sleep(float(pauses.choice([0.0, 0.0, 4e-3])))  # longer than it waits awake
    worker.end()
    assert worker.done == ORDERS


def test_a_sleeping_learner_is_rung_and_one_that_looks_is_not(arena: SharedBuffers) -> None:
    worker, desk = Worker(arena), LearnerMailbox(arena)
    desk.give(1, ORDERS[0], worker.ring)
    assert spin_wait(lambda: desk.answered(1), seconds=5)
    assert worker.reports.messages.empty()
    with desk.asleep():
        desk.give(1, ORDERS[1], worker.ring)
        assert isinstance(worker.reports.messages.get(timeout=5), Ring)
        assert desk.answered(1)
    worker.end()


def test_a_ring_that_was_missed_costs_a_nap_only(arena: SharedBuffers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk_module, "NAP_SECONDS", 0.05)
    worker, desk = Worker(arena), LearnerMailbox(arena)
    desk.give(1, ORDERS[0], lambda: None)
    assert spin_wait(lambda: desk.answered(1), seconds=5)
    worker.end()


def test_settled_says_whether_all_have_answered(arena: SharedBuffers) -> None:
    worker, desk = Worker(arena), LearnerMailbox(arena)
    assert desk.settled()
    desk.give(0, ORDERS[0], lambda: None)  # nobody there
    desk.give(1, ORDERS[0], worker.ring)
    assert spin_wait(lambda: desk.answered(1), seconds=5)
    assert not desk.settled()
    worker.end()


def test_a_successor_leaves_its_predecessors_order_alone(arena: SharedBuffers) -> None:
    """It was begun by a process that is gone, and is given again."""
    desk = LearnerMailbox(arena)
    desk.give(1, ORDERS[0], lambda: None)
    inbox = WorkerMailbox(arena, 1, desk.turn(1), Channel(), Channel(), spins=False)
    assert not inbox._has_order()
    desk.give(1, ORDERS[0], lambda: None)
    assert inbox.next() == ORDERS[0]
    assert not desk.answered(1)
    inbox.answer()
    assert desk.answered(1)
