"""Requests to stop a run."""

from __future__ import annotations

import os
import signal

import pytest

from shmppo.utils.signals import StopRequest


@pytest.mark.parametrize("earlier", [None, "callback"])
def test_only_the_second_signal_interrupts_even_if_the_run_stops_already(earlier: str | None) -> None:
    stop = StopRequest()
    if earlier is not None:
        stop.make(earlier)
    with stop.by_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        assert (stop.made, stop.reason, stop.signal) == (True, earlier or "signal", signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGUSR1)
