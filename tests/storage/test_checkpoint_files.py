"""Checkpoint files: which are kept, selected, and refused, and what a killed save or a failed run leaves."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from conftest import summary_of
from networks import Leaky
from public_helpers import SIX_ITERATIONS as BASE
from public_helpers import csv_rows, train_in

from shmppo import load_policy
from shmppo.errors import ConfigError, EnvError, TrainingError
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
from shmppo.storage.checkpoint_file import FORMAT, load_checkpoint, write_checkpoint


def test_the_newest_checkpoints_and_the_best_are_kept(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train_in(run_dir, BASE, checkpoint_every=1)
    # Iteration 6 is due and is the last one. It is saved once.
    assert [load_checkpoint(run_dir / name)["iteration"] for name in (NAME, BEFORE)] == [6, 5]
    assert {path.name for path in run_dir.glob("checkpoint*")} == {NAME, BEFORE, BEST}
    returns = [float(row["return_mean_100"]) for row in csv_rows(run_dir / "metrics.csv")]
    best = load_checkpoint(run_dir / BEST)
    assert best["iteration"] == 1 + int(np.nanargmax(returns))
    assert best["best_value"] == pytest.approx(np.nanmax(returns), rel=1e-6)


UNCHANGED = {"learning_rate": 1e-12, "normalize_obs": False}  # so the evaluations of a run have equal returns


@pytest.mark.parametrize(
    ("fields", "callback", "best"),
    [
        ({}, None, 41),
        ({"stop_when": ("iteration>=16",)}, None, 16),
        ({"stop_at_iteration": 16}, None, 15),
        ({}, lambda row: row["iteration"] == 16 and os.kill(os.getpid(), signal.SIGTERM), 15),
        (UNCHANGED | {"best_by": "eval/episodes", "eval_every": 15}, lambda row: row["iteration"] == 16, 16),
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
    train_in(tmp_path / "run", config, callback=lambda row: row["iteration"] == 3)
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
    train_in(tmp_path / "run", BASE, stop_at_iteration=2, checkpoint_every=1)
    rows = ((("metrics.csv", iteration), ("checkpoint.pt.partial", None)) for iteration in range(3))
    names = ("metrics.csv", "checkpoint.pt.partial")
    found = itertools.groupby(event for event in events if event[0] in names)
    assert [event for event, _ in found] == [*itertools.chain(*rows)]
    assert ("config.json.partial", None) in events


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 6 iterations with the checkpoints of 2, 4, 5, and 6. Only --keep-every makes those of 2 and 4 due."""
    run_dir = tmp_path_factory.mktemp("kept") / "run"
    train_in(run_dir, BASE, stop_at_iteration=5, keep_every=2)
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
    whole = train_in(run_dir, BASE, checkpoint_every=1, keep_every=1)
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


def test_a_checkpoint_of_other_spaces_is_refused_with_the_difference(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train_in(run_dir, BASE, stop_at_iteration=1)
    state = load_checkpoint(run_dir / NAME)

    def in_environment(env: str) -> None:
        """Change the environment of the checkpoint, as a new version of the environment would."""
        state["config"] = json.dumps(json.loads(state["config"]) | {"env": env})
        write_checkpoint(run_dir / NAME, state)

    in_environment("Pendulum-v1")
    with pytest.raises(ConfigError, match=r"carry obs has the shape \(4, 4\), but \(4, 3\) is needed; the environ"):
        resume(run_dir)
    in_environment("environments:FourNumbersThreeActions-v0")
    with pytest.raises(ConfigError, match=r"parameter policy_head.bias has the shape \(2,\), but \(3,\) is"):
        resume(run_dir, trust=["environments"])


def test_a_checkpoint_of_another_format_is_refused_in_one_sentence(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train_in(run_dir, BASE, stop_at_iteration=1)
    state = load_checkpoint(run_dir / NAME)
    for name in (NAME, BEFORE):
        write_checkpoint(run_dir / name, state | {"format": FORMAT + 1, "fingerprint": {"shmppo": "9.9"}})
    message = (
        rf"^{run_dir / NAME} has checkpoint format {FORMAT + 1}, but this version reads format {FORMAT}; "
        r"use the version of shmppo that wrote it \(9\.9\)"
    )
    for use in (resume, load_policy):
        with pytest.raises(ConfigError, match=message):
            use(run_dir)


class Breaks(Leaky):
    """Its features are NaN from its `left`-th pass with gradients on. None: never."""

    left: ClassVar[int | None] = None

    def forward(self, obs: Any, first: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features, state = super().forward(obs, first, state)
        if Breaks.left is not None and torch.is_grad_enabled():
            Breaks.left -= 1
            features = features if Breaks.left > 0 else features * torch.nan
        return features, state


def breaks(shapes: Any, config: Any) -> torch.nn.Module:
    return Breaks(shapes)


def test_a_run_can_resume_after_a_minibatch_that_is_not_finite(tmp_path: Path) -> None:
    def break_in_the_third_minibatch(row: dict[str, float]) -> None:
        if row["iteration"] == 2:
            Breaks.left = 3

    run_dir = tmp_path / "run"
    config = dataclasses.replace(BASE, network="test_checkpoint_files:breaks", grad_shards=1, run_dir=str(run_dir))
    try:
        with pytest.raises(
            TrainingError,
            match=r"minibatch 0 of epoch 1: the loss is not finite .*nan.*; this minibatch has not changed",
        ):
            train(config, callback=break_in_the_third_minibatch)
    finally:
        Breaks.left = None
    summary = summary_of(run_dir)
    assert (summary["iterations"], summary["weights_sha256"]) == (2, None)
    assert summary["error"].startswith("minibatch 0 of epoch 1: the loss is not finite")
    straight = train_in(tmp_path / "straight", config)
    assert resume(run_dir, trust=["test_checkpoint_files"])["weights_sha256"] == straight["weights_sha256"]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_an_environment_ends_the_run_and_saves_the_iteration_before(workers: int, tmp_path: Path) -> None:
    """Environment 4, which the second worker has, raises in the second rollout, at the fifth step of an episode."""
    env, run_dir = "faulty_environments:FaultyStream-v0", tmp_path / "run"
    with pytest.raises(
        EnvError, match=r"^environment 4: step raised ValueError\('the simulation exploded'\)"
    ) as caught:
        train_in(run_dir, BASE, env=env, num_envs=6, workers=workers)
    assert load_selected_checkpoint(run_dir)["iteration"] == 1
    assert len(json.loads((run_dir / "failed_episode.json").read_text())["actions"]) == 5
    summary = summary_of(run_dir)
    assert (summary["error"], summary["iterations"], summary["stop_reason"]) == (str(caught.value), 1, "error")
