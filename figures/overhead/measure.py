"""Measure the time that recovery costs: recording of actions, checkpoints, and hashing of observations.

    python -m figures.overhead.measure

Trains task A once. Blocks of five iterations alternate: in one block the actions of the episodes in progress are
recorded for a replay, in the next block they are not. The median iterations of both kinds of blocks are compared.
Checkpoints are saved every 15 seconds; the script scales their time to one checkpoint per minute. The hash of each
observation and reward, which verifies a replay, is timed on its own. Writes overhead.csv.
"""

from __future__ import annotations

import dataclasses
import struct
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from figures.common.command_line import script_parser
from figures.common.jobs import TASK_A
from figures.common.tables import write_rows
from shmppo import TrainConfig, train
from shmppo.runs.session import Session
from shmppo.sampling.action_log import ActionLog

TABLE = Path(__file__).with_name("overhead.csv")
BASE = TrainConfig(**TASK_A, workers=2, checkpoint_minutes=0.25, quiet=True)
BLOCK = 5
WARM_UP = 10  # iterations that do not count
OBSERVATION_SIZE = 17


def is_recorded(iteration: int) -> bool:
    """Return whether the actions of this iteration are recorded."""
    return iteration // BLOCK % 2 == 0


class Recorder:
    """Collects the times of iterations and checkpoints of a run, and switches the recording of actions."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.save_seconds: list[float] = []

    def commit(self, original: Callable[..., None]) -> Callable[..., None]:
        """Wrap `ActionLog.commit` so that it records only in every second block."""

        def wrapped(log: ActionLog, *arguments: Any, **keywords: Any) -> None:
            if is_recorded(log.iteration):
                original(log, *arguments, **keywords)
            else:
                log.iteration += 1

        return wrapped

    def save(self, original: Callable[..., None]) -> Callable[..., None]:
        """Wrap `Session.save` so that its time is measured."""

        def wrapped(session: Session, *arguments: Any, **keywords: Any) -> None:
            begin = time.perf_counter()
            original(session, *arguments, **keywords)
            self.save_seconds.append(time.perf_counter() - begin)
            if self.rows:
                self.rows[-1]["saved"] = 1  # the next iteration includes the time of this save

        return wrapped

    def on_iteration(self, row: dict[str, float]) -> None:
        """Store the time of an iteration; `train` calls this."""
        iteration = int(row["iteration"])
        seconds = BASE.batch_steps / row["steps_per_second"]
        recorded = int(is_recorded(iteration - 1))
        self.rows.append({"iteration": iteration, "recorded": recorded, "seconds": seconds, "saved": 0})


def measure(iterations: int) -> Recorder:
    """Train, and return what was recorded."""
    recorder = Recorder()
    with (
        tempfile.TemporaryDirectory() as directory,
        mock.patch.object(ActionLog, "commit", recorder.commit(ActionLog.commit)),
        mock.patch.object(Session, "save", recorder.save(Session.save)),
    ):
        run_dir = str(Path(directory) / "run")
        config = dataclasses.replace(BASE, total_steps=iterations * BASE.batch_steps, run_dir=run_dir)
        train(config, callback=recorder.on_iteration)
    return recorder


def hash_seconds(steps: int = 20_000) -> float:
    """Return the seconds that the hash of one environment step takes."""
    observation, reward = np.zeros(OBSERVATION_SIZE), struct.Struct("d")
    hashed = 0
    begin = time.perf_counter()
    for _ in range(steps):
        hashed = zlib.crc32(reward.pack(0.0), hashed)
        hashed = zlib.crc32(np.ascontiguousarray(observation).data, hashed)
    return (time.perf_counter() - begin) / steps


def summarize(recorder: Recorder) -> str:
    """Return the additional times relative to an iteration without recording, as text."""
    after_save = {row["iteration"] + 1 for row in recorder.rows if row["saved"]}
    counted = [row for row in recorder.rows if row["iteration"] > WARM_UP and row["iteration"] not in after_save]
    plain, recorded = (
        float(np.median([row["seconds"] for row in counted if row["recorded"] == kind])) for kind in (0, 1)
    )
    saves = recorder.save_seconds
    saving = float(np.median(saves)) / 60
    hashing = hash_seconds() * BASE.batch_steps / BASE.num_workers / plain
    return (
        f"Additional time, relative to an iteration of {plain * 1e3:.0f} ms: recording {recorded / plain - 1:+.2%}, a "
        f"checkpoint per minute {saving:+.2%} ({len(saves)} saves of {np.median(saves) * 1e3:.0f} ms), hashing "
        f"{hashing:+.2%}."
    )


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--iterations", type=int, default=800)
    options = parser.parse_args()
    recorder = measure(options.iterations)
    note = summarize(recorder)
    write_rows(TABLE, recorder.rows, note)
    print(note)


if __name__ == "__main__":
    main()
