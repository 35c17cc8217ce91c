"""Only the fork server imports this (see `PRELOAD`). It ignores SIGTERM, but the processes that it forks must not."""

import os
import signal

os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
