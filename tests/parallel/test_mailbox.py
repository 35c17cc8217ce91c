"""Commands and acknowledgements in shared memory: every command is carried out once and in order, whatever blocks."""

from __future__ import annotations

import multiprocessing
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.lockstep import mailbox
from shmppo.lockstep.mailbox import LearnerMailbox, PipeQueue, Stop, WakeUp, WorkerMailbox
from shmppo.lockstep.pool import Collect, Command, ComputeGradients, ReduceGradients
from shmppo.parallel import spin
from shmppo.parallel.shared_buffers import Control, SharedBuffers, allocate
from shmppo.parallel.spin import SpinWait
from shmppo.ppo.layout import run_fields

CONFIG = TrainConfig(env="CartPole-v1", num_envs=4, rollout_steps=8, minibatches=2, workers=2, quiet=True)
COMMANDS: list[Command] = [
    Collect(0), *(ComputeGradients(number // 7, number % 7) for number in range(2, 40)), ReduceGradients(),
]  # fmt: skip


@pytest.fixture
def control() -> Control:
    fields = run_fields(CONFIG, inspect_task(CONFIG))
    return SharedBuffers(fields, allocate(fields)).control


def becomes_true(condition: Callable[[], bool]) -> bool:
    """Whether a condition becomes true within 10 s."""
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(1e-3)
    return condition()


class ThreadQueue:
    """Stands for a PipeQueue between threads. The function `wait` below stands for that of multiprocessing."""

    def __init__(self) -> None:
        self.messages: queue.Queue[Any] = queue.Queue()
        self.put, self.get = self.messages.put, self.messages.get
        self.reader = self


@pytest.fixture(autouse=True)
def threads_instead_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Learner:
        sentinel = None

    def wait(readers: list[Any], timeout: float) -> list[Any]:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if not readers[0].messages.empty():
                return readers[:1]
            time.sleep(1e-4)
        return []

    monkeypatch.setattr(mailbox, "wait", wait)
    monkeypatch.setattr(multiprocessing, "parent_process", Learner)


class Worker(threading.Thread):
    """Worker 1. It carries commands out by recording them."""

    def __init__(
        self, control: Control, learner: LearnerMailbox, *, spins: bool = True, connected: bool = True,
        pause: Callable[[], float] = lambda: 0.0,
    ) -> None:  # fmt: skip
        """connected: whether the learner can wake this worker up; pause: seconds that each command takes."""
        super().__init__(daemon=True)
        self.commands, self.reports = ThreadQueue(), ThreadQueue()
        learner.connect(1, self.commands if connected else ThreadQueue())  # type: ignore[arg-type]
        self.done: list[Command] = []
        self._pause = pause
        self._mailbox = WorkerMailbox(control, 1, self.commands, self.reports, spins=spins)  # type: ignore[arg-type]
        self.start()

    def run(self) -> None:
        while (command := self._mailbox.receive()) is not None:
            time.sleep(self._pause())
            self.done.append(command)
            self._mailbox.acknowledge()

    def end(self) -> None:
        self.commands.put(Stop())
        self.join(5)
        assert not self.is_alive()


@pytest.mark.parametrize("spins", [True, False])
def test_every_command_is_carried_out_once_and_in_order(control: Control, spins: bool) -> None:
    draw = np.random.default_rng(0)
    learner, pauses = LearnerMailbox(control), np.random.default_rng(1)
    worker = Worker(control, learner, spins=spins, pause=lambda: float(draw.choice([0.0, 0.0, 1e-3, 5e-3])))
    sent = 0
    while sent < len(COMMANDS):
        batch = COMMANDS[sent : sent + int(pauses.integers(1, 4))]
        for number in learner.send([1], *batch):
            assert number == sent + 1
            assert becomes_true(lambda number=number: learner.is_acknowledged(1, number))
            time.sleep(float(pauses.choice([0.0, 0.0, 8e-3])))  # longer than the worker spins
            sent += 1
            assert len(worker.done) == sent, "the next one begins when the learner has done its part"
            learner.complete(number)
            learner.wake_up([1])
    worker.end()
    assert worker.done == COMMANDS


def test_an_acknowledgement_wakes_the_learner_up_only_if_it_blocks(control: Control) -> None:
    learner = LearnerMailbox(control)
    worker = Worker(control, learner)
    learner.send([1], COMMANDS[0])
    assert becomes_true(lambda: learner.is_acknowledged(1, 1))
    assert worker.reports.messages.empty()
    with learner.blocking():
        learner.send([1], COMMANDS[1])
        assert isinstance(worker.reports.messages.get(timeout=5), WakeUp)
        assert learner.is_acknowledged(1, 2)
    assert not control.learner_blocked[0]
    worker.end()


def test_a_command_wakes_a_worker_up_only_if_it_blocks(control: Control) -> None:
    learner, commands = LearnerMailbox(control), ThreadQueue()
    learner.connect(1, commands)  # type: ignore[arg-type]
    learner.send([1], COMMANDS[0])
    assert commands.messages.empty()
    control.worker_blocked[1] = 1
    learner.send([1], COMMANDS[0])
    assert commands.messages.get_nowait() == WakeUp()


def test_a_missed_wake_up_only_delays_the_command(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "BLOCK_SECONDS", 0.05)
    learner = LearnerMailbox(control)
    worker = Worker(control, learner, connected=False)
    learner.send([1], COMMANDS[0])
    assert becomes_true(lambda: learner.is_acknowledged(1, 1))
    worker.end()


def test_a_command_is_completed_when_every_worker_that_has_it_has_acknowledged_it(control: Control) -> None:
    learner = LearnerMailbox(control)
    worker = Worker(control, learner)
    learner.send([1], COMMANDS[0])
    assert becomes_true(lambda: learner.is_completed(1))
    with learner.blocking():
        learner.send([0, 1], *COMMANDS[:2])  # there is no worker 0
        learner.complete(2)
        assert becomes_true(lambda: learner.is_acknowledged(1, 2))
        assert not learner.is_completed(2)
        assert worker.reports.messages.empty(), "the last worker wakes the learner up"
        control.acknowledged[0] = 2
        assert becomes_true(lambda: learner.is_acknowledged(1, 3))
    assert len(worker.done) == 3
    worker.end()


def test_a_successor_ignores_the_command_to_its_predecessor(control: Control) -> None:
    """A process that is gone has begun to carry it out. The learner sends it again, and those that follow it."""
    learner = LearnerMailbox(control)
    learner.connect(1, ThreadQueue())  # type: ignore[arg-type]
    learner.send([1], *COMMANDS[:3])
    control.acknowledged[1] = 1
    learner.complete(1)
    commands, reports = ThreadQueue(), ThreadQueue()
    successor = WorkerMailbox(control, 1, commands, reports, spins=False)  # type: ignore[arg-type]
    assert not successor._has_command()
    learner.send_again([1])
    assert successor.receive() == COMMANDS[1]
    assert not learner.is_acknowledged(1, 2)
    successor.acknowledge()
    assert learner.is_acknowledged(1, 2)
    assert not successor._is_my_turn()
    learner.complete(2)
    assert successor.receive() == COMMANDS[2]


def test_a_successor_waits_for_its_turn_and_may_have_nothing_to_do(control: Control) -> None:
    """A process that counts as stalled may acknowledge a command before it is killed."""
    learner = LearnerMailbox(control)
    learner.connect(0, ThreadQueue())  # type: ignore[arg-type]
    learner.send([0, 1], *COMMANDS[:2])
    control.acknowledged[1] = 1
    worker = Worker(control, learner)
    learner.send_again([1])
    time.sleep(0.02)
    assert worker.done == [], "worker 0 and the learner have not completed command 1"
    control.acknowledged[0] = 1
    learner.complete(1)
    assert becomes_true(lambda: learner.is_acknowledged(1, 2))
    worker.end()
    successor = Worker(control, learner)
    learner.send_again([1])  # everything has been completed
    control.acknowledged[0] = 2
    learner.complete(2)
    learner.send([1], COMMANDS[2])
    assert becomes_true(lambda: learner.is_acknowledged(1, 3))
    successor.end()
    assert (worker.done, successor.done) == ([COMMANDS[1]], [COMMANDS[2]])


def test_a_worker_ends_when_the_learner_is_gone(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "wait", lambda readers, timeout: readers[1:])  # the learner's sentinel
    worker = WorkerMailbox(control, 1, ThreadQueue(), ThreadQueue(), spins=False)  # type: ignore[arg-type]
    assert worker.receive() is None


def test_a_command_to_a_dead_worker_raises_nothing(control: Control) -> None:
    learner, closed = LearnerMailbox(control), PipeQueue(multiprocessing)
    closed.close()
    learner.connect(1, closed)
    control.worker_blocked[1] = 1  # it died while it blocked
    learner.send([1], COMMANDS[0])
    assert control.commands[1, 0] == 1
    assert not learner.is_acknowledged(1, 1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds. It advances by the second number whenever a process yields its core."""
    now = [100.0, 1e-6]

    def yield_core() -> None:
        now[0] += now[1]

    monkeypatch.setattr(spin, "_yield_core", yield_core)
    monkeypatch.setattr(spin.time, "monotonic", lambda: now[0])
    return now


def test_spinning_ends_with_the_condition_or_after_its_time(clock: list[float]) -> None:
    wait = SpinWait()
    assert wait(lambda: True)
    assert not wait(lambda: False)
    assert clock[0] == pytest.approx(100 + spin.SPIN_SECONDS, abs=1e-5)
    answers = iter([False, False, True])
    assert wait(lambda: next(answers))


def test_there_is_no_spinning_for_a_while_after_another_process_has_used_the_core(clock: list[float]) -> None:
    wait = SpinWait()
    clock[1] = 3e-3  # a yield that takes as long as a time slice of another process
    assert not wait(lambda: False)
    before = clock[0]
    assert before == pytest.approx(100.003), "one yield is enough"
    clock[1] = 1e-6
    assert not wait(lambda: False)
    assert wait(lambda: True)
    assert clock[0] == before, "it has not spun"
    clock[0] += spin.CONTENDED_PAUSE_SECONDS
    assert not wait(lambda: False)
    assert clock[0] > before + spin.CONTENDED_PAUSE_SECONDS
