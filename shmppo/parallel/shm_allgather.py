"""All-gather between the ranks of one machine, through shared memory.

Each rank writes its array into its own slot and reads the slots of all ranks. For a gradient of half a megabyte and two
busy processes, this takes 0.3 ms. With gloo it takes 2 ms.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from shmppo.parallel.spin import SpinWait, fence
from shmppo.utils.machine import process_state

POLL_SECONDS = 1e-4  # sleep between two checks, after spinning
LIVENESS_CHECK_SECONDS = 1.0  # between two checks of whether the missing ranks are still running
_WORD = 8  # bytes; each slot begins at a multiple of it


class ShmAllGather:
    """An all-gather through shared memory with two slots per rank, which are used alternately.

    Two slots are enough. When a rank starts all-gather i + 1, all ranks have started all-gather i, so no rank still
    reads the slots of all-gather i − 1, which this rank overwrites.

    Attributes:
        capacity: size of a slot in bytes.
    """

    def __init__(self, rank: int, memory: mmap.mmap, pids: list[int], timeout: float) -> None:
        """Create the view of one rank.

        Args:
            memory: `needed_bytes` of shared memory. All bytes are zero at first.
            pids: process ids of all ranks, in rank order.
            timeout: of an all-gather, in seconds.
        """
        size = len(pids)
        self._rank, self._pids, self._timeout = rank, pids, timeout
        # [R], sequence number of the last array that each rank has written
        self._written = np.frombuffer(memory, np.int64, size)
        self._slots = np.frombuffer(memory, np.uint8, offset=_WORD * size).reshape(2, size, -1)
        self.capacity = self._slots.shape[-1]
        self._sequence_number = 0
        self._spin_wait = SpinWait()

    def all_gather(self, own: np.ndarray) -> np.ndarray:
        """Gather arrays of the same shape and type from all ranks.

        Args:
            own: contiguous, at most `capacity` bytes.

        Returns:
            [R, …] in rank order. It is a view that is valid until the next all-gather.

        Raises:
            RuntimeError: if a rank has exited or does not answer within the timeout. The message names it.
        """
        slots, size = self._slots[self._sequence_number % 2], own.nbytes
        slots[self._rank, :size] = own.reshape(-1).view(np.uint8)
        self._sequence_number += 1
        fence()  # other ranks must see the array before its sequence number
        self._written[self._rank] = self._sequence_number
        self._wait()
        fence()
        gathered: np.ndarray = slots[:, :size].view(own.dtype).reshape(len(slots), *own.shape)
        return gathered

    def _wait(self) -> None:
        """Wait until all ranks have written the current sequence number: spin first, then poll."""
        began = time.monotonic()
        if self._spin_wait(self._complete):
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
            if process_state(self._pids[rank]) in ("", "Z", "X"):  # Z: its parent has not reaped it
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
        capacity: bytes of the largest array.
        gather: gathers a value from all ranks, in rank order.
        timeout: of an all-gather, in seconds.

    Returns:
        The all-gather; None on all ranks if one of them cannot open the memory.
    """
    own_descriptor = os.memfd_create("shmppo-allgather") if rank == 0 and hasattr(os, "memfd_create") else -1
    if own_descriptor >= 0:
        os.ftruncate(own_descriptor, needed_bytes(size, capacity))
    pids, descriptors = zip(*gather((os.getpid(), own_descriptor)), strict=True)
    memory = None
    with suppress(OSError):  # the system has no /proc, or the ranks run in containers that hide each other's processes
        descriptor = os.open(f"/proc/{pids[0]}/fd/{descriptors[0]}", os.O_RDWR)
        memory = mmap.mmap(descriptor, needed_bytes(size, capacity))
        os.close(descriptor)
    opened_by_all = all(gather(memory is not None))
    if own_descriptor >= 0:
        os.close(own_descriptor)  # the memory has no name; the system frees it when no process maps it any more
    return ShmAllGather(rank, memory, list(pids), timeout) if opened_by_all and memory is not None else None
