"""Which processor cores a run may use. All searches of a user on a machine agree through one locked file per core."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path
from typing import TextIO

from shmppo.errors import ConfigError


class Cores:
    """Cores that this process has taken for its runs.

    The system gives them back if the process is killed.
    """

    def __init__(self, directory: Path | None = None) -> None:
        """Take no core yet.

        Args:
            directory: of the locked files. None: one for all searches of this user on this machine.

        Raises:
            ConfigError: if the directory cannot be used.
        """
        self._directory = directory or Path(tempfile.gettempdir()) / f"shmppo-cores-{os.getuid()}"
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            (self._directory / "core-0.lock").touch()
        except OSError as error:
            raise ConfigError(
                f"{self._directory} cannot be written ({error.strerror}); remove it, or set TMPDIR to another directory"
            ) from error
        self._files: dict[int, TextIO] = {}
        self.usable = tuple(sorted(os.sched_getaffinity(0)))
        """The cores of this process, taken or not."""

    def take(self, number: int) -> tuple[int, ...]:
        """Take up to `number` cores that no search has taken. Returns the cores; none if all are taken."""
        taken: list[int] = []
        for core in self.usable:
            if len(taken) == number:
                break
            if core not in self._files and self._lock(core):
                taken.append(core)
        return tuple(taken)

    def give_back(self, cores: tuple[int, ...]) -> None:
        """Give cores back that `take` has returned."""
        for core in cores:
            self._files.pop(core).close()

    @property
    def free(self) -> int:
        """Number of usable cores that this process has not taken."""
        return len(self.usable) - len(self._files)

    def _lock(self, core: int) -> bool:
        file = locked_file(self._directory / f"core-{core}.lock")
        if file is not None:
            self._files[core] = file
        return file is not None


def locked_file(path: Path) -> TextIO | None:
    """Open a file and lock it until it is closed. Returns None if another process has locked it."""
    file = open(path, "a")  # noqa: SIM115 (the lock lasts as long as the file)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file
