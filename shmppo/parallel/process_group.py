"""Several learners side by side: torch.distributed behind a few verbs, each of which does nothing on a rank alone.

All ranks call the same verbs in the same order. So whatever decides whether a verb is called has been exchanged before,
or is equal everywhere from the start.
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import logging
import os
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from shmppo.config.options import flag
from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError, RankError
from shmppo.parallel.shm_allgather import ShmAllGather, open_shm_all_gather
from shmppo.utils import machine as machine
from shmppo.utils.machine import usable_cores

log = logging.getLogger(__name__)

GRACE_SECONDS = 2.0  # how long a rank that lost the others waits for a word of each of them
MAY_DIFFER = ("rank", "ranks", "run_dir", "workers", "learning", "quiet", "track", "eval_every", "eval_videos")
"""Fields of the configuration that change no bit of the weights, and which each rank may have of its own."""
_connections = itertools.count()  # of this process, one after the other; the same number on every rank


class ProcessGroup:
    """R ranks, of which this process is one. R = 1 is the ordinary run: nothing is exchanged, and nothing copied.

    Attributes:
        seconds: spent in exchanges since it was last set to 0, waiting for the other ranks included.
    """

    def __init__(self, rank: int = 0, size: int = 1, store: Store | None = None, timeout: float = 0.0) -> None:
        """store: the process group's, for last words; timeout: of an exchange, in seconds."""
        self.rank = rank
        self.size = size
        self.seconds = 0.0
        self._store = store
        self._timeout = timeout
        self._board: ShmAllGather | None = None

    def share_memory(self, capacity: int) -> None:
        """Let exchanges of up to `capacity` bytes go through shared memory, where all ranks are on this machine."""
        if self.size > 1 and os.environ.get("LOCAL_WORLD_SIZE") == str(self.size):
            self._board = open_shm_all_gather(self.rank, self.size, capacity, self.gather_objects, self._timeout)

    def sum(self, tensor: Tensor) -> None:
        """Add up a tensor over the ranks, in place; the same bits on each of them."""
        if self.size > 1:
            with self._exchange():
                rows = self._on_board(tensor.numpy())
                if rows is None:
                    dist.all_reduce(tensor)
                    return
                first, *others = torch.from_numpy(rows)
                tensor.copy_(first)
                for other in others:  # in rank order, on every rank
                    tensor.add_(other)

    def gather(self, array: np.ndarray) -> np.ndarray:
        """Every rank's array of one shape and type, [R, …] in rank order."""
        if self.size == 1:
            return array[np.newaxis]
        if array.size == 0:
            return np.zeros((self.size, *array.shape), array.dtype)
        own = np.array(array)
        with self._exchange():
            rows = self._on_board(own)
            if rows is not None:
                return rows.copy()
            gathered = torch.from_numpy(np.empty((self.size, *own.shape), own.dtype))
            dist.all_gather(list(gathered.unbind(0)), torch.from_numpy(own))
        return gathered.numpy()

    def _on_board(self, own: np.ndarray) -> np.ndarray | None:
        """Every rank's array [R, …] through shared memory, to be read before the next exchange; None if too large."""
        if self._board is None or own.nbytes > self._board.capacity:
            return None
        return self._board.exchange(own)

    def gather_rows(self, rows: np.ndarray) -> list[np.ndarray]:
        """Every rank's [rows, columns], in rank order; the ranks may have different numbers of rows."""
        counts = self.gather(np.array([len(rows)]))[:, 0].tolist()
        padded = np.zeros((max(counts), *rows.shape[1:]), rows.dtype)
        padded[: len(rows)] = rows
        return [part[:count] for part, count in zip(self.gather(padded), counts, strict=True)]

    def gather_objects(self, value: Any) -> list[Any]:
        """Every rank's value, in rank order: plain and small ones, at the start of a run."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        with self._exchange():
            dist.all_gather_object(values, value)
        return values

    def count(self, key: str, add: int) -> int:
        """Add to a counter that all ranks share, from any thread; returns its value. Nobody waits for anybody.

        Raises:
            RankError: if the store cannot be reached.
        """
        if self.size == 1:
            return 0
        assert self._store is not None
        try:
            return self._store.add(key, add)
        except RuntimeError as error:
            raise RankError(f"the store of the ranks does not answer ({str(error).splitlines()[0]})") from error

    def agree(self, wishes: Sequence[bool], weights: Tensor, iteration: int) -> list[bool]:
        """Which of the wishes any rank has.

        Raises:
            RankError: if the weights are not the same on all ranks; it names this iteration.
        """
        if self.size == 1:
            return list(wishes)
        mine = zlib.crc32(weights.detach().cpu().numpy().data)
        table = self.gather(np.array([mine, *wishes], np.int64))
        sums = table[:, 0].tolist()
        if len(set(sums)) > 1:
            others = [rank for rank in range(self.size) if sums[rank] != sums[0]]
            raise RankError(
                f"after iteration {iteration} the weights of {_named(others)} are not those of rank 0: check that the "
                "processors and libraries are the same on all ranks; no checkpoint holds the difference"
            )
        return [bool(column.any()) for column in table[:, 1:].T]

    @contextmanager
    def refusing_together(self) -> Iterator[None]:
        """Around what a rank does by itself: the ConfigError of any rank is raised on all, so that none waits."""
        if self.size == 1:
            yield
            return
        refusal = ""
        try:
            yield
        except ConfigError as error:
            refusal = str(error)
        for rank, text in enumerate(self.gather_objects(refusal)):
            if text:
                raise ConfigError(f"rank {rank}: {text}")

    @contextmanager
    def _exchange(self) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        except RuntimeError as error:  # whatever torch.distributed raises where a rank is gone or late
            raise self._fault(error, time.monotonic() - began) from error
        self.seconds += time.monotonic() - began

    def _fault(self, error: RuntimeError, waited: float) -> RankError:
        """The failure of an exchange as one sentence that names the ranks that are gone."""
        reason = str(error).splitlines()[0].split("] ", 1)[-1].rstrip(". ")
        log.warning("an exchange failed after %.1f s: %s", waited, error)
        words = self._hear("")
        go_on = "go on from the last checkpoint with --resume"
        if words is None:
            return RankError(
                f"rank {self.rank} of {self.size} lost the others ({reason}), and the store at "
                f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']} does not answer either: check the network "
                f"and the host of rank 0; {go_on}"
            )
        failed = {rank: text for rank, text in words.items() if text}
        silent = [rank for rank in range(self.size) if rank not in words]
        if failed:
            texts = "; ".join(f"rank {rank} failed: {text}" for rank, text in failed.items())
            return RankError(f"{texts}; {go_on}")
        if silent:
            return RankError(f"{_named(silent)} of {self.size} did not answer ({reason}); {go_on}")
        return RankError(
            f"all {self.size} ranks are there, but an exchange failed ({reason}); if a rank may be that slow, raise "
            f"--rank-timeout (now {self._timeout:g} s); {go_on}"
        )

    def report_failure(self, text: str) -> None:
        """Leave a word for the others, who will miss this rank in the next exchange."""
        if self.size > 1:
            self._hear(text, wait=False)

    def _hear(self, word: str, *, wait: bool = True) -> dict[int, str] | None:
        """Leave a word in the store, and hear those of the others: by rank, "" from one that has not failed itself.

        Returns:
            None if the store cannot be reached.
        """
        heard: dict[int, str] = {}
        done = threading.Event()

        def talk() -> None:
            assert self._store is not None
            self._store.set_timeout(timedelta(seconds=GRACE_SECONDS))
            key = f"word/{self.rank}"
            if not self._store.check([key]):  # the first word counts
                self._store.set(key, word)
            deadline = time.monotonic() + GRACE_SECONDS
            missing = set(range(self.size))
            while wait and missing and time.monotonic() < deadline:
                for rank in [r for r in missing if self._store.check([f"word/{r}"])]:
                    heard[rank] = self._store.get(f"word/{rank}").decode()
                    missing.discard(rank)
                time.sleep(0.02)
            done.set()

        def guarded() -> None:
            try:
                talk()
            except RuntimeError as error:
                log.warning("the store does not answer: %s", error)

        # A thread, because a store behind a dead link answers only when the kernel gives up.
        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        thread.join(2 * GRACE_SECONDS)
        return heard if done.is_set() else None

    def close(self) -> None:
        """Leave the process group; after a fault as well."""
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()


SINGLE_PROCESS = ProcessGroup()


class FlatSum:
    """One all-reduce of a gradient together with the statistics that belong to it."""

    def __init__(self, ranks: ProcessGroup, parameters: int, statistics: int) -> None:
        self._ranks = ranks
        self._cuts = (parameters, statistics, ranks.size)
        self._flat = torch.zeros(sum(self._cuts) if ranks.size > 1 else 0)
        ranks.share_memory(self._flat.nbytes)

    def __call__(self, gradient: Tensor, sums: np.ndarray, largest: float) -> tuple[np.ndarray, float]:
        """Add up over the ranks.

        Args:
            gradient: [P], added up in place.
            sums: [S].
            largest: of which the maximum is taken.

        Returns:
            (sums [S], largest), the same on every rank.
        """
        if self._ranks.size == 1:
            return sums, largest
        flat_gradient, flat_sums, by_rank = self._flat.split(self._cuts)
        flat_gradient.copy_(gradient)
        flat_sums.copy_(torch.from_numpy(sums))
        by_rank.zero_()
        by_rank[self._ranks.rank] = largest
        self._ranks.sum(self._flat)
        gradient.copy_(flat_gradient)
        return flat_sums.double().numpy(), float(by_rank.max())


@contextmanager
def connected(timeout: float) -> Iterator[ProcessGroup]:
    """The ranks that torchrun has started, or that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT name.

    Args:
        timeout: seconds that an exchange may take.

    Raises:
        ConfigError: for an incomplete environment.
        RankError: if the ranks do not find each other.
    """
    ranks = _connect(timeout)
    try:
        yield ranks
    except BaseException as error:
        if not isinstance(error, (ConfigError, RankError)):
            ranks.report_failure(str(error).splitlines()[0] if str(error) else repr(error))
        raise
    finally:
        ranks.close()


def _connect(timeout: float) -> ProcessGroup:
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return SINGLE_PROCESS
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise ConfigError(f"WORLD_SIZE is {size} but {', '.join(missing)} is not set; start the ranks with torchrun")
    limit = timedelta(seconds=timeout)
    try:
        found, rank, size = next(rendezvous("env://", timeout=limit))
        # torchrun's store outlives the ranks that it starts again: keys of theirs must not be met.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = PrefixStore(f"shmppo/{attempt}/{next(_connections)}", found)
        # Functions of this module have the group that exists at its import as their default, and keep it. Imported
        # later, as optimizers do, it would keep ours and its threads beyond `close`, which now and then aborts the
        # process when it exits.
        importlib.import_module("torch.distributed.nn")
        # Gradients are in shared memory, those of a GPU too: what is exchanged is always the CPU's.
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)
    except RuntimeError as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise RankError(
            f"rank {os.environ['RANK']} of {size} did not find the others at {where} within {timeout:g} s: "
            f"{str(error).splitlines()[0]}"
        ) from error
    return ProcessGroup(rank, size, PrefixStore("words", store), timeout)


def own_configuration(ranks: ProcessGroup, config: TrainConfig) -> TrainConfig:
    """The configuration of this rank, of which all have the same but for what each may choose for itself.

    Raises:
        ConfigError: on all ranks, naming the first field or library that differs.
    """
    if ranks.size == 1:
        return dataclasses.replace(config, rank=0, ranks=1)
    mine = {name: value for name, value in config.to_json().items() if name not in MAY_DIFFER} | machine.versions()
    for rank, theirs in enumerate(ranks.gather_objects(mine)):
        for name, value in mine.items():
            if theirs[name] != value:
                what = flag(name) if hasattr(config, name) else name
                raise ConfigError(f"rank {rank} has {what} {theirs[name]}, rank {ranks.rank} {value}; they must agree")
    workers = config.workers
    if workers is None:  # its share of the machine's cores; a rank of one core samples by itself
        cores = usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        workers = min(cores, config.num_envs) if cores > 1 else 0
    own = dataclasses.replace(config, rank=ranks.rank, ranks=ranks.size, workers=workers)
    return (
        own if ranks.rank == 0 else dataclasses.replace(own, quiet=True, track=(), eval_every=None, eval_videos=False)
    )


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
