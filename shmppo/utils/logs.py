"""The run's log file. It receives this package's log records and Python's warnings from the learner and all workers."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from shmppo.errors import print_warning

_FORMAT = "%(asctime)s %(processName)s %(name)s %(levelname)s %(message)s"
MAX_PENDING = 1 << 20  # bytes of records that are kept while the file cannot be written


class _BufferHandler(logging.Handler):
    """Appends each log record to a list."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


class _LogFile(logging.Handler):
    """Appends records to a file. Records that cannot be written now are kept, and written with a later one.

    Several processes may write to the same file, because each record is a single write.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(_FORMAT))
        self._path, self._pending = path, b""
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 (closed by close)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = f"{self.format(record)}\n".encode(errors="backslashreplace")
        except Exception:  # the arguments do not match the format: logging prints where
            self.handleError(record)
            return
        if len(self._pending) < MAX_PENDING:
            self._pending += text
        with suppress(OSError):  # the disk is full: the run itself warns about it (see FailedWrites)
            self._reopen_if_removed()
            self._flush()

    def _flush(self) -> None:
        while self._pending:  # if the disk becomes full, only a part is written
            self._pending = self._pending[self._file.write(self._pending) :]

    def _reopen_if_removed(self) -> None:
        """Create the file again if it was removed, for example together with its directory."""
        if os.fstat(self._file.fileno()).st_nlink == 0:
            file = open(self._path, "ab", buffering=0)  # noqa: SIM115 (closed by close)
            self._file.close()
            self._file = file

    def close(self) -> None:
        """Close the file. Print a warning if the last records cannot be written. They are lost."""
        super().close()
        if self._file.closed:
            return
        try:
            self._reopen_if_removed()
            self._flush()
        except OSError as error:
            if self._pending:
                print_warning(
                    f"{self._path.name}: the last {self._pending.count(10)} lines are lost ({error.strerror})"
                )
        with suppress(OSError):
            self._file.close()


@contextmanager
def buffer_records() -> Iterator[list[logging.LogRecord]]:
    """Collect log records in a list while there is no log file yet. Pass the list to `log_to` later."""
    handler = _BufferHandler()
    with _handled(handler):
        yield handler.records


@contextmanager
def log_to(path: Path, earlier: Iterable[logging.LogRecord] = ()) -> Iterator[None]:
    """Append log records to a file while the context is open. See `_LogFile` for full disks.

    Args:
        path: the log file.
        earlier: records to write first (see `buffer_records`).

    Raises:
        OSError: if the file cannot be opened.
    """
    handler = _LogFile(path)
    for record in earlier:
        handler.handle(record)
    with _handled(handler):
        yield


@contextmanager
def _handled(handler: logging.Handler) -> Iterator[None]:
    """Send this package's log records and Python's warnings only to `handler`. At the end, close the handler."""
    loggers = [logging.getLogger("shmppo"), logging.getLogger("py.warnings")]
    before = [(logger.level, logger.propagate) for logger in loggers]
    show = warnings.showwarning
    logging.captureWarnings(True)
    captured_before = warnings.showwarning is show  # by another context, or by the caller of `train`
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
    try:
        yield
    finally:
        if not captured_before:
            logging.captureWarnings(False)
        for logger, (level, propagate) in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate
        handler.close()
