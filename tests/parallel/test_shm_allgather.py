"""The shared-memory all-gather returns arrays in rank order, and fails if a rank has exited."""

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

from shmppo.parallel import shm_allgather
from shmppo.parallel.shm_allgather import ShmAllGather, needed_bytes, open_shm_all_gather

SIZE = 3
CAPACITY = 1001  # bytes, no multiple of a word


def gathering(size: int) -> Callable[[int], Callable[[Any], list[Any]]]:
    """Replaces the process group: gives each of `size` threads the values of all threads."""
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
    """Random pauses let some ranks start the next all-gather while others still read the last one."""
    gather = gathering(SIZE)

    def rank_runs(rank: int) -> None:
        all_gather = open_shm_all_gather(rank, SIZE, CAPACITY, gather(rank), timeout=10)
        assert all_gather is not None
        assert all_gather.capacity >= CAPACITY
        draw = np.random.default_rng(rank)
        for step in range(300):
            dtype, shape = [(np.float32, (5, 7)), (np.int64, ()), (np.bool_, (3,)), (np.float64, (2, 3, 4))][step % 4]
            rows = all_gather.all_gather(np.full(shape, 10 * step + rank, dtype))
            if draw.random() < 0.1:
                time.sleep(1e-3)
            assert rows.shape == (SIZE, *shape)
            for other in range(SIZE):
                assert (rows[other] == np.array(10 * step + other).astype(dtype)).all(), (step, rank, other)

    with ThreadPoolExecutor(SIZE) as threads:
        for done in [threads.submit(rank_runs, rank) for rank in range(SIZE)]:
            done.result(60)


def test_if_one_rank_cannot_open_the_memory_no_rank_uses_it() -> None:
    gather = gathering(2)

    def rank_opens(rank: int) -> ShmAllGather | None:
        def gather_as_in_a_container(value: Any) -> list[Any]:
            values = gather(rank)(value)
            hidden = isinstance(value, tuple) and rank == 1  # a process id that does not exist here
            return [(2**22 + 1, 0), values[1]] if hidden else values

        return open_shm_all_gather(rank, 2, CAPACITY, gather_as_in_a_container, timeout=10)

    before = set(os.listdir("/proc/self/fd"))
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(rank_opens, range(2))) == [None, None]
    assert set(os.listdir("/proc/self/fd")) <= before


def rank_zero(pid: int, timeout: float) -> ShmAllGather:
    """The all-gather of rank 0 of 2. Rank 1 is the process `pid`, which never calls it."""
    return ShmAllGather(0, mmap.mmap(-1, needed_bytes(2, CAPACITY)), [os.getpid(), pid], timeout)


@pytest.mark.parametrize("waited_for", [True, False], ids=["reaped", "zombie"])
def test_the_error_names_a_rank_that_has_exited(waited_for: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm_allgather, "LIVENESS_CHECK_SECONDS", 0.01)
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    all_gather = rank_zero(other.pid, timeout=60)
    threading.Timer(0.2, other.kill).start()
    if waited_for:
        threading.Thread(target=other.wait).start()
    with pytest.raises(RuntimeError, match=r"^rank 1 has exited$"):
        all_gather.all_gather(np.zeros(3))
    other.communicate()


def test_the_error_names_a_rank_that_does_not_answer_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm_allgather, "LIVENESS_CHECK_SECONDS", 0.01)
    all_gather = rank_zero(os.getpid(), timeout=0.1)
    with pytest.raises(RuntimeError, match=r"^rank 1 did not answer for \d+ s$"):
        all_gather.all_gather(np.zeros(3))
