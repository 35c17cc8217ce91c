"""Failure messages between ranks: with them, an error names the ranks that failed and says why.

A rank that fails writes a message to the key-value store of the process group, and exits. Soon after, the collective
operations of the other ranks fail. These ranks read the messages and raise one error that contains them.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta

from torch.distributed.distributed_c10d import Store

from shmppo.errors import RankError

log = logging.getLogger(__name__)

GRACE_SECONDS = 2.0  # time for which a rank waits for the messages of the others after a failure


class FailureMessages:
    """Writes and reads the failure messages of a process group."""

    def __init__(self, rank: int, size: int, store: Store, timeout: float) -> None:
        """Create the messages of one rank.

        Args:
            store: the key-value store that all ranks share.
            timeout: of a collective operation, in seconds. It appears in the text of the error.
        """
        self._rank, self._size = rank, size
        self._store, self._timeout = store, timeout

    def report(self, text: str) -> None:
        """Write a message for the other ranks. A rank keeps its first message."""
        self._answers(lambda: self._write(text))

    def diagnose(self, error: RuntimeError, waited: float) -> RankError:
        """Find out why a collective operation failed, and make an error that names the failed ranks in one sentence.

        Args:
            error: what torch.distributed or the shared-memory all-gather raised.
            waited: seconds that the operation took until it failed.
        """
        reason = str(error).splitlines()[0].split("] ", 1)[-1].rstrip(". ")
        log.warning("a collective operation failed after %.1f s: %s", waited, error)
        messages: dict[int, str] = {}
        advice = "resume from the last checkpoint with --resume"
        if not self._answers(lambda: self._exchange(messages)):
            return RankError(
                f"rank {self._rank} of {self._size} lost the connection to the other ranks ({reason}), and the store "
                f"at {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']} does not answer: check the network and "
                f"the host of rank 0; {advice}"
            )
        failed = [f"rank {rank} failed: {text}" for rank, text in messages.items() if text]
        silent = [rank for rank in range(self._size) if rank not in messages]
        if failed:
            return RankError(f"{'; '.join(failed)}; {advice}")
        if silent:
            return RankError(f"{name_ranks(silent)} of {self._size} did not answer ({reason}); {advice}")
        return RankError(
            f"all {self._size} ranks are running, but a collective operation failed ({reason}): ranks wait at most "
            f"{self._timeout:g} s for each other; {advice}"
        )

    def _write(self, text: str) -> None:
        if not self._store.check([_key(self._rank)]):
            self._store.set(_key(self._rank), text)

    def _exchange(self, messages: dict[int, str]) -> None:
        """Write "" if this rank has not failed, and wait up to GRACE_SECONDS for the messages of all ranks."""
        self._write("")
        keys = [_key(rank) for rank in range(self._size)]
        with suppress(RuntimeError):  # some ranks do not answer
            self._store.wait(keys, timedelta(seconds=GRACE_SECONDS))
        messages |= {rank: self._store.get(key).decode() for rank, key in enumerate(keys) if self._store.check([key])}

    def _answers(self, action: Callable[[], None]) -> bool:
        """Use the store in a thread, because a call may block for minutes if the network is down.

        Returns:
            Whether the store has answered within twice GRACE_SECONDS.
        """
        done = threading.Event()

        def run() -> None:
            try:
                self._store.set_timeout(timedelta(seconds=GRACE_SECONDS))
                action()
                done.set()
            except RuntimeError as error:
                log.warning("the store of the process group does not answer: %s", error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(2 * GRACE_SECONDS)
        return done.is_set()


def name_ranks(ranks: Sequence[int]) -> str:
    """Ranks as text: "rank 1" or "ranks 1, 2"."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _key(rank: int) -> str:
    return f"failure/{rank}"
