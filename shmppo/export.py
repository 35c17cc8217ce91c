"""Export the policy of a run for other runtimes: `python -m shmppo.export RUN_DIR --format onnx`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from shmppo.errors import run_command
from shmppo.tools import export as tool


@dataclass(frozen=True)
class ExportConfig:
    """The flags of `python -m shmppo.export`."""

    run_dir: tyro.conf.Positional[Path]
    """Directory of the run."""
    format: Literal["onnx", "torchscript"] = "onnx"
    """onnx: for onnxruntime and other runtimes. torchscript: for libtorch; torch has deprecated this format."""
    out: Path | None = None
    """File to write. None: policy.onnx or policy.pt in the run's directory."""


def main() -> int:
    """Run the command and return its exit code."""
    return run_command(_export)


def _export() -> None:
    options = tyro.cli(ExportConfig, prog="python -m shmppo.export", description=tool.__doc__)
    print(tool.export(options.run_dir, format=options.format, out=options.out))


if __name__ == "__main__":
    sys.exit(main())
