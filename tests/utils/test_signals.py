"""Requests to stop a run."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time

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


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
def test_a_process_that_an_environment_has_forked_ends_with_sigterm() -> None:
    stop = StopRequest()
    with stop.by_signals():
        process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,))
        process.start()
        pid = process.pid
        assert pid is not None
        os.kill(pid, signal.SIGINT)  # Ctrl-C goes to all processes of a terminal
        process.join(0.5)
        assert process.is_alive()
        process.terminate()
        process.join(30)
        assert process.exitcode == -signal.SIGTERM
