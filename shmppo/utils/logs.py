"""The run's log file. It receives this package's log records and Python's warnings from the learner and all workers."""

from __future__ import annotations

import logging
import logging.handlers
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from shmppo.errors import printable
from shmppo.utils.files import open_file, read_file


class _LogFile(logging.Handler):
    """Appends records to a file. Several processes may write to it, because each record is a single write.

    Control characters are escaped. Further lines of a record, for example of a traceback, are indented.

    Attributes:
        known: text of the file. It gets no warning that this contains.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.known = ""
        self.setFormatter(logging.Formatter("%(asctime)s %(processName)s %(name)s %(levelname)s %(message)s"))
        self._file = open_file(path, "ab", buffering=0)

    def emit(self, record: logging.LogRecord) -> None:
        lines = printable(self.format(record).rstrip(), keep="\n").replace("\n", "\n    ")
        if record.levelno <= logging.WARNING and f"{lines}\n".partition(f" {record.processName} ")[2] in self.known:
            return
        with suppress(OSError):  # the disk is full, which ends the run when it writes its metrics
            self._file.write(f"{lines}\n".encode(errors="backslashreplace"))

    def close(self) -> None:
        super().close()
        self._file.close()


@contextmanager
def buffer_records() -> Iterator[list[logging.LogRecord]]:
    """Collect log records in a list while there is no log file yet. Pass the list to `log_to` later."""
    handler = logging.handlers.MemoryHandler(0)
    with _handled(handler):
        yield handler.buffer


@contextmanager
def log_to(path: Path, earlier: Iterable[logging.LogRecord] | None = None) -> Iterator[None]:
    """Append log records to a file while the context is open.

    Each environment may warn of the same. What the check before the run has warned of is not repeated.

    Args:
        path: the log file.
        earlier: records of this check, which are written first (see `buffer_records`). None: the file contains them.

    Raises:
        OSError: if the file cannot be opened.
    """
    handler = _LogFile(path)
    begin = 0 if earlier is None else path.stat().st_size
    for record in earlier or ():
        handler.handle(record)
    handler.known = read_file(path)[begin:].decode(errors="replace")
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
