"""Export the policy of a run for other runtimes, or to publish it: `python -m shmppo.export RUN_DIR --format onnx`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from shmppo.config.checks import require
from shmppo.config.command_line import parse
from shmppo.config.trust import Modules
from shmppo.errors import output_as_stderr, run_command
from shmppo.utils.commands import program


@dataclass(frozen=True)
class ExportConfig:
    """Export the policy of a run for other runtimes, or to publish it."""

    run_dir: tyro.conf.Positional[Path]
    """Directory of the run."""
    checkpoint: str = "last"
    """Checkpoint to export: last, best (see --best-by of train), the number of an iteration, or the path of a
    checkpoint file."""
    format: Literal["onnx", "torchscript", "c", "policy"] = "onnx"
    """onnx: for onnxruntime and other runtimes. torchscript: for libtorch; torch has deprecated this format. c: source
    in C99 that needs no library, also for microcontrollers, and computes the bits of shmppo. policy: a small directory
    for evaluate, load_policy, --init-from, and verify, which can train it again."""
    out: Path | None = None
    """File to write, or directory for a policy. None: policy.onnx, policy.pt, policy.c, or policy in the run's
    directory."""
    weights: Literal["static", "binary"] = "static"
    """Where --format c puts the weights: into the source, or into a file of float32 numbers in little-endian order."""
    trust: Modules = ()
    """A module or package that may be imported although only a run directory names it, for example that of its
    network. Give the flag once per module."""


def main() -> int:
    """Run the command and return its exit code."""
    return run_command(_export)


def _export() -> None:
    options = parse(ExportConfig, sys.argv[1:], program("export"), example="runs/pendulum --format onnx")
    only_c = "--weights binary is only for --format c; add it, or remove --weights"
    require(options.weights == "static" or options.format == "c", only_c)
    with output_as_stderr():
        if options.format == "policy":
            from shmppo.tools.export_policy import export_policy

            path = export_policy(options.run_dir, checkpoint=options.checkpoint, out=options.out)
        else:
            from shmppo.tools.export import export

            path = export(**vars(options))
    print(path)


if __name__ == "__main__":
    sys.exit(main())
