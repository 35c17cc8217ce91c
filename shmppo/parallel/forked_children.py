"""The fork server ignores SIGTERM. This module, which only it imports, lets its children react to SIGTERM again."""

import os
import signal


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _restore() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _unblock()


# A signal that comes before `_restore` is blocked instead of ignored, so that the child receives it afterwards.
os.register_at_fork(
    before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}),
    after_in_parent=_unblock,
    after_in_child=_restore,
)
