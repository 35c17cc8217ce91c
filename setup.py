"""Build the kernels of `shmppo/kernels` once for each kind of processor. Without a C compiler, torch computes."""

import os
import platform
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FLAGS = ["-std=c11", "-O3", "-fPIC", "-fno-fast-math", "-fno-math-errno", "-ffp-contract=off", "-Wno-psabi"]
GENERIC = {
    "generic": ["-DGENERIC_LANES=4", "-O1"],  # more optimization takes GCC a minute and gains nothing
    "scalar": ["-DGENERIC_LANES=1"],
}
VARIANTS = {
    "x86_64": {
        "avx512bf16": ["-mavx512f", "-mavx2", "-mfma", "-mavx512bf16"],
        "avx512": ["-mavx512f", "-mavx2", "-mfma"],
        "avx2": ["-mavx2", "-mfma"],
    },
    "aarch64": {"neon": []},
    "arm64": {"neon": []},
}


class BuildKernels(build_ext):
    """Compiles network.c for each variant, and links everything to one library that ctypes loads."""

    def build_extension(self, ext: Extension) -> None:
        build, target = Path(self.build_temp), Path(self.get_ext_fullpath(ext.name))
        build.mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        compiler, own = (shlex.split(os.environ.get(name, default)) for name, default in (("CC", "cc"), ("CFLAGS", "")))
        network, float64 = ext.sources
        variants = {**VARIANTS.get(platform.machine(), {}), **GENERIC}
        sources = [(network, name, [*flags, f"-DVARIANT={name}"]) for name, flags in variants.items()]

        def compile_object(part: tuple[str, str, list[str]]) -> Path:
            source, name, flags = part
            command = [*compiler, *FLAGS, *flags, *own, "-c", source, "-o", build / f"{name}.o"]
            subprocess.run(command, check=True)
            return build / f"{name}.o"

        try:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                objects = list(pool.map(compile_object, [*sources, (float64, "float64", [])]))
            subprocess.run([*compiler, *own, "-shared", *objects, "-lm", "-o", target], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"shmppo: the kernels could not be compiled ({error}); torch computes instead", file=sys.stderr)


KERNELS = Path("shmppo/kernels")
setup(
    ext_modules=[
        Extension(
            "shmppo.kernels.network",
            [str(KERNELS / name) for name in ("network.c", "float64.c")],
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildKernels},
)
