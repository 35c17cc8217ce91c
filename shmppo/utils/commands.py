"""The commands that messages tell the user to type."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

from shmppo.utils.files import short_path
from shmppo.utils.machine import integer_variable


def program(command: str) -> str:
    """Return how the user starts a command: through the console script or the interpreter, as it was typed."""
    typed = sys.orig_argv
    if sys.argv[0].startswith("shmppo ") and len(typed) > 1:
        script = "shmppo" if shutil.which("shmppo") == os.path.abspath(typed[1]) else short_path(Path(typed[1]))
        return f"{shlex.quote(script)} {command}"
    python = typed[0] if typed and Path(typed[0]).name.startswith("python") else "python"
    return f"{shlex.quote(python)} -m shmppo.{command}"


def resume_command(run_dir: Path) -> str:
    """Return the command that continues a run with as many ranks. run_dir: directory of the run, or of one rank."""
    start, ranks = program("train"), integer_variable("WORLD_SIZE", 1)
    if ranks > 1:
        machines, local = os.environ.get("GROUP_WORLD_SIZE", "1"), os.environ.get("LOCAL_WORLD_SIZE", str(ranks))
        start = f"torchrun --nnodes {machines} --nproc-per-node {local} -m shmppo.train"
    whole = run_dir.parent if run_dir.name.startswith("rank-") else run_dir
    return f"{start} --resume {shlex.quote(short_path(whole))}"
