"""Places in the checkout."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The repository root. Subprocesses run here, so that they import this checkout."""
FIGURES = ROOT / "figures"
