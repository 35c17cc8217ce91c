"""The run's log file: records of this package and Python's warnings, from the learner and all workers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

_FORMAT = "%(asctime)s %(processName)s %(name)s %(levelname)s %(message)s"


class _Remembering(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextmanager
def remembered() -> Iterator[list[logging.LogRecord]]:
    """Keep the records of a time at which there is no log file yet; `log_to` takes them."""
    handler = _Remembering()
    with _handled(handler):
        yield handler.records


@contextmanager
def log_to(path: Path, earlier: Iterable[logging.LogRecord] = ()) -> Iterator[None]:
    """While open, append records to `path`, the `earlier` ones first; several processes may, a record is one write."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter(_FORMAT))
    for record in earlier:
        handler.handle(record)
    with _handled(handler):
        yield


@contextmanager
def _handled(handler: logging.Handler) -> Iterator[None]:
    """Let a handler have the records of this package and Python's warnings, and nobody else; then close it."""
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
