"""What a run needs of the machine, checked before any process starts: shared memory, memory, open files."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError
from shmppo.parallel.shared_buffers import Field, total_bytes

SHARED_MEMORY = "/dev/shm"
WORKER_BYTES = 20 << 20  # private memory of a worker before its environments; measured with the fork server
WORKER_FILES = 6  # descriptors in the learner for each worker: two queues, the sentinel, the fork server's request
OWN_FILES = 64


def check_resources(config: TrainConfig, fields: Iterable[Field]) -> None:
    """Raises ConfigError if the machine cannot hold the run."""
    arena = total_bytes(fields)
    _check_shared_memory(arena)
    _check_memory(config, arena)
    _check_open_files(config)


def _check_shared_memory(needed: int) -> None:
    if not os.path.isdir(SHARED_MEMORY):
        return
    status = os.statvfs(SHARED_MEMORY)
    free = status.f_bavail * status.f_frsize
    if needed > free:
        raise ConfigError(
            f"shared memory: this run needs {needed / 2**20:.1f} MiB but {SHARED_MEMORY} has {free / 2**20:.1f} MiB "
            "free; lower --num-envs or --rollout-steps, or enlarge it (docker: --shm-size)"
        )


def _check_memory(config: TrainConfig, arena: int) -> None:
    available = available_memory()
    needed = arena + config.num_workers * WORKER_BYTES
    if available is not None and needed > available:
        raise ConfigError(
            f"memory: this run needs at least {needed / 2**20:.0f} MiB ({arena / 2**20:.0f} MiB shared and "
            f"{WORKER_BYTES / 2**20:.0f} MiB for each of {config.num_workers} workers) but {available / 2**20:.0f} MiB "
            "are available; lower --num-envs, --rollout-steps or --workers"
        )


def available_memory() -> int | None:
    """Bytes that new processes may use: of the machine, or of the control group if that is less. None if unknown."""
    limits = []
    for name, value in _lines(Path("/proc/meminfo"), ":"):
        if name == "MemAvailable":
            limits.append(int(value.split()[0]) * 1024)
    group = Path("/sys/fs/cgroup")
    maximum, used = _number(group / "memory.max"), _number(group / "memory.current")
    if maximum is not None and used is not None:
        # Pages of files that nobody has used for a while count as used, and are given up when memory is needed.
        cached = sum(int(value) for name, value in _lines(group / "memory.stat", " ") if name == "inactive_file")
        limits.append(max(0, maximum - used + cached))
    return min(limits, default=None)


def _lines(path: Path, separator: str) -> Iterable[tuple[str, str]]:
    try:
        text = path.read_text()
    except OSError:
        return
    for line in text.splitlines():
        name, _, value = line.partition(separator)
        yield name, value


def _number(path: Path) -> int | None:
    """The number in a control file; None if there is no such file, or no limit in it."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _check_open_files(config: TrainConfig) -> None:
    """Raise this process's limit of open files where that is allowed and needed."""
    try:
        import resource
    except ImportError:  # not a POSIX system
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
