"""The commands that messages tell the user to type."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

from shmppo.utils.files import short_path


def program(command: str) -> str:
    """Return how the user starts a command: through the console script or the interpreter, as it was typed."""
    typed = sys.orig_argv
    python = shlex.quote(typed[0]) if typed and Path(typed[0]).name.startswith("python") else "python"
    if not sys.argv[0].startswith("shmppo "):
        return f"{python} -m shmppo.{command.replace('-', '_')}"
    if "-m" in typed:
        return f"{python} -m shmppo {command}"
    script = "shmppo" if shutil.which("shmppo") == os.path.abspath(typed[1]) else short_path(Path(typed[1]))
    return f"{shlex.quote(script)} {command}"
