"""Failure messages between ranks: with them, an error names the ranks that failed and says why.

A rank that fails writes a message to the key-value store of the process group, and exits. Soon after, the collective
operations of the other ranks fail. These ranks read the messages and raise one error that contains them.
"""

from __future__ import annotations

import _thread
import contextlib
import logging
import os
import threading
import time
from collections.abc import Sequence
from datetime import timedelta

from torch.distributed.distributed_c10d import Store

from shmppo.errors import RankError

log = logging.getLogger(__name__)

GRACE_SECONDS = 2.0  # time for which a rank waits for the messages of the others after a failure
POLL_SECONDS = 0.02  # between two looks into the store


class FailureMessages:
    """Writes and reads the failure messages of a process group."""

    def __init__(self, rank: int, size: int, store: Store, timeout: float) -> None:
        """Create the messages of one rank.

        Args:
            rank: of this process.
            size: number of ranks.
            store: the key-value store that all ranks share.
            timeout: of a collective operation, in seconds. It appears in the text of the error.
        """
        self._rank = rank
        self._size = size
        self._store = store
        self._timeout = timeout

    def report(self, text: str) -> None:
        """Write a message for the other ranks, without waiting for theirs."""
        self._exchange_failure_messages(text, wait=False)

    def diagnose(self, error: RuntimeError, waited: float) -> RankError:
        """Find out why a collective operation failed, and make an error that says so.

        Args:
            error: what torch.distributed or the shared-memory all-gather raised.
            waited: seconds that the operation took until it failed.

        Returns:
            An error whose message names the failed ranks, in one sentence.
        """
        reason = str(error).splitlines()[0].split("] ", 1)[-1].rstrip(". ")
        log.warning("a collective operation failed after %.1f s: %s", waited, error)
        messages = self._exchange_failure_messages("")
        advice = "resume from the last checkpoint with --resume"
        if messages is None:
            return RankError(
                f"rank {self._rank} of {self._size} lost the connection to the other ranks ({reason}), and the store "
                f"at {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']} does not answer: check the network and "
                f"the host of rank 0; {advice}"
            )
        failed = {rank: text for rank, text in messages.items() if text}
        silent = [rank for rank in range(self._size) if rank not in messages]
        if failed:
            texts = "; ".join(f"rank {rank} failed: {text}" for rank, text in failed.items())
            return RankError(f"{texts}; {advice}")
        if silent:
            return RankError(f"{name_ranks(silent)} of {self._size} did not answer ({reason}); {advice}")
        return RankError(
            f"all {self._size} ranks are running, but a collective operation failed ({reason}); if a rank can be that "
            f"slow, raise --rank-timeout (now {self._timeout:g} s); {advice}"
        )

    def _exchange_failure_messages(self, text: str, *, wait: bool = True) -> dict[int, str] | None:
        """Write the message of this rank and read those of the others.

        Args:
            text: the message; "" if this rank has not failed itself. It is ignored if this rank has written one before.
            wait: whether to wait up to GRACE_SECONDS for the messages of the other ranks.

        Returns:
            Messages by rank, without the ranks that wrote none. None if the store does not answer, or if this process
            has no memory for a thread.
        """
        messages: dict[int, str] = {}
        done, ended = threading.Event(), threading.Event()

        def exchange() -> None:
            self._store.set_timeout(timedelta(seconds=GRACE_SECONDS))
            if not self._store.check([_key(self._rank)]):
                self._store.set(_key(self._rank), text)
            deadline = time.monotonic() + GRACE_SECONDS
            missing = set(range(self._size))
            while wait and missing and time.monotonic() < deadline:
                for rank in [r for r in missing if self._store.check([_key(r)])]:
                    messages[rank] = self._store.get(_key(rank)).decode()
                    missing.discard(rank)
                time.sleep(POLL_SECONDS)
            done.set()

        def run() -> None:
            try:
                exchange()
            except RuntimeError as error:
                log.warning("the store of the process group does not answer: %s", error)
            finally:
                ended.set()

        # Use a thread: if the network is down, a call to the store returns only after the timeout of the kernel.
        # threading.Thread.start would block forever if there is no memory for the new thread.
        with contextlib.suppress(RuntimeError):
            _thread.start_new_thread(run, ())
            ended.wait(2 * GRACE_SECONDS)
        return messages if done.is_set() else None


def name_ranks(ranks: Sequence[int]) -> str:
    """Ranks as text: "rank 1" or "ranks 1, 2"."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _key(rank: int) -> str:
    return f"failure/{rank}"
