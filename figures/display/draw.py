"""Draw the console display of a real run of the default job as a picture.

    python -m figures.display.draw

Writes display.svg.
"""

from __future__ import annotations

import io
import os
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from rich.console import Console

from figures.common.command_line import picture_path
from shmppo import TrainConfig, train
from shmppo.loggers.console import WIDTH, ConsoleDisplay

ITERATION = 60  # in the middle of the run
RUN_DIR = "runs/cartpole"  # shown in the picture


def main() -> None:
    out = picture_path(Path(__file__).with_name("display.svg"), __doc__).resolve()
    original = ConsoleDisplay.show

    def show(display: ConsoleDisplay, row: dict[str, float], *shown: Any, **keywords: Any) -> None:
        original(display, row, *shown, **keywords)
        if row["iteration"] == ITERATION:
            console = Console(record=True, width=WIDTH, file=io.StringIO())
            console.print(display.panel(row, *shown))
            console.save_svg(str(out), title="python -m shmppo.train", unique_id="shmppo")

    with tempfile.TemporaryDirectory() as directory, mock.patch.object(ConsoleDisplay, "show", show):
        os.chdir(directory)  # so that the display shows a short path
        train(TrainConfig(run_dir=RUN_DIR, quiet=True, stop_at_iteration=ITERATION))
    print(out)


if __name__ == "__main__":
    main()
