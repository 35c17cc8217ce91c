"""Waiting for another process by spinning, and the order of memory accesses."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial

SPIN_SECONDS = 5e-3
"""Maximum time to spin. It is longer than the learner usually works alone, and too short to load a core."""
CONTENDED_SECONDS = 0.5e-3
"""If one turn of the loop takes longer, another process has used the core."""
CONTENDED_PAUSE_SECONDS = 0.5
_FENCE_LOCK = threading.Lock()
_yield_core: Callable[[], object] = getattr(os, "sched_yield", partial(time.sleep, 0))  # macOS has no sched_yield


def fence() -> None:
    """Order memory accesses: on every processor, other processes see the writes before this call before later ones."""
    with _FENCE_LOCK:  # acquiring and releasing any lock is a memory barrier
        pass


class SpinWait:
    """Waits for another process by spinning, unless other processes need the core.

    If something else ran on the core while this process spun, the machine is loaded. Spinning then takes time from
    processes that work, and a process that has used up its share of the core has to wait longest when its work arrives.
    So for the next CONTENDED_PAUSE_SECONDS there is no spinning, and the caller blocks at once.
    """

    def __init__(self) -> None:
        self._paused_until = 0.0

    def __call__(self, done: Callable[[], bool]) -> bool:
        """Spin until `done()` is true, for up to SPIN_SECONDS. Return whether it was."""
        now = time.monotonic()
        if now < self._paused_until:
            return done()
        deadline = now + SPIN_SECONDS
        while not done():
            before, now = now, time.monotonic()
            if now - before > CONTENDED_SECONDS:
                self._paused_until = now + CONTENDED_PAUSE_SECONDS
                return done()
            if now > deadline:
                return False
            _yield_core()
        return True
