"""Waiting for a number that another process is about to write to shared memory."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial

SPIN_SECONDS = 2e-3
"""Longer than the pause between two minibatches, and too short to load a core noticeably."""
_LOCK = threading.Lock()
_yield_core: Callable[[], object] = getattr(os, "sched_yield", partial(time.sleep, 0))  # macOS has no sched_yield


def fence() -> None:
    """Order memory accesses: other processes see earlier writes before later ones, on every processor."""
    with _LOCK:
        pass


def spin_wait(done: Callable[[], bool], seconds: float = SPIN_SECONDS) -> bool:
    """Wait for `done` without blocking, but let other processes use the core.

    Returns:
        Whether it came within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        _yield_core()
    return True
