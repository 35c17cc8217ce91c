"""The ranks of one machine exchange arrays in shared memory: in rank order, and never waiting for one that is gone."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from shmppo.parallel import shm_allgather as board_module
from shmppo.parallel.shm_allgather import ShmAllGather, needed_bytes, open_shm_all_gather

SIZE = 3
CAPACITY = 1001  # bytes, no multiple of a word


def gathering(size: int) -> Callable[[int], Callable[[Any], list[Any]]]:
    """Stands for the process group: gives each of `size` threads the values of all."""
    values: list[Any] = [None] * size
    barrier = threading.Barrier(size)

    def of(rank: int) -> Callable[[Any], list[Any]]:
        def gather(value: Any) -> list[Any]:
            values[rank] = value
            barrier.wait(10)
            found = list(values)
            barrier.wait(10)
            return found

        return gather

    return of


def test_every_rank_sees_all_rows_in_rank_order() -> None:
    """ProcessGroup run ahead of each other by as much as the board lets them."""
    gather = gathering(SIZE)

    def rank_runs(rank: int) -> None:
        board = open_shm_all_gather(rank, SIZE, CAPACITY, gather(rank), timeout=10)
        assert board is not None
        assert board.capacity >= CAPACITY
        draw = np.random.default_rng(rank)
        for turn in range(300):
            dtype, shape = [(np.float32, (5, 7)), (np.int64, ()), (np.bool_, (3,)), (np.float64, (2, 3, 4))][turn % 4]
            rows = board.exchange(np.full(shape, 10 * turn + rank, dtype))
            if draw.random() < 0.1:
                time.sleep(1e-3)
            assert rows.shape == (SIZE, *shape)
            for other in range(SIZE):
                assert (rows[other] == np.array(10 * turn + other).astype(dtype)).all(), (turn, rank, other)

    with ThreadPoolExecutor(SIZE) as threads:
        for done in [threads.submit(rank_runs, rank) for rank in range(SIZE)]:
            done.result(60)


def test_a_memory_that_one_rank_cannot_reach_is_used_by_none() -> None:
    gather = gathering(2)

    def rank_opens(rank: int) -> ShmAllGather | None:
        def telling(value: Any) -> list[Any]:
            answers = gather(rank)(value)
            hidden = isinstance(value, tuple) and rank == 1  # as if the other one's process were of another container
            return [(2**22 + 1, 0), answers[1]] if hidden else answers

        return open_shm_all_gather(rank, 2, CAPACITY, telling, timeout=10)

    before = set(os.listdir("/proc/self/fd"))
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(rank_opens, range(2))) == [None, None]
    assert set(os.listdir("/proc/self/fd")) <= before


def alone(pid: int, timeout: float) -> ShmAllGather:
    """A board of which the other rank is another process."""
    return ShmAllGather(0, mmap.mmap(-1, needed_bytes(2, CAPACITY)), [os.getpid(), pid], timeout)


@pytest.mark.parametrize("waited_for", [True, False], ids=["reaped", "zombie"])
def test_a_rank_that_has_ended_is_named(waited_for: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board_module, "LOOK_SECONDS", 0.01)
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    board = alone(other.pid, timeout=60)
    threading.Timer(0.2, other.kill).start()
    if waited_for:
        threading.Thread(target=other.wait).start()
    with pytest.raises(RuntimeError, match=r"^rank 1 has ended$"):
        board.exchange(np.zeros(3))
    other.communicate()


def test_a_rank_that_does_not_answer_in_time_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board_module, "LOOK_SECONDS", 0.01)
    board = alone(os.getpid(), timeout=0.1)
    with pytest.raises(RuntimeError, match=r"^no answer of rank 1 for \d+ s$"):
        board.exchange(np.zeros(3))
