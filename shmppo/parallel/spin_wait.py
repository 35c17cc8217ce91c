"""Waiting for a number that another process is about to write into shared memory."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial

SPIN_SECONDS = 2e-3
"""Longer than what lies between two minibatches, shorter than what anybody notices."""
_LOCK = threading.Lock()
_yield_core: Callable[[], object] = getattr(os, "sched_yield", partial(time.sleep, 0))  # macOS has none


def fence() -> None:
    """What is written before is seen before what is written after, also on processors that would reorder it."""
    with _LOCK:
        pass


def spin_wait(done: Callable[[], bool], seconds: float = SPIN_SECONDS) -> bool:
    """Wait for `done` without sleeping, but let others have the core; whether it came within so many seconds.

    A process that sleeps takes 50 to 100 microseconds to wake, and a message through a pipe as long to write and read.
    """
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        _yield_core()
    return True
