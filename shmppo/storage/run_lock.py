"""The lock of a run directory: only one process may write to it at a time."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shmppo.errors import ConfigError
from shmppo.utils.files import open_file, refuse_links

LOCK = "run.lock"

log = logging.getLogger(__name__)


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Check a run directory for links, and lock it while the context is open.

    The system releases the lock if the process is killed.

    On file systems without locks, a warning is logged instead.

    Raises:
        ConfigError: if another process has locked it, or if it has links. The message contains the process id.
        OSError: if it cannot be written.
    """
    refuse_links(run_dir)
    with open_file(run_dir / LOCK, "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            owner = file.read().strip() or "unknown"
            raise ConfigError(
                f"{run_dir} is in use by the run with the process id {owner}; stop that run, or name another directory"
            ) from error
        except OSError as error:
            log.warning("%s cannot be locked: %s; do not start a second run in it", run_dir, error)
        with contextlib.suppress(OSError):  # on a full disk
            file.truncate(0)
            os.write(file.fileno(), f"{os.getpid()}\n".encode())  # not into the buffer, which `close` would write again
        yield
