"""Being asked to stop by a signal: by Ctrl-C, another process, or a cluster that wants its machine back."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

log = logging.getLogger(__name__)


class StopRequest:
    """Set by the first of STOP_SIGNALS, or by `make`; at the second signal a KeyboardInterrupt is raised."""

    def __init__(self) -> None:
        self.made = False

    def make(self) -> None:
        """Ask to stop."""
        self.made = True

    @contextmanager
    def by_signals(self) -> Iterator[None]:
        """Listen to signals while open. Only the main thread can; elsewhere this does nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._hear) for number in STOP_SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.made:
            raise KeyboardInterrupt
        self.made = True
        log.info("signal %d: stopping after this iteration", number)
