"""Check before a run starts processes that the machine has enough shared memory, memory, and file descriptors."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError
from shmppo.parallel.shared_buffers import Field, total_bytes

SHARED_MEMORY = "/dev/shm"
WORKER_BYTES = 20 << 20  # measured private memory of a worker without environments, started by the fork server
WORKER_FILES = 6  # file descriptors of the learner per worker: two queues, the sentinel, the request to the fork server
OWN_FILES = 64  # all other file descriptors of the learner


def check_resources(config: TrainConfig, fields: Iterable[Field]) -> None:
    """Check that the machine has enough resources for a run.

    This increases the soft limit of open files of this process if necessary.

    Args:
        config: of the run.
        fields: the layout table of its shared buffers.

    Raises:
        ConfigError: if shared memory or memory is too small, or if too few files can be open.
    """
    shared = total_bytes(fields)
    _check_shared_memory(shared)
    _check_memory(config, shared)
    _check_open_files(config)


def _check_shared_memory(needed: int) -> None:
    """Compare the needed bytes with the free space of /dev/shm, if the system has it. Raises ConfigError."""
    if not os.path.isdir(SHARED_MEMORY):
        return
    status = os.statvfs(SHARED_MEMORY)
    free = status.f_bavail * status.f_frsize
    if needed > free:
        raise ConfigError(
            f"shared memory: this run needs {needed / 2**20:.1f} MiB but {SHARED_MEMORY} has {free / 2**20:.1f} MiB "
            f"free; lower --num-envs or --rollout-steps, or enlarge {SHARED_MEMORY} (docker: --shm-size)"
        )


def _check_memory(config: TrainConfig, shared: int) -> None:
    """Compare a lower bound of the needed bytes with the available memory, if that is known. Raises ConfigError."""
    available = available_memory()
    needed = shared + config.num_workers * WORKER_BYTES
    if available is not None and needed > available:
        raise ConfigError(
            f"memory: this run needs at least {needed / 2**20:.0f} MiB ({shared / 2**20:.0f} MiB shared and "
            f"{WORKER_BYTES / 2**20:.0f} MiB for each of {config.num_workers} workers) but {available / 2**20:.0f} MiB "
            "are available; lower --num-envs, --rollout-steps or --workers"
        )


def available_memory() -> int | None:
    """Return the number of bytes that new processes can use, or None if it is unknown.

    This is the smaller one of two values: the available memory of the machine, and the free memory of the control
    group.
    """
    limits = []
    for name, value in _lines(Path("/proc/meminfo"), ":"):
        if name == "MemAvailable":
            limits.append(int(value.split()[0]) * 1024)
    group = Path("/sys/fs/cgroup")
    maximum, used = _number(group / "memory.max"), _number(group / "memory.current")
    if maximum is not None and used is not None:
        # Inactive pages of cached files count as used, but the kernel frees them when memory is needed.
        cached = sum(int(value) for name, value in _lines(group / "memory.stat", " ") if name == "inactive_file")
        limits.append(max(0, maximum - used + cached))
    return min(limits, default=None)


def _lines(path: Path, separator: str) -> Iterable[tuple[str, str]]:
    """Read the lines of a file as pairs of name and value. A missing file has no lines."""
    try:
        text = path.read_text()
    except OSError:
        return
    for line in text.splitlines():
        name, _, value = line.partition(separator)
        yield name, value


def _number(path: Path) -> int | None:
    """Read the number in a control file; None if the file is missing or contains no number."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _check_open_files(config: TrainConfig) -> None:
    """Increase the soft limit of open files if necessary. Raises ConfigError if the hard limit is too low."""
    try:
        import resource
    except ImportError:  # Windows does not have this module
        return
    needed = OWN_FILES + WORKER_FILES * config.num_workers
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise ConfigError(
            f"open files: {config.num_workers} workers need about {needed} descriptors but the limit is {hard}; "
            "lower --workers, or raise the limit (ulimit -n)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
