"""The commands that messages tell the user to type."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

from shmppo.utils.files import short_path


def program(command: str) -> str:
    """Return how to start a command: through the console script if it is in use, else as `python -m shmppo.COMMAND`."""
    script, typed = Path(sys.argv[0]), sys.orig_argv
    if script.stem == "shmppo":
        name = "shmppo" if shutil.which("shmppo") == os.path.abspath(script) else short_path(script)
        return f"{shlex.quote(name)} {command}"
    python = shlex.quote(typed[0]) if typed and Path(typed[0]).name.startswith("python") else "python"
    return f"{python} -m shmppo.{command.replace('-', '_')}"
