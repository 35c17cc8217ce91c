"""Measure the time that recovery and verification cost: recording, checkpoints, and hashing.

    python -m figures.overhead.measure

Trains task A once for each of two parts. Blocks of five iterations alternate: in one block the part works, in the next
block it does not. The parts are the recording of the actions of episodes in progress, for a replay, and the hash of the
weights in each row of metrics.csv. The median iterations of both kinds of blocks are compared.
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
from shmppo.ppo.learner import Learner
from shmppo.runs.session import Session
from shmppo.sampling.action_log import ActionLog

TABLE = Path(__file__).with_name("overhead.csv")
BASE = TrainConfig(**TASK_A, workers=2, checkpoint_minutes=0.25, quiet=True)
BLOCK = 5
WARM_UP = 10  # iterations that do not count
OBSERVATION_SIZE = 17
RECORDING, HASHING = "recording of actions", "hash of the weights"


def is_on(iteration: int) -> bool:
    """Return whether the part works in this iteration."""
    return iteration // BLOCK % 2 == 0


class Recorder:
    """Collects the times of iterations and checkpoints of a run, and switches a part of the run on and off."""

    def __init__(self, part: str) -> None:
        self.part = part
        self.rows: list[dict[str, Any]] = []
        self.save_seconds: list[float] = []

    def commit(self, original: Callable[..., None]) -> Callable[..., None]:
        """Wrap `ActionLog.commit` so that it records only in every second block."""

        def wrapped(log: ActionLog, *arguments: Any, **keywords: Any) -> None:
            if self.part != RECORDING or is_on(log.iteration):
                original(log, *arguments, **keywords)
            else:
                log.iteration += 1

        return wrapped

    def weights_sha256(self, original: Callable[..., str]) -> Callable[..., str]:
        """Wrap `Learner.weights_sha256` so that it computes the hash only in every second block."""

        def wrapped(learner: Learner) -> str:
            return original(learner) if self.part != HASHING or is_on(len(self.rows)) else ""

        return wrapped

    def save(self, original: Callable[..., bool]) -> Callable[..., bool]:
        """Wrap `Session.save` so that its time is measured."""

        def wrapped(session: Session, *arguments: Any, **keywords: Any) -> bool:
            begin = time.perf_counter()
            saved = original(session, *arguments, **keywords)
            self.save_seconds.append(time.perf_counter() - begin)
            if self.rows:
                self.rows[-1]["saved"] = 1  # the next iteration includes the time of this save
            return saved

        return wrapped

    def on_iteration(self, row: dict[str, float]) -> None:
        """Store the time of an iteration; `train` calls this."""
        iteration = int(row["iteration"])
        seconds = BASE.batch_steps / row["steps_per_second"]
        on = int(is_on(iteration - 1))
        self.rows.append({"part": self.part, "iteration": iteration, "on": on, "seconds": seconds, "saved": 0})


def measure(part: str, iterations: int) -> Recorder:
    """Train, and return what was recorded."""
    recorder = Recorder(part)
    with (
        tempfile.TemporaryDirectory() as directory,
        mock.patch.object(ActionLog, "commit", recorder.commit(ActionLog.commit)),
        mock.patch.object(Learner, "weights_sha256", recorder.weights_sha256(Learner.weights_sha256)),
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


def block_seconds(recorder: Recorder) -> np.ndarray:
    """Return the median seconds of an iteration in each pair of blocks, [pairs, 2]: without the part, with it."""
    after_save = {row["iteration"] + 1 for row in recorder.rows if row["saved"]}
    blocks: dict[tuple[int, int], list[float]] = {}
    for row in recorder.rows:
        if row["iteration"] > WARM_UP and row["iteration"] not in after_save:
            blocks.setdefault(((row["iteration"] - 1) // (2 * BLOCK), row["on"]), []).append(row["seconds"])
    pairs = sorted({pair for pair, _ in blocks})
    return np.array(
        [[np.median(blocks[pair, on]) for on in (0, 1)] for pair in pairs if {(pair, 0), (pair, 1)} <= set(blocks)]
    )


def ratio(recorder: Recorder) -> str:
    """Return the speed with the part relative to that without it: median, quartiles, and number of pairs of blocks."""
    ratios = np.divide(*block_seconds(recorder).T)
    low, middle, high = np.percentile(ratios, (25, 50, 75))
    return f"{middle:.4f} (quartiles {low:.4f} and {high:.4f}, {len(ratios)} pairs of blocks)"


def summarize(recorder: Recorder, verified: Recorder) -> str:
    """Return the speed with each part, and the additional times relative to an iteration without recording, as text."""
    plain = float(np.median(block_seconds(recorder)[:, 0]))
    saves = recorder.save_seconds
    saving = float(np.median(saves)) / 60
    hashing = hash_seconds() * BASE.batch_steps / BASE.num_workers / plain
    return (
        f"Speed with the recording of actions {ratio(recorder)}, with the hash of the weights {ratio(verified)}. "
        f"Additional time, relative to an iteration of {plain * 1e3:.0f} ms: a checkpoint per minute {saving:+.2%} "
        f"({len(saves)} saves of {np.median(saves) * 1e3:.0f} ms), hashing of observations {hashing:+.2%}."
    )


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--iterations", type=int, default=400)
    options = parser.parse_args()
    recorder, verified = measure(RECORDING, options.iterations), measure(HASHING, options.iterations)
    note = summarize(recorder, verified)
    write_rows(TABLE, recorder.rows + verified.rows, note)
    print(note)


if __name__ == "__main__":
    main()
