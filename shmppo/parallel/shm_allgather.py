"""All-gather between the ranks of one machine, through shared memory.

Each rank writes its array into a slot of its own and reads the slots of all ranks. A gradient of half a megabyte
between two busy processes takes 0.3 ms this way. With gloo it takes 2 ms.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from shmppo.parallel.mailbox import fence, spin_wait

POLL_SECONDS = 1e-4  # between two checks after the spin-wait
LIVENESS_CHECK_SECONDS = 1.0  # between two checks of whether the missing ranks still run
_WORD = 8  # bytes; slots begin at multiples of it


class ShmAllGather:
    """Shared memory with two slots for each rank, which the all-gathers use alternately.

    Two slots are enough: when a rank starts all-gather i + 1, all ranks have started all-gather i. They may still read
    the slots of all-gather i, but no longer those of i − 1, which the rank overwrites.
    """

    def __init__(self, rank: int, memory: mmap.mmap, pids: list[int], timeout: float) -> None:
        """Create the view of one rank.

        Args:
            rank: of this process.
            memory: `needed_bytes` of shared memory, zero at first.
            pids: process ids of all ranks, in rank order.
            timeout: of an all-gather, in seconds.
        """
        size = len(pids)
        self._rank, self._pids, self._timeout = rank, pids, timeout
        self._written = np.frombuffer(memory, np.int64, size)  # per rank, the last sequence number that it has written
        self._slots = np.frombuffer(memory, np.uint8, offset=_WORD * size).reshape(2, size, -1)
        self.capacity = self._slots.shape[-1]
        self._sequence_number = 0

    def all_gather(self, own: np.ndarray) -> np.ndarray:
        """Gather arrays of the same shape and type from all ranks.

        Args:
            own: contiguous, at most `capacity` bytes.

        Returns:
            [R, …] in rank order, a view that is valid until the next all-gather.

        Raises:
            RuntimeError: if a rank has exited or does not answer in time; the message names it.
        """
        slots, size = self._slots[self._sequence_number % 2], own.nbytes
        slots[self._rank, :size] = own.reshape(-1).view(np.uint8)
        self._sequence_number += 1
        fence()  # the array must be visible before its sequence number
        self._written[self._rank] = self._sequence_number
        self._wait()
        fence()
        gathered: np.ndarray = slots[:, :size].view(own.dtype).reshape(len(slots), *own.shape)
        return gathered

    def _wait(self) -> None:
        """Wait until all ranks have written the current sequence number: spin first, then poll."""
        began = time.monotonic()
        if spin_wait(self._complete):
            return
        next_check = began + LIVENESS_CHECK_SECONDS
        while not self._complete():
            time.sleep(POLL_SECONDS)
            if time.monotonic() > next_check:
                self._check_missing_ranks(time.monotonic() - began)
                next_check = time.monotonic() + LIVENESS_CHECK_SECONDS

    def _complete(self) -> bool:
        return int(self._written.min()) >= self._sequence_number

    def _check_missing_ranks(self, waited: float) -> None:
        """Raise RuntimeError if a missing rank has exited, or if the wait of `waited` seconds exceeds the timeout."""
        missing = np.flatnonzero(self._written < self._sequence_number).tolist()
        for rank in missing:
            if not _is_running(self._pids[rank]):
                raise RuntimeError(f"rank {rank} has exited")
        if missing and waited > self._timeout:
            raise RuntimeError(f"rank {missing[0]} did not answer for {waited:.0f} s")


def needed_bytes(size: int, capacity: int) -> int:
    """Bytes of shared memory for `size` ranks with arrays of up to `capacity` bytes."""
    return _WORD * size + 2 * size * -(-capacity // _WORD) * _WORD


def open_shm_all_gather(
    rank: int, size: int, capacity: int, gather: Callable[[Any], list[Any]], timeout: float
) -> ShmAllGather | None:
    """Open the shared memory that rank 0 creates. All ranks must call this.

    Args:
        rank: of this process.
        size: number of ranks.
        capacity: bytes of the largest array.
        gather: gathers a value from all ranks, in rank order.
        timeout: of an all-gather, in seconds.

    Returns:
        None on all ranks if one of them cannot open the memory.
    """
    own = os.memfd_create("shmppo-allgather") if rank == 0 and hasattr(os, "memfd_create") else -1
    if own >= 0:
        os.ftruncate(own, needed_bytes(size, capacity))
    pids, files = zip(*gather((os.getpid(), own)), strict=True)
    memory = None
    try:
        file = os.open(f"/proc/{pids[0]}/fd/{files[0]}", os.O_RDWR)
        memory = mmap.mmap(file, needed_bytes(size, capacity))
        os.close(file)
    except OSError:  # no /proc, or a container that hides the processes of the others
        pass
    opened_by_all = all(gather(memory is not None))
    if own >= 0:
        os.close(own)  # the memory exists as long as a process maps it; it has no name that could leak
    return ShmAllGather(rank, memory, list(pids), timeout) if opened_by_all and memory is not None else None


def _is_running(pid: int) -> bool:
    """Whether a process is running. A zombie is not: it has exited, but its parent has not waited for it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
