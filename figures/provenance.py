"""What a figure says of its data: commit, machine, command, kept in a JSON file beside each CSV; the plots' --out."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path

HERE = Path(__file__).parent
DATA = HERE / "data"


def record(csv_file: Path, note: str = "") -> None:
    """Write NAME.json beside NAME.csv: what a measuring script calls when it has written its table."""
    from shmppo.utils.machine import git_revision, processor, usable_cores, versions

    content = {
        "commit": (git_revision() or "installed")[:7],
        "processor": processor(),
        "cores": usable_cores(),
        "torch": versions()["torch"],
        "command": shlex.join(["python", f"figures/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        "note": note,
    }
    csv_file.with_suffix(".json").write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def caption(name: str, *, seeds: str = "", note: str = "") -> str:
    """The caption of the figure that data/NAME.csv is drawn as; seeds and note: what only the plot knows."""
    known = json.loads((DATA / f"{name}.json").read_text())
    parts = [
        note,
        known["note"],
        f"Seeds {seeds}." if seeds else "",
        f"{known['cores']} cores of an {known['processor']}, torch {known['torch']}, commit {known['commit']}:",
        known["command"],
    ]
    return " ".join(part for part in parts if part)


def output(name: str, description: str | None) -> Path:
    """Where a plotting script writes: figures/NAME.svg, or what --out says."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / f"{name}.svg")
    return parser.parse_args().out
