"""Collective operations between the learners of several ranks, based on torch.distributed.

All ranks must call the same operations in the same order, so a condition for a call must have the same value on all
ranks. With one rank, every operation returns at once and copies nothing.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from shmppo.errors import ConfigError, RankError
from shmppo.kernels.functions import add_rows
from shmppo.parallel.failure_messages import FailureMessages, name_ranks
from shmppo.parallel.shm_allgather import ShmAllGather, open_shm_all_gather


class ProcessGroup:
    """R ranks that train together; this process is one of them. A run without torchrun has R = 1.

    Collective operations raise RankError if a rank has failed or does not answer within the timeout.

    Attributes:
        rank: index of this process, 0 … R − 1.
        size: R.
        allreduce_seconds: seconds spent in collective operations, including the wait for the other ranks. It is set
            to 0 before the first iteration and after each one.
    """

    def __init__(self, rank: int = 0, size: int = 1, store: Store | None = None, timeout: float = 0.0) -> None:
        """Create a group; `rendezvous.connect` does this for several ranks.

        Args:
            rank: index of this process.
            store: key-value store of all ranks, for failure messages and counters. Needed if size > 1.
            timeout: of a collective operation, in seconds.
        """
        self.rank = rank
        self.size = size
        self.allreduce_seconds = 0.0
        self._store = store
        self._timeout = timeout
        self._failures = FailureMessages(rank, size, store, timeout) if store is not None else None
        self._shm_all_gather: ShmAllGather | None = None

    def use_shared_memory(self, capacity: int) -> None:
        """Exchange arrays of up to `capacity` bytes through shared memory, if all ranks run on this machine."""
        if self.size > 1 and os.environ.get("LOCAL_WORLD_SIZE") == str(self.size):
            self._shm_all_gather = open_shm_all_gather(
                self.rank, self.size, capacity, self.gather_objects, self._timeout
            )

    def sum(self, tensor: Tensor) -> None:
        """Sum a tensor [size] over all ranks, in place and in rank order.

        The result has the same bits on all ranks, whether they share memory or not.
        """
        if self.size > 1:
            with self._collective():
                gathered = self._gather_in_shared_memory(tensor.numpy())
                if gathered is not None:
                    add_rows(gathered, tensor.numpy())
                elif self.size == 2:
                    dist.all_reduce(tensor)  # faster, and the order of two numbers does not matter
                else:
                    self._sum_parts(tensor)

    def _sum_parts(self, tensor: Tensor) -> None:
        """Sum through torch.distributed: each rank sums one part. `dist.all_reduce` adds in another order."""
        parts = tensor.new_zeros(self.size, -(-tensor.numel() // self.size))
        flat = parts.view(-1)[: tensor.numel()]
        flat.copy_(tensor)
        received, own = torch.empty_like(parts), torch.empty_like(parts[0])
        dist.all_to_all_single(received, parts)
        add_rows(received.numpy(), own.numpy())
        dist.all_gather(list(parts.unbind(0)), own)
        tensor.copy_(flat)

    def gather(self, array: np.ndarray) -> np.ndarray:
        """Gather arrays of the same shape and type from all ranks. Return them as [R, …] in rank order."""
        if self.size == 1:
            return array[np.newaxis]
        if array.size == 0:
            return np.zeros((self.size, *array.shape), array.dtype)
        own = np.array(array)
        with self._collective():
            in_shared_memory = self._gather_in_shared_memory(own)
            if in_shared_memory is not None:
                return np.array(in_shared_memory)
            gathered = np.empty((self.size, *own.shape), own.dtype)
            dist.all_gather(list(torch.from_numpy(gathered).unbind(0)), torch.from_numpy(own))
        return gathered

    def _gather_in_shared_memory(self, own: np.ndarray) -> np.ndarray | None:
        """Gather arrays through shared memory.

        Returns:
            [R, …], valid until the next collective operation. None if the array is too large, or if the ranks do not
            share memory.
        """
        if self._shm_all_gather is None or own.nbytes > self._shm_all_gather.capacity:
            return None
        return self._shm_all_gather.all_gather(own)

    def gather_rows(self, rows: np.ndarray) -> list[np.ndarray]:
        """Gather arrays [rows, columns] from all ranks, in rank order. Ranks may have different numbers of rows."""
        counts = self.gather(np.array([len(rows)]))[:, 0].tolist()
        padded = np.zeros((max(counts), *rows.shape[1:]), rows.dtype)
        padded[: len(rows)] = rows
        return [part[:count] for part, count in zip(self.gather(padded), counts, strict=True)]

    def gather_objects(self, value: Any) -> list[Any]:
        """Gather small picklable values from all ranks, in rank order. It is slow, so call it outside of iterations."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        with self._collective():
            dist.all_gather_object(values, value)
        return values

    def count(self, key: str, add: int) -> int:
        """Add to a counter that all ranks share, and return its new value.

        This is not a collective operation: any thread may call it, and it does not wait for other ranks.

        Args:
            key: name of the counter. A new counter is 0.
            add: number to add; 0 to read the counter.

        Returns:
            The new value. Always 0 with one rank.

        Raises:
            RankError: if the store cannot be reached.
        """
        if self.size == 1:
            return 0
        assert self._store is not None
        try:
            return self._store.add(key, add)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise RankError(f"the store of all ranks does not answer ({reason}); check that rank 0 runs") from error

    def agree(self, flags: Sequence[bool], weights: np.ndarray, iteration: int) -> list[bool]:
        """Combine flags of all ranks by a logical or, and check that all ranks have the same weights.

        Args:
            flags: requests of this rank, for example to stop or to save.
            weights: [P], weights after the iteration.
            iteration: for the text of the error.

        Returns:
            For each flag, whether it is true on any rank.

        Raises:
            RankError: if the weights differ between ranks.
        """
        if self.size == 1:
            return list(flags)
        table = self.gather(np.array([zlib.crc32(weights.data), *flags], np.int64))
        others = np.flatnonzero(table[:, 0] != table[0, 0]).tolist()
        if others:
            raise RankError(
                f"after iteration {iteration} the weights of {name_ranks(others)} differ from those of rank 0: check "
                "that all ranks have the same processors and libraries; all checkpoints are from before the difference"
            )
        return [bool(column.any()) for column in table[:, 1:].T]

    @contextmanager
    def config_errors_on_all_ranks(self) -> Iterator[None]:
        """Raise a ConfigError of one rank on all ranks, so that the others do not wait for it.

        Use it around code whose result may differ between ranks, such as checks of files and devices.

        Raises:
            ConfigError: on all ranks, with the message of the first rank that raised one.
        """
        found = None
        try:
            yield
        except ConfigError as error:
            if self.size == 1:
                raise
            found = str(error), error.details
        for rank, raised in enumerate(self.gather_objects(found)):
            if raised is not None:
                raise ConfigError(f"rank {rank}: {raised[0]}", details=raised[1])

    @contextmanager
    def _collective(self) -> Iterator[None]:
        """Measure the time of a collective operation. If it fails, raise a RankError that names the ranks."""
        began = time.monotonic()
        try:
            yield
        except RuntimeError as error:  # torch.distributed raises it if a rank has exited or is too slow
            assert self._failures is not None
            raise self._failures.diagnose(error, time.monotonic() - began) from error
        self.allreduce_seconds += time.monotonic() - began

    def report_failure(self, text: str) -> None:
        """Write why this rank fails. The other ranks read it when their next collective operation fails."""
        if self._failures is not None:
            self._failures.report(text)

    def close(self) -> None:
        """Leave the process group. It is safe to call this after a failure."""
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()


