"""The fork server ignores SIGTERM. This module, which only it imports, lets its children react to SIGTERM again."""

import os
import signal

_SERVER = os.getpid()  # workers inherit the functions below, which then do nothing when a worker forks


def _mask(how: int) -> None:
    if os.getpid() == _SERVER:
        signal.pthread_sigmask(how, {signal.SIGTERM})


def _restore() -> None:
    if os.getppid() == _SERVER:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


# A signal that comes before `_restore` is blocked instead of ignored, so that the child receives it afterwards.
os.register_at_fork(
    before=lambda: _mask(signal.SIG_BLOCK),
    after_in_parent=lambda: _mask(signal.SIG_UNBLOCK),
    after_in_child=_restore,
)
