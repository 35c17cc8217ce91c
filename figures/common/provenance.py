"""Provenance of measured data: the commit, the machine, and the command behind each CSV file.

NAME.json beside NAME.csv holds them. The caption of a picture quotes them.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

from shmppo.utils.machine import git_revision, processor, usable_cores, versions


def record_provenance(csv_file: Path, note: str = "") -> None:
    """Write NAME.json beside the table NAME.csv. The measuring script calls this after it has written the table."""
    content = {
        "commit": (git_revision() or "installed")[:7],
        "processor": processor(),
        "cores": usable_cores(),
        "torch": versions()["torch"],
        "command": shlex.join(["python", "-m", f"figures.{csv_file.parent.name}.measure", *sys.argv[1:]]),
        "note": note,
    }
    csv_file.with_suffix(".json").write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def caption(csv_file: Path, *, seeds: str = "", note: str = "") -> str:
    """Return the caption of a picture of this table.

    Args:
        csv_file: the table; its provenance is in the JSON file beside it.
        seeds: the training seeds, as text.
        note: what the reader needs to read the picture.
    """
    known = json.loads(csv_file.with_suffix(".json").read_text())
    parts = [
        note,
        known["note"],
        f"Seeds: {seeds}." if seeds else "",
        f"Measured on {known['cores']} cores of an {known['processor']} with torch {known['torch']}, "
        f"at commit {known['commit']}, by:",
        known["command"],
    ]
    return " ".join(part for part in parts if part)