SINGLE_PROCESS = ProcessGroup()
"""The group of a run with one rank."""


class GradientAllReduce:
    """Sums a gradient and its statistics over all ranks in one all-reduce."""

    def __init__(self, group: ProcessGroup, parameters: int, statistics: int) -> None:
        """Allocate the buffer.

        Args:
            parameters: P, size of the gradient.
            statistics: number of statistics to sum.
        """
        self._group = group
        self._sizes = (parameters, statistics, group.size)
        self._buffer = torch.zeros(sum(self._sizes) if group.size > 1 else 0, dtype=torch.float32)
        group.use_shared_memory(self._buffer.nbytes)

    def __call__(self, gradient: Tensor, sums: np.ndarray, largest: float) -> tuple[np.ndarray, float]:
        """Sum over all ranks.

        Args:
            gradient: [P], summed in place.
            sums: [statistics], this rank's part of the statistics to sum.
            largest: this rank's value of a statistic of which the maximum is needed.

        Returns:
            (sums [statistics], maximum), the same on every rank. With several ranks both are rounded to float32.
        """
        if self._group.size == 1:
            return sums, largest
        flat_gradient, flat_sums, by_rank = self._buffer.split_with_sizes(self._sizes)
        flat_gradient.copy_(gradient)
        flat_sums.copy_(torch.from_numpy(sums))
        by_rank.zero_()
        by_rank[self._group.rank] = largest
        self._group.sum(self._buffer)
        gradient.copy_(flat_gradient)
        return flat_sums.double().numpy(), float(by_rank.max())
