"""Provenance of measured data: the commit, the machine, and the command behind each CSV file.

NAME.json beside NAME.csv holds them. The caption of a picture quotes them.
"""

from __future__ import annotations

import json
import re
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
    others = re.findall(r"\b[0-9a-f]{7}\b", known["note"])
    commits = ", ".join(sorted({known["commit"], *others}))
    parts = [
        # A note that names other commits says which rows belong to them. It is too long for a picture.
        f"Commits: {commits} (see {csv_file.stem}.json)." if others else f"{known['note']} Commit {commits}.".lstrip(),
        f"{known['cores']} core{'s' * (known['cores'] != 1)} of an {known['processor']}, torch {known['torch']}.",
        f"Seeds: {seeds}." if seeds else "",
    ]
    return note + "\n" + " ".join(part for part in parts if part)
