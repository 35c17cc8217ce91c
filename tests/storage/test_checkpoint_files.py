"""Checkpoint files: which are kept, which is selected, and what a save that is killed leaves."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from public_helpers import SIX_ITERATIONS as BASE
from public_helpers import csv_rows

from shmppo import load_policy
from shmppo.errors import ConfigError
from shmppo.runs.launch import resume, train
from shmppo.runs.session import Session
from shmppo.storage.checkpoint import (
    BEFORE,
    BEST,
    NAME,
    CheckpointSchedule,
    kept_name,
    load_resumable_checkpoint,
    load_selected_checkpoint,
    save_checkpoint,
)
from shmppo.storage.checkpoint_file import load_checkpoint


def test_the_newest_checkpoints_and_the_best_are_kept(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train(dataclasses.replace(BASE, checkpoint_every=1, run_dir=str(run_dir)))
    # Iteration 6 is due and is the last one. It is saved once.
    assert [load_checkpoint(run_dir / name)["iteration"] for name in (NAME, BEFORE)] == [6, 5]
    assert {path.name for path in run_dir.glob("checkpoint*")} == {NAME, BEFORE, BEST}
    returns = [float(row["return_mean_100"]) for row in csv_rows(run_dir / "metrics.csv")]
    best = load_checkpoint(run_dir / BEST)
    assert best["iteration"] == 1 + int(np.nanargmax(returns))
    assert best["best_value"] == pytest.approx(np.nanmax(returns), rel=1e-6)


@pytest.mark.parametrize(
    ("fields", "callback", "best"),
    [
        ({}, None, 41),
        ({"stop_when": ("iteration>=16",)}, None, 16),
        ({"stop_at_iteration": 16}, None, 15),
        ({}, lambda row: row["iteration"] == 16 and os.kill(os.getpid(), signal.SIGTERM), 15),
        ({"best_by": "eval/episodes", "eval_every": 15}, lambda row: row["iteration"] == 16, 16),
    ],
)
def test_the_end_of_a_run_is_compared_but_not_a_pause(
    fields: dict[str, Any], callback: Callable[[Any], bool] | None, best: int, tmp_path: Path
) -> None:
    """Of 41 iterations, every third one is compared."""
    config = dataclasses.replace(BASE, total_steps=4 * 32 * 41, best_by="env_steps")
    train(dataclasses.replace(config, **fields, run_dir=str(tmp_path / "run")), callback=callback)
    assert load_checkpoint(tmp_path / "run" / BEST)["iteration"] == best


@pytest.mark.parametrize("values", [(2.0, 1.0), (2.0, None)])
def test_the_best_checkpoint_has_the_value_of_its_own_evaluation(
    values: tuple[float, float | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One evaluation is of iteration 2, the other one of the end. In the end, perhaps no episode has the key."""

    def evaluate(session: Session) -> dict[str, float]:
        value = values[session.state.iteration == 3]
        return {"eval/episodes": 1} | ({} if value is None else {"eval/info/is_success": value})

    monkeypatch.setattr(Session, "evaluate", evaluate)
    config = dataclasses.replace(BASE, best_by="eval/info/is_success", eval_every=2, info_keys=("is_success",))
    train(dataclasses.replace(config, run_dir=str(tmp_path / "run")), callback=lambda row: row["iteration"] == 3)
    best = load_checkpoint(tmp_path / "run" / BEST)
    assert (best["iteration"], best["best_value"]) == (2, 2.0)


