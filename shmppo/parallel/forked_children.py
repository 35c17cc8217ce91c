"""Only the fork server imports this (see `PRELOAD`). It ignores SIGTERM, but the processes that it forks must not."""

import os
import signal


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _restore() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _unblock()


# The signal is blocked meanwhile, so that a child does not lose one that comes before `_restore`.
os.register_at_fork(
    before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}),
    after_in_parent=_unblock,
    after_in_child=_restore,
)
