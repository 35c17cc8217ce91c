"""Environment variables with which NumPy and torch compute the same bits on each x86-64 processor with AVX2 and FMA,
whatever the number of its cores. On arm64, only OpenBLAS needs any.

The libraries read them on import. `import shmppo` sets those of NumPy, which environments use, unless NumPy is imported
already. Those of torch make torch slower, so only --portable sets them.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from shmppo.errors import ConfigError

NUMPY = {
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR", "OPENBLAS_CORETYPE": "Haswell",
    "OPENBLAS_NUM_THREADS": "1",  # the bits of large products depend on the number of threads
}  # fmt: skip
NUMPY_ARM64 = {"OPENBLAS_CORETYPE": "ARMV8", "OPENBLAS_NUM_THREADS": "1"}
TORCH = {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "AVX"}
INSTRUCTION_VARIABLES = ("DNNL_MAX_CPU_ISA", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")
"""Variables that limit the vector instructions of the libraries in torch."""
WORKSPACES = "CUBLAS_WORKSPACE_CONFIG"
"""A variable that cuBLAS reads when it starts, and that decides its algorithms."""
PROCESSORS = {"x86_64": "x86-64 with AVX2 and FMA", "aarch64": "arm64", "arm64": "arm64"}
"""The processors that compute the same bits with these variables, by the name of the architecture."""
NUMPY_AVX512 = "NumPy with AVX512"
"""What `processor_type` adds if NumPy is not pinned, on a processor where this matters."""

_INHERITED = "SHMPPO_NUMPY_INHERITED"
"""A variable that `numpy_inherited` sets, and that the started process removes."""


def processor_facts() -> dict[str, str]:
    """Return what /proc/cpuinfo says about the first core. It is empty on systems without this file."""
    try:
        with open("/proc/cpuinfo") as file:
            lines = file.read(8192).split("\n\n")[0].splitlines()  # to read all of it takes long with many cores
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def pin_numpy() -> None:
    """Set the variables of NumPy, except those that are set already, if it is not imported yet.

    A processor without AVX2 could not execute the functions that they choose.
    """
    variables = NUMPY if "avx2" in processor_facts().get("flags", "").split() else {}
    if PROCESSORS.get(platform.machine()) == "arm64":
        variables = NUMPY_ARM64
    inherited = os.environ.pop(_INHERITED, None)
    if "numpy" not in sys.modules and inherited is None:
        for name, value in variables.items():
            os.environ.setdefault(name, value)


@contextmanager
def numpy_inherited() -> Iterator[None]:
    """Let processes that start in the context keep the variables of this one, which may have imported NumPy first."""
    os.environ[_INHERITED] = "1"
    try:
        yield
    finally:
        del os.environ[_INHERITED]


def pin_like(processor: str, *, portable: bool) -> None:
    """Set the variables as they were in a run.

    Args:
        processor: the processor that the run has recorded.
        portable: whether the run has --portable.
    """
    if NUMPY_AVX512 in processor and "numpy" not in sys.modules:
        for name in [name for name, value in NUMPY.items() if os.environ.get(name) == value]:
            del os.environ[name]
    if portable:
        pin_torch()


def pin_torch() -> None:
    """Set the variables of torch, as `shmppo.portable` describes."""
    if "torch" in sys.modules:
        check_torch()
    os.environ.update(TORCH)


def check_torch() -> None:
    """Raise ConfigError if the variables of torch are not set."""
    if not _torch_is_pinned():
        raise ConfigError(
            "--portable takes effect when torch is imported; call shmppo.portable() before the program imports torch"
        )


def _torch_is_pinned() -> bool:
    return all(os.environ.get(name) == TORCH.get(name) for name in {*TORCH, *INSTRUCTION_VARIABLES})


def is_portable(kernel: str) -> bool:
    """Whether a run has the same weights on all PROCESSORS of this architecture. kernel: "native" or "torch"."""
    if PROCESSORS.get(platform.machine()) == "arm64":
        return kernel == "native" and os.environ.get("OPENBLAS_CORETYPE") == NUMPY_ARM64["OPENBLAS_CORETYPE"]
    has_avx2 = bool(_numpy_features() & {"AVX2", "X86_V3"})
    return has_avx2 and not numpy_uses_avx512() and (kernel == "native" or _torch_is_pinned())


def numpy_uses_avx512() -> bool:
    """Whether NumPy has other functions in this process than on processors without AVX-512."""
    own_core = os.environ.get("OPENBLAS_CORETYPE", "Haswell") != "Haswell"
    return own_core or any(name.startswith(("X86_V4", "AVX512")) for name in _numpy_features())


def _numpy_features() -> set[str]:
    import numpy as np

    simd = np.show_config(mode="dicts")["SIMD Extensions"]
    return {*simd.get("baseline", ()), *simd.get("found", ())}
