"""Requests to stop a run: signals from Ctrl-C, another process, or a cluster scheduler."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
_PR_SET_PDEATHSIG = 1  # constant of prctl(2)

Handler = Callable[[int, FrameType | None], None] | signal.Handlers

log = logging.getLogger(__name__)


class StopRequest:
    """A request to stop after the current iteration. A second signal raises KeyboardInterrupt.

    Attributes:
        made: whether the request has been made, by a signal or by `make`.
        reason: "signal", or the reason given to `make`. None: the request has not been made.
        signal: the signal that made the request. None: no signal did.
    """

    def __init__(self) -> None:
        self.made = False
        self.reason: str | None = None
        self.signal: int | None = None
        self._pid = os.getpid()

    def make(self, reason: str) -> None:
        """Request the stop. The first reason counts, but any other one replaces a signal."""
        self.made = True
        if self.reason in (None, "signal"):  # resumed after a signal, the run would go on
            self.reason = reason

    def by_signals(self) -> AbstractContextManager[None]:
        """Make the request at one of STOP_SIGNALS while the context is open."""
        return handled(STOP_SIGNALS, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # an environment has forked this process; as in workers, only SIGTERM ends it
            if number == signal.SIGTERM:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number
        self.make("signal")
        log.info("received signal %d; stopping after this iteration", number)


@contextmanager
def handled(numbers: Sequence[int], handler: Handler) -> Iterator[None]:
    """Handle signals while the context is open. Outside the main thread, this does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def kill_with_parent() -> None:
    """On Linux, let the kernel kill this process when its parent ends, also if this process is stopped (SIGSTOP).

    Elsewhere, this does nothing: a stopped process then ends after it was continued.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