def test_the_rows_of_metrics_reach_the_disk_before_the_checkpoint_that_needs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = []

    def synced(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        events.append((path.name, len(csv_rows(path)) if path.name == "metrics.csv" else None))

    monkeypatch.setattr(os, "fsync", synced)
    train(dataclasses.replace(BASE, stop_at_iteration=2, checkpoint_every=1, run_dir=str(tmp_path / "run")))
    rows = ((("metrics.csv", iteration), ("checkpoint.pt.partial", None)) for iteration in range(3))
    names = ("metrics.csv", "checkpoint.pt.partial")
    found = itertools.groupby(event for event in events if event[0] in names)
    assert [event for event, _ in found] == [*itertools.chain(*rows)]
    assert ("config.json.partial", None) in events


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 6 iterations with the checkpoints of 2, 4, 5, and 6. Only --keep-every makes those of 2 and 4 due."""
    run_dir = tmp_path_factory.mktemp("kept") / "run"
    train(dataclasses.replace(BASE, stop_at_iteration=5, keep_every=2, run_dir=str(run_dir)))
    resume(run_dir)
    return run_dir


def test_every_nth_checkpoint_is_kept_for_good(kept: Path) -> None:
    names = {path.name for path in kept.glob("checkpoint*.pt")}
    assert names == {NAME, BEFORE, BEST, kept_name(2), kept_name(4), kept_name(6)}
    for iteration in (2, 4, 6):
        assert load_checkpoint(kept / kept_name(iteration))["iteration"] == iteration


def test_a_checkpoint_is_due_ten_minutes_after_the_last_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock = SimpleNamespace(monotonic=lambda: 1000.0)
    monkeypatch.setattr("shmppo.storage.checkpoint.time", clock)
    schedule = CheckpointSchedule(BASE, tmp_path, 0)
    schedule.save({"iteration": 1}, best=False)
    for seconds, due in ((599, False), (600, True)):
        clock.monotonic = lambda seconds=seconds: 1000.0 + seconds
        assert schedule.is_due(7) is due


def test_a_checkpoint_is_selected_by_name_iteration_or_path(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    best = load_checkpoint(kept / BEST)["iteration"]
    monkeypatch.chdir(kept.parent)
    choices = {"last": 6, "best": best, 2: 2, "4": 4, 5: 5, 6: 6, kept_name(2): 2, "run/checkpoint-1.pt": 5}
    for which, iteration in choices.items():
        assert load_selected_checkpoint(kept, which)["iteration"] == iteration, which
    assert load_selected_checkpoint(kept, kept / kept_name(4))["iteration"] == 4
    assert load_policy(kept, checkpoint=4).iteration == 4


def test_a_checkpoint_that_was_not_kept_is_refused_with_those_that_were(kept: Path, tmp_path: Path) -> None:
    kept = Path(shutil.copytree(kept, tmp_path / "run"))
    (kept / BEST).unlink()
    (kept / BEFORE).write_bytes(b"torn")
    messages = {
        3: f"^{kept} has kept no checkpoint of iteration 3, only of 2, 4, 6; choose one of them, or train with --keep",
        "best": "has no best checkpoint, because the metric of --best-by had no value or was not compared yet; use",
        "newest": "--checkpoint newest is not a file; name last, best, an iteration, or a checkpoint file$",
        BEFORE: "is damaged or not a checkpoint",
    }
    for which, message in messages.items():
        with pytest.raises(ConfigError, match=message):
            load_selected_checkpoint(kept, which)


def test_a_directory_without_a_checkpoint_is_described(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.json").touch()
    (tmp_path / "file").touch()
    messages = {
        "none": "does not exist; name the directory of a run",
        "file": "contains no checkpoint; name the directory of a run",
        "empty": "contains no checkpoint; name the directory of a run",
        "begun": "contains no checkpoint; name the directory of a run",
    }
    for name, message in messages.items():
        for which in ("last", "best", 3):
            with pytest.raises(ConfigError, match=f"^{tmp_path / name} {message}$"):
                load_selected_checkpoint(tmp_path / name, which)


def test_older_checkpoints_are_tried_until_one_is_undamaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = tmp_path / "run"
    whole = train(dataclasses.replace(BASE, checkpoint_every=1, keep_every=1, run_dir=str(run_dir)))
    shutil.copyfile(run_dir / kept_name(5), run_dir / "checkpoint-iteration-000005-old.pt")  # a copy of the user
    names = (NAME, BEFORE, kept_name(6), kept_name(5), kept_name(4))
    for name in names:
        (run_dir / name).write_bytes(b"torn")
    assert load_resumable_checkpoint(run_dir)["iteration"] == 3
    capsys.readouterr()
    assert resume(run_dir)["weights_sha256"] == whole["weights_sha256"]
    reason = f"its SHA-256 differs); the run continues from iteration 3 ({kept_name(3)})"
    assert capsys.readouterr().err.splitlines() == [
        f"warning: {run_dir / name} is damaged or not a checkpoint ({reason}" for name in names
    ]


class Killed(BaseException):
    """Ends a save in the middle, as a signal would."""


@pytest.mark.parametrize("last_step", range(3))
def test_a_save_that_is_killed_hides_no_older_checkpoint(
    last_step: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for iteration in range(1, 5):
        save_checkpoint(tmp_path, {"iteration": iteration})
    replace, steps = os.replace, 0

    def killed(source: Path, target: Path) -> None:
        nonlocal steps
        if steps == last_step:
            raise Killed
        steps += 1
        replace(source, target)

    with monkeypatch.context() as patched:
        patched.setattr("os.replace", killed)
        with contextlib.suppress(Killed):
            save_checkpoint(tmp_path, {"iteration": 5})
    newest = 5 if steps >= 2 else 4
    assert load_checkpoint(tmp_path / NAME)["iteration"] == newest, "there is a complete one at every moment"
    assert load_resumable_checkpoint(tmp_path)["iteration"] == newest


def test_a_missing_newest_checkpoint_is_replaced_by_the_one_before(tmp_path: Path) -> None:
    for iteration in (1, 2, 3):
        save_checkpoint(tmp_path, {"iteration": iteration})
    (tmp_path / NAME).unlink()
    assert load_resumable_checkpoint(tmp_path)["iteration"] == 2
    save_checkpoint(tmp_path, {"iteration": 4}, copies=[kept_name(4)])
    (tmp_path / NAME).write_bytes(b"torn")
    assert load_resumable_checkpoint(tmp_path)["iteration"] == 2
