"""What survival costs: figures/data/overhead.csv.

    python figures/measure_overhead.py

One run of task A, paired with itself: in blocks of five iterations, one after the other, the actions of episodes in
progress are kept for replay, or are not. Checkpoints are saved every 15 seconds and timed; the cost of one a minute
follows. The running hash of each step's observation and reward, by which a replay is checked, is timed by itself, since
no block can go without it.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from provenance import DATA, record

from shmppo.config.train_config import TrainConfig
from shmppo.envs.factory import inspect_task
from shmppo.envs.sync import SyncVectorEnv
from shmppo.runs.session import Session
from shmppo.runs.trainer import train
from shmppo.sampling.action_log import ActionLog

BASE = TrainConfig(
    env="HalfCheetah-v5", num_envs=16, rollout_steps=128, minibatches=4, epochs=4, seq_len=16, hidden_size=128,
    encoder_sizes=(128,), workers=2, checkpoint_minutes=0.25, quiet=True,
)  # fmt: skip
BLOCK = 5
WARM_UP = 10


class Measured:
    """Replaces what it measures by the same with a stopwatch, or by nothing."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.saves: list[float] = []
        self._commit, self._save = ActionLog.commit, Session.save

    def commit(self, log: ActionLog, *arguments: np.ndarray) -> None:
        if self._recording(log.iteration):
            self._commit(log, *arguments)
        else:  # what lock-step needs of it
            log.iteration += 1

    def save(self, session: Session) -> None:
        began = time.perf_counter()
        self._save(session)
        self.saves.append(time.perf_counter() - began)
        if self.rows:
            self.rows[-1]["saved"] = 1  # its time is part of the next iteration's

    def callback(self, row: dict[str, float]) -> None:
        self.rows.append({
            "iteration": int(row["iteration"]),
            "recorded": int(self._recording(int(row["iteration"]) - 1)),
            "seconds": BASE.batch_steps / row["steps_per_second"],
            "saved": 0,
        })  # fmt: skip

    @staticmethod
    def _recording(iteration: int) -> bool:
        return iteration // BLOCK % 2 == 0


def run(iterations: int) -> Measured:
    measured = Measured()
    with (
        tempfile.TemporaryDirectory() as directory,
        mock.patch.object(ActionLog, "commit", lambda *arguments: measured.commit(*arguments)),
        mock.patch.object(Session, "save", lambda session: measured.save(session)),
    ):
        run_dir = str(Path(directory) / "run")
        config = dataclasses.replace(BASE, total_steps=iterations * BASE.batch_steps, run_dir=run_dir)
        train(config, callback=measured.callback)
    return measured


def hash_seconds(steps: int = 20_000) -> float:
    """Seconds that the running hash takes for one environment step."""
    task = inspect_task(BASE)
    batch = SyncVectorEnv(BASE, task, 0, 1)
    batch.begin(0)
    observation = np.zeros(17)
    times = []
    for hashing in (zlib.crc32, lambda *_: 0):
        with mock.patch("zlib.crc32", hashing):
            began = time.perf_counter()
            for _ in range(steps):
                batch._see_vector(0, observation, zlib.crc32(b"12345678", 0))
            times.append((time.perf_counter() - began) / steps)
    batch.close()
    return times[0] - times[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=800)
    options = parser.parse_args()
    measured = run(options.iterations)
    rows = measured.rows
    with open(DATA / "overhead.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    after_save = {row["iteration"] + 1 for row in rows if row["saved"]}
    counted = [row for row in rows if row["iteration"] > WARM_UP and row["iteration"] not in after_save]
    median = {kind: float(np.median([r["seconds"] for r in counted if r["recorded"] == kind])) for kind in (0, 1)}
    recording = median[1] / median[0] - 1
    saving = float(np.median(measured.saves)) / 60
    hashing = hash_seconds() * BASE.batch_steps / BASE.num_workers / median[0]
    text = (
        f"recording {recording:+.2%}, a checkpoint a minute {saving:+.2%} ({len(measured.saves)} saves of "
        f"{np.median(measured.saves) * 1e3:.0f} ms), hashing {hashing:+.2%} of an iteration of {median[0] * 1e3:.0f} ms"
    )
    record(DATA / "overhead.csv", text)
    print(text)


if __name__ == "__main__":
    main()
