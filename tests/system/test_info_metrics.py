"""Metrics from `info`: equal to those of a slow reference, and the same for all workers, kills, resumes, and ranks."""

from __future__ import annotations

import csv
import dataclasses
import math
import signal
from collections import Counter, deque
from pathlib import Path
from typing import Any

import pytest
from conftest import summary_of
from environments import Reach
from helpers import Saboteur
from rank_processes import directories, output_of, start

from shmppo import resume, train
from shmppo.config.train_config import TrainConfig
from shmppo.errors import EnvError, WorkerError
from shmppo.loggers.metrics import TIMED_COLUMNS

KEYS = ("reward/distance:sum", "reward/control:mean", "far:max", "nothing")
RUN = TrainConfig(
    env="environments:Reach", env_kwargs={"rare": 0.05}, info_keys=KEYS, num_envs=6, rollout_steps=20, seq_len=8,
    minibatches=2, epochs=2, hidden_size=8, encoder_sizes=(8,), grad_shards=2, workers=0, quiet=True,
    total_steps=6 * 20 * 10,
)  # fmt: skip


def columns_of(run_dir: Path) -> list[dict[str, str]]:
    """The rows of metrics.csv without measured times."""
    with open(run_dir / "metrics.csv", newline="") as file:
        return [{k: v for k, v in row.items() if k not in TIMED_COLUMNS} for row in csv.DictReader(file)]


class Recorder:
    """Records every step of `Reach`: (environment, whether the episode ended, reward, info), in the order of steps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[tuple[Reach, bool, float, dict[str, Any]]] = []
        original = Reach.step

        def step(env: Reach, action: Any) -> Any:
            returned = original(env, action)
            self.steps.append((env, returned[2] or returned[3], returned[1], returned[4]))
            return returned

        monkeypatch.setattr(Reach, "step", step)

    def expected(self, steps: int) -> list[dict[str, float]]:
        """The metrics after each iteration of this number of steps, from lists of all infos of each episode."""
        last: deque[dict[str, float]] = deque(maxlen=100)
        episodes: dict[Reach, list[Any]] = {}
        rows = []
        counts = Counter(env for env, *_ in self.steps)
        trained = [step for step in self.steps if counts[step[0]] > 1]  # without the look at the environment before
        for number, (env, ended, reward, info) in enumerate(trained, 1):
            episodes.setdefault(env, []).append((reward, info))
            if ended:
                rewards, infos = zip(*episodes.pop(env), strict=True)
                far = [info["far"].item() for info in infos if "far" in info]
                control = [info["reward"]["control"] for info in infos]
                last.append({
                    "return_mean_100": sum(rewards),
                    "info/reward/distance": sum(info["reward"]["distance"] for info in infos),
                    "info/reward/control": sum(control) / len(control),
                    "info/far": max(far, default=math.nan),
                    "info/nothing": math.nan,
                    "info/is_success": float(infos[-1]["is_success"]),
                    "info/success": float(infos[-1].get("success", math.nan)),
                })  # fmt: skip
            if number % steps == 0:
                rows.append({})
                for name in last[0] if last else ():
                    known = [episode[name] for episode in last if not math.isnan(episode[name])]
                    rows[-1][name] = sum(known) / len(known) if known else math.nan
        return rows


def test_columns_are_those_of_a_slow_reference(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recorder = Recorder(monkeypatch)
    seen: list[dict[str, float]] = []
    train(dataclasses.replace(RUN, run_dir=str(tmp_path / "run")), callback=seen.append)
    rows, expected = columns_of(tmp_path / "run"), recorder.expected(RUN.rank_steps)
    assert len(rows) == len(expected) == 10
    late = next(i for i, row in enumerate(expected) if not math.isnan(row["info/success"]))
    assert 2 < late < 9
    assert 0 < expected[-1]["info/is_success"] < 1
    for i, (row, called, values) in enumerate(zip(rows, seen, expected, strict=True)):
        for name, value in values.items():
            assert float(row[name]) == pytest.approx(value, rel=1e-9, nan_ok=True), (i, name)
        assert [name for name in called if name.startswith("info/")] == [
            name for name in values if name.startswith("info/") and (name != "info/success" or i >= late)
        ]
    named = [f"info/{key.partition(':')[0]}" for key in KEYS]
    assert [name for name in rows[0] if name.startswith("info/")] == [*named, "info/is_success", "info/success"]


def test_neither_workers_nor_kills_nor_resumes_change_a_column(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for workers in range(4):
        train(dataclasses.replace(RUN, workers=workers, run_dir=str(tmp_path / str(workers))))
    expected = columns_of(tmp_path / "0")
    stop = 4
    assert expected[stop - 1]["info/success"] == "nan" != expected[-1]["info/success"], "it is added after the stop"
    train(dataclasses.replace(RUN, workers=2, stop_at_iteration=stop, run_dir=str(tmp_path / "stopped")))
    resume(tmp_path / "stopped", workers=1)
    whole = dataclasses.replace(RUN, workers=2, keep_every=stop, run_dir=str(tmp_path / "whole"))
    train(whole)
    resume(tmp_path / "whole", checkpoint=stop, new_run_dir=tmp_path / "forked")
    saboteur = Saboteur(monkeypatch, at_round=31, number=signal.SIGKILL, delay=0.001)
    killed = train(dataclasses.replace(RUN, workers=2, run_dir=str(tmp_path / "killed")))
    assert saboteur.hit
    assert killed["worker_restarts"] == 1
    for name in ("1", "2", "3", "stopped", "whole", "forked", "killed"):
        assert columns_of(tmp_path / name) == expected, name
        assert summary_of(tmp_path / name)["exact"]


@pytest.mark.long
@pytest.mark.usefixtures("environments_importable")
def test_two_ranks_have_the_rows_of_one_rank_with_all_environments(tmp_path: Path) -> None:
    """As long as the weights are the same: before the first update. Afterwards, they differ by rounding."""
    flags = ["--env-kwargs", "rare=0.5", "--info-keys", *KEYS]
    first = {}
    for workers in (0, 2):
        run_dir = tmp_path / str(workers)
        process = start(run_dir, *flags, "--total-steps", 1024, "--workers", workers, env="environments:Reach")
        output = output_of(process)
        assert process.returncode == 0, output
        for path in directories(run_dir):
            first.setdefault("rows", columns_of(path))
            assert columns_of(path) == first["rows"], path
    one = dataclasses.replace(
        RUN, num_envs=8, env_block=4, rollout_steps=16, env_kwargs={"rare": 0.5}, total_steps=128, grad_shards=None,
        run_dir=str(tmp_path / "one"),
    )  # fmt: skip
    train(one)
    (row,) = columns_of(tmp_path / "one")
    assert row["info/is_success"] != "nan"
    names = ["episodes", "return_mean_100", *(name for name in row if name.startswith("info/"))]
    assert {name: row[name] for name in names} == {name: first["rows"][0][name] for name in names}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_value_that_is_not_a_number_is_refused(workers: int, tmp_path: Path) -> None:
    config = dataclasses.replace(
        RUN, env_kwargs={"wrong": "left"}, info_keys=("wrong",), workers=workers, run_dir=str(tmp_path / "run")
    )
    message = "--info-keys wrong: in the info of environments:Reach, 'left' is not a number; name a key of numbers"
    with pytest.raises((EnvError, WorkerError), match=message):
        train(config)
