"""What a run needs before it starts processes: no other run in this process, and shared memory."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from shmppo.config.checks import require
from shmppo.errors import ConfigError
from shmppo.parallel.shared_buffers import Field, allocate, total_bytes

SHARED_MEMORY = "/dev/shm"

_training = threading.Lock()  # held while a run trains in this process


@contextlib.contextmanager
def only_run() -> Iterator[None]:
    """Let this process train one run at a time, with gradients also if the caller has disabled them.

    The number of torch threads, the handlers of signals and of log records, and the fork server belong to the whole
    process. A second run in another thread would change them, and the results of the first run with them.

    Raises:
        ConfigError: if a run trains in this process.
    """
    if not _training.acquire(blocking=False):
        raise ConfigError(
            "`train` or `resume` was called while another run trains in this process; wait for the end of that run, or "
            "start this one in another process"
        )
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        _training.release()


def allocate_shared(fields: Sequence[Field]) -> torch.Tensor:
    """Allocate the shared buffers of a run, see `allocate`. If that fails, nothing is left in /dev/shm.

    Raises:
        ConfigError: if the system refuses to create the shared memory, or if torch has another default device.
    """
    device = torch.get_default_device().type
    require(device == "cpu", f"torch.set_default_device({device!r}) is not supported; name a GPU with --device instead")
    before = _segments()
    try:
        return allocate(fields)
    except (RuntimeError, OSError) as error:  # torch raises RuntimeError
        for path in _segments() - before:
            path.unlink(missing_ok=True)
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"shared memory: this run needs {total_bytes(fields) / 2**20:.1f} MiB, which could not be allocated "
            f"({reason}); lower --num-envs or --rollout-steps, or enlarge {SHARED_MEMORY} (docker: --shm-size), and "
            "check its permissions and the limits that ulimit -a shows"
        ) from error


def _segments() -> set[Path]:
    """Return the files of torch's shared memory that this process has created and not yet removed."""
    return set(Path(SHARED_MEMORY).glob(f"torch_{os.getpid()}_*"))
