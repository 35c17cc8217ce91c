"""Draw the console display of a real run of the default job as a picture.

    python -m figures.display.draw

Writes display.svg.
"""

from __future__ import annotations

import dataclasses
import io
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from rich.console import Console

from figures.common.command_line import picture_path
from shmppo import TrainConfig, train
from shmppo.loggers.console import ConsoleDisplay
from shmppo.loggers.panel import RunPanel

WIDTH = 80
ITERATION = 60  # in the middle of the run
RUN_DIR = "runs/cartpole"  # shown in the picture in place of the temporary directory


def main() -> None:
    out = picture_path(Path(__file__).with_name("display.svg"), __doc__)
    original = ConsoleDisplay.show

    def show(display: ConsoleDisplay, row: dict[str, float], *shown: Any, **keywords: Any) -> None:
        original(display, row, *shown, **keywords)
        if row["iteration"] == ITERATION:
            status = dataclasses.replace(display._status, run_dir=Path(RUN_DIR))
            console = Console(record=True, width=WIDTH, file=io.StringIO())
            console.print(RunPanel(status))
            console.save_svg(str(out), title="python -m shmppo train", unique_id="shmppo")

    with tempfile.TemporaryDirectory() as directory, mock.patch.object(ConsoleDisplay, "show", show):
        config = TrainConfig(run_dir=f"{directory}/run", quiet=True)
        train(config, callback=lambda row: row["iteration"] > ITERATION)  # True ends the run
    print(out)


if __name__ == "__main__":
    main()
