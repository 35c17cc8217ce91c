"""The run's log file. It receives this package's log records and Python's warnings from the learner and all workers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

_FORMAT = "%(asctime)s %(processName)s %(name)s %(levelname)s %(message)s"


class _BufferHandler(logging.Handler):
    """Appends each log record to a list."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextmanager
def buffer_records() -> Iterator[list[logging.LogRecord]]:
    """Collect log records in a list while there is no log file yet. Pass the list to `log_to` later."""
    handler = _BufferHandler()
    with _handled(handler):
        yield handler.records


@contextmanager
def log_to(path: Path, earlier: Iterable[logging.LogRecord] = ()) -> Iterator[None]:
    """Append log records to a file while the context is open.

    Several processes may write to the same file, because each record is a single write.

    Args:
        path: the log file.
        earlier: records to write first (see `buffer_records`).
    """
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter(_FORMAT))
    for record in earlier:
        handler.handle(record)
    with _handled(handler):
        yield


@contextmanager
def _handled(handler: logging.Handler) -> Iterator[None]:
    """Send this package's log records and Python's warnings only to `handler`. At the end, close the handler."""
    loggers = [logging.getLogger("shmppo"), logging.getLogger("py.warnings")]
    before = [(logger.level, logger.propagate) for logger in loggers]
    logging.captureWarnings(True)
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
    try:
        yield
    finally:
        logging.captureWarnings(False)
        for logger, (level, propagate) in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate
        handler.close()
