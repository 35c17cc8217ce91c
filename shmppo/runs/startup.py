"""The start of the train command: checks that need no torch, and its import here and in the fork server together."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from shmppo.config.train_config import TrainConfig
from shmppo.envs.creation_errors import check_env_name
from shmppo.errors import ConfigError
from shmppo.parallel.fork_server import has_fork_server, kill_fork_server, start_fork_server
from shmppo.storage.run_directory import refuse_existing_run
from shmppo.utils.files import user_path
from shmppo.utils.user_code import is_importing_main

MAX_WORKERS = 128  # with more, the limit of open files may have to be raised before the fork server starts
MIN_ADDRESS_SPACE = 1 << 30  # bytes: measured, torch for CPUs maps 0.7 GiB when it is imported
SOCKET_PATH = 103  # bytes of the longest path of a Unix socket: 107 on Linux, 103 on macOS
SOCKET_NAME = len("/pymp-12345678/listener-12345678")  # what multiprocessing appends to the temporary directory


def check_address_space() -> None:
    """Check the limit of the address space. With too little of it, the import of torch aborts the process.

    Raises:
        ConfigError: if the limit is too low.
    """
    try:
        import resource
    except ImportError:  # Windows does not have this module
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < MIN_ADDRESS_SPACE:
        raise ConfigError(
            f"address space: torch needs more than {MIN_ADDRESS_SPACE >> 20} MiB but the limit is {limit >> 20} MiB; "
            "raise the limit (ulimit -v)"
        )


def check_temporary_directory() -> None:
    """Check that workers can be started through a socket in the temporary directory.

    Raises:
        ConfigError: if there is no temporary directory, or if its path is too long.
    """
    try:
        directory = tempfile.gettempdir()
    except OSError as error:
        raise ConfigError(
            f"TMPDIR: {error.strerror or error}; set TMPDIR to a directory that can be written"
        ) from error
    longest = SOCKET_PATH - SOCKET_NAME
    if len(os.fsencode(directory)) > longest:
        raise ConfigError(
            f"TMPDIR: {directory} has more than {longest} characters, which is too long for the sockets of workers; "
            "set TMPDIR to a shorter directory, or use --workers 0 without --eval-every"
        )


def check_early(config: TrainConfig) -> None:
    """Check the values in which mistakes are most common, before seconds are spent on the import of torch.

    With torchrun, all ranks check them later and together, because a run that torchrun restarts has a run directory.

    Raises:
        ConfigError: if --run-dir contains a run, or if --env does not name an environment.
    """
    if is_importing_main() or "RANK" in os.environ:
        return
    if config.run_dir is not None:
        refuse_existing_run(user_path(config.run_dir, "--run-dir").absolute())
    if config.env_backend not in ("envpool", "vector"):
        check_env_name(config.env_id)


@contextmanager
def early_fork_server(config: TrainConfig) -> Iterator[None]:
    """Start the fork server of a run now, and kill it at the end of the context.

    It takes seconds to import torch. Started early, it does so while this process imports torch, too.
    """
    if is_importing_main() or not has_fork_server() or not 0 < config.num_workers <= MAX_WORKERS:
        yield
        return
    check_temporary_directory()
    start_fork_server()
    try:
        yield
    finally:
        kill_fork_server()


@contextmanager
def startup_line(text: str, *, quiet: bool) -> Iterator[None]:
    """Show a line on the terminal while the context is open. Other outputs do not get it."""
    stream = sys.stdout
    if quiet or stream is None or stream.closed or not stream.isatty():
        yield
        return
    print(text, end="\r", flush=True)
    try:
        yield
    finally:
        print(" " * len(text), end="\r", flush=True)
