"""CPU times of functions that are called in turn, so that a change of the machine's speed affects all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

WARM_UP = 2
CALLS = 3


def interleaved_thread_times(functions: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Time functions in turn.

    Args:
        functions: to time, by name.
        rounds: how often each function is timed. Each time is the mean of CALLS calls.

    Returns:
        CPU seconds of this thread per call, one per round, by name.
    """
    times: dict[str, list[float]] = {name: [] for name in functions}
    for round_number in range(rounds + WARM_UP):
        for name, function in functions.items():
            start = time.thread_time()
            for _ in range(CALLS):
                function()
            if round_number >= WARM_UP:
                times[name].append((time.thread_time() - start) / CALLS)
    return times
