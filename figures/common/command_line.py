"""Command lines of the scripts."""

from __future__ import annotations

import argparse
from pathlib import Path


def script_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser that prints the script's docstring as its help."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def picture_path(default: Path, description: str | None) -> Path:
    """Parse the command line of a plotting script: the file to write, which --out changes."""
    parser = script_parser(description)
    parser.add_argument("--out", type=Path, default=default, help="file to write")
    out: Path = parser.parse_args().out
    return out
