"""Facts about the machine: library versions, processor, git revision, memory, and cores."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from shmppo.utils.portable import (
    INSTRUCTION_VARIABLES,
    NUMPY_AVX512,
    PROCESSORS,
    WORKSPACES,
    is_portable,
    numpy_uses_avx512,
    processor_facts,
)
from shmppo.version import __version__

PACKAGES = ("torch", "gymnasium", "numpy", "mujoco")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that can change the bits of a run's weights."""
    own = {"python": platform.python_version(), "shmppo": __version__}
    return own | {name: _version(name) for name in PACKAGES}


_version = functools.cache(metadata.version)  # which parses a text of many kilobytes


def fingerprint(kernel: str, device: str = "cpu", act_on: str = "workers") -> dict[str, str]:
    """Return what decides the bits of a run's weights: the processor, and versions of what computes its numbers.

    MuJoCo is listed only if this process has imported it, and torch only if it computes the network.

    Args:
        kernel: what computes the network, "native" or "torch".
        device, act_on: the options.
    """
    unused = {"torch": kernel == "native" and device == "cpu", "mujoco": "mujoco" not in sys.modules}
    found = {name: version for name, version in versions().items() if not unused.get(name)}
    found["python"] = ".".join(platform.python_version_tuple()[:2])
    found |= {"processor": processor_type(kernel)} | ({} if act_on == "workers" else {"act_on": act_on})
    return found if device == "cpu" else found | {"device": device_type(device)}


@functools.cache
def device_type(device: str) -> str:
    """Return what decides the bits of an update on a device: its model, driver, and libraries."""
    import torch

    if not device.startswith("cuda"):
        return device
    found = [f"CUDA {torch.version.cuda}"]
    found.append(f"cuDNN {torch.backends.cudnn.version()}")  # type: ignore[no-untyped-call]
    for package in ("nvidia-cublas", "nvidia-cublas-cu12"):
        with suppress(metadata.PackageNotFoundError):
            found.append(f"cuBLAS {metadata.version(package)}")
    with suppress(OSError, IndexError):
        found.append(f"driver {Path('/proc/driver/nvidia/version').read_text().split('Module')[1].split()[0]}")
    found.append(f"{WORKSPACES}={os.environ.get(WORKSPACES)}")
    return f"{torch.cuda.get_device_name()} ({', '.join(found)})"


def same_bits_on(bits: dict[str, str]) -> dict[str, str]:
    """Return a `fingerprint` with all processors that give the same bits.

    MuJoCo and torch compute other numbers on another architecture.
    """
    every = ", ".join(dict.fromkeys(PROCESSORS.values()))
    several = bits["processor"] in PROCESSORS.values() and not {"torch", "mujoco"} & bits.keys()
    return bits | ({"processor": every} if several else {})


def processor() -> str:
    """Return the processor's model name, or its architecture if the model name is unknown."""
    return processor_facts().get("model name") or platform.processor() or platform.machine()


def processor_type(kernel: str) -> str:
    """Return everything about the processor that may decide the bits of the weights.

    Args:
        kernel: what computes the network, "native" or "torch".

    Returns:
        One of `PROCESSORS` if no more than that decides. Otherwise the name, the numbers of family and model, the
        vector instructions of torch and NumPy, because virtual machines often shorten the name and some hide
        instructions, and INSTRUCTION_VARIABLES that are set.
    """
    if is_portable(kernel):
        return PROCESSORS[platform.machine()]
    import torch  # slow to import, and most users of this module do not need it

    facts = processor_facts()
    numbers = [f"{name} {facts[key]}" for name, key in (("family", "cpu family"), ("model", "model")) if key in facts]
    numbers += [torch.backends.cpu.get_cpu_capability(), *([NUMPY_AVX512] if numpy_uses_avx512() else [])]
    numbers += [f"{name}={os.environ[name]}" for name in INSTRUCTION_VARIABLES if name in os.environ]
    return f"{processor()} ({', '.join(numbers)})"


def git_revision() -> str | None:
    """Return the git revision of this package, or None if it does not run from a git checkout."""
    try:
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def proportional_memory(pids: Iterable[int]) -> int:
    """Return the memory of several processes in bytes.

    A page that several processes share counts once (proportional set size). Only Linux reports it; elsewhere the result
    is 0.
    """
    total = 0
    for pid in pids:
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


def process_state(pid: int) -> str:
    """Return the state of a process as one letter, for example "T" if it is stopped, and "Z" if it is a zombie.

    "" if there is no such process, or if the system has no /proc.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def own_cores() -> list[int]:
    """Return the cores that this process may use. On systems that do not tell: all of them."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(own_cores())
