"""Provenance of measured data: the commit, the machine, and the command behind each CSV file.

NAME.json beside NAME.csv holds them. The caption of a picture quotes them.
"""

from __future__ import annotations

import csv
import json
import shlex
import sys
from pathlib import Path

from shmppo.utils.machine import git_revision, processor, usable_cores, versions


def record_provenance(csv_file: Path, note: str = "") -> None:
    """Write NAME.json beside the table NAME.csv. The measuring script calls this after it has written the table."""
    spec = sys.modules["__main__"].__spec__  # None for a script that was started by its path
    module = spec.name if spec and spec.name.startswith("figures.") else f"figures.{csv_file.parent.name}.measure"
    content = {
        "commit": (git_revision() or "installed")[:7],
        "processor": processor(),
        "cores": usable_cores(),
        "torch": versions()["torch"],
        "command": shlex.join(["python", "-m", module, *sys.argv[1:]]),
        "note": note,
    }
    csv_file.with_suffix(".json").write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def caption(csv_file: Path, note: str, *, seeds: str = "") -> str:
    """Return the caption of a picture of this table: what the reader needs, and on the next line the provenance.

    Args:
        csv_file: the table; its provenance is in the JSON file beside it.
        note: one sentence.
        seeds: the training seeds, as text.
    """
    known = json.loads(csv_file.with_suffix(".json").read_text())
    with open(csv_file, newline="") as rows:
        commits = {word for row in csv.DictReader(rows) for word in row.get("commit", "").split()} or {known["commit"]}
    parts = [
        f"Commits: see {csv_file.name}." if len(commits) > 1 else f"{known['note']} Commit {commits.pop()}.".lstrip(),
        f"{known['cores']} core{'s' * (known['cores'] != 1)} of an {known['processor']}, torch {known['torch']}.",
        f"Seeds: {seeds}." if seeds else "",
    ]
    return note + "\n" + " ".join(part for part in parts if part)
