"""The display of a real run of the default job as a picture: `python figures/draw_display.py` → figures/display.svg."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from shmppo import TrainConfig, train
from shmppo.loggers.console import WIDTH, ConsoleDisplay
from shmppo.runs import session as session

PICTURE = Path(__file__).with_name("display.svg")
RUN_DIR = "runs/cartpole"  # as the picture names it
ITERATION = 60  # in the middle: something has been learned, something is left


class Photographed(ConsoleDisplay):
    """Draws one iteration's panel into a file."""

    def normalize_leaf(self, row: dict[str, float], *drawn: Any, last: bool) -> None:
        super().show(row, *drawn, last=last)
        if row["iteration"] == ITERATION:
            self._run_dir = Path(RUN_DIR)
            console = Console(record=True, width=WIDTH, file=io.StringIO())
            console.print(self.panel(row, *drawn))
            console.save_svg(str(PICTURE), title="python -m shmppo.train", unique_id="shmppo")


if __name__ == "__main__":
    session.ConsoleDisplay = Photographed  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as directory:
        train(TrainConfig(run_dir=f"{directory}/run", quiet=True, stop_at_iteration=ITERATION))
    print(PICTURE)
