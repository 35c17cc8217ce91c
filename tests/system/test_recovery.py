"""Killed and stalled workers, stop and resume, damaged checkpoints: the weights are those of an undisturbed run."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from cases import LAST, assert_same_numbers, configuration, undisturbed
from conftest import summary_of, worker_processes
from helpers import Saboteur
from public_helpers import SIX_ITERATIONS, train_in

from shmppo.config.train_config import TrainConfig
from shmppo.config.trust import resume_command
from shmppo.errors import WorkerError
from shmppo.lockstep.mailbox import LearnerMailbox
from shmppo.runs.launch import resume, train
from shmppo.storage.checkpoint import BEFORE, NAME, load_selected_checkpoint, save_checkpoint

BASE = dataclasses.replace(SIX_ITERATIONS, num_envs=6, grad_shards=2, workers=2, total_steps=6 * 32 * 10)


def sharded(run_dir: Path, **changes: Any) -> TrainConfig:
    """The default case, whose workers compute gradients, too."""
    return configuration("lstm", run_dir, learning="sharded", stop_at_iteration=LAST, **changes)


@pytest.mark.parametrize(("at_round", "delay"), [(1, 0.01), (2, 0.0), (7, 0.003), (12, 0.0)])
def test_a_worker_that_is_killed_in_any_phase_changes_no_bit(
    at_round: int, delay: float, shared_directory: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Round 1 is the first COLLECT, 2 … 5 are its update's minibatches, and so on."""
    saboteur = Saboteur(monkeypatch, at_round=at_round, number=signal.SIGKILL, delay=delay)
    summary = train(sharded(tmp_path / "run"))
    assert saboteur.hit
    assert (summary["worker_restarts"], summary["exact"]) == (1, True)
    assert_same_numbers(tmp_path / "run", undisturbed("lstm", shared_directory))


def test_a_stalled_worker_is_replaced_and_killed_so_that_it_cannot_write_again(
    shared_directory: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    saboteur = Saboteur(monkeypatch, at_round=6, number=signal.SIGSTOP, delay=0.0)
    summary = train(sharded(tmp_path / "run", worker_timeout=1.0))
    with pytest.raises(ProcessLookupError):
        os.kill(saboteur.hit, 0)
    assert summary["worker_restarts"] == 1
    assert_same_numbers(tmp_path / "run", undisturbed("lstm", shared_directory))


def test_a_worker_that_dies_again_and_again_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match=r"worker 0 died: killed by signal 9, as when memory runs out") as caught:
        train_in(tmp_path / "run", BASE, workers=1, callback=lambda row: worker_processes()[0].kill())
    summary = summary_of(tmp_path / "run")
    assert (summary["error"], summary["worker_restarts"]) == (str(caught.value), 3)
    assert caught.value.hints == [f"To continue from the last checkpoint: {resume_command(tmp_path / 'run')}"]


def test_a_worker_that_dies_in_an_optimizer_step_ends_the_run_which_can_be_resumed(
    shared_directory: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The step of its part cannot be repeated."""
    monkeypatch.setattr("shmppo.lockstep.share.MIN_DIVIDED_STEP", 0)
    monkeypatch.setattr(LearnerMailbox, "has_begun", lambda *_: True)
    saboteur = Saboteur(monkeypatch, at_round=5, number=signal.SIGKILL, steps=True)
    with pytest.raises(WorkerError, match=r"worker \d died: killed by signal 9"):
        train(sharded(tmp_path / "run"))
    assert saboteur.hit
    assert summary_of(tmp_path / "run")["weights_sha256"] is None
    resume(tmp_path / "run", stop_at_iteration=LAST)
    assert_same_numbers(tmp_path / "run", undisturbed("lstm", shared_directory))


def test_a_worker_that_dies_before_its_part_of_an_optimizer_step_is_replaced(
    shared_directory: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("shmppo.lockstep.share.MIN_DIVIDED_STEP", 0)
    saboteur = Saboteur(monkeypatch, at_round=5, number=signal.SIGKILL, steps=True)
    summary = train(sharded(tmp_path / "run"))
    assert saboteur.hit
    assert (summary["worker_restarts"], summary["exact"]) == (1, True)
    assert_same_numbers(tmp_path / "run", undisturbed("lstm", shared_directory))


def test_resume_drops_the_rows_of_metrics_after_the_checkpoint(shared_directory: Path, tmp_path: Path) -> None:
    """As after a SIGKILL between two checkpoints: the lost iterations are repeated, and their rows written again."""
    run_dir = tmp_path / "run"
    train(configuration("lstm", run_dir, workers=0, stop_at_iteration=4, checkpoint_every=3))
    os.replace(run_dir / BEFORE, run_dir / NAME)  # iteration 3; the rows go up to 4
    resume(run_dir, stop_at_iteration=LAST)
    assert_same_numbers(run_dir, undisturbed("lstm", shared_directory))


@pytest.mark.slow(reason="about 25 s")
def test_a_replay_may_take_longer_than_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replay of 64 steps takes 6.4 s."""
    sleeping = {"env": "environments:Sleeping", "env_kwargs": {"seconds": 0.1}, "num_envs": 1, "workers": 1}
    train_in(tmp_path / "r", BASE, **sleeping, stop_at_iteration=2)
    monkeypatch.setattr("shmppo.lockstep.worker_processes.MIN_START_SECONDS", 5.0)
    summary = resume(tmp_path / "r", trust=["environments"], worker_timeout=5.0, stop_at_iteration=3)
    assert (summary["worker_restarts"], summary["exact"]) == (0, True)


def test_an_environment_that_cannot_be_replayed_makes_the_run_inexact_permanently(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    assert train_in(run_dir, BASE, env="environments:Unrepeatable-v0", stop_at_iteration=3)["exact"]
    summary = resume(run_dir, stop_at_iteration=5)
    assert not summary["exact"]
    assert "environment 0: its episode could not be replayed and was restarted" in summary["inexact_reasons"]
    assert len(load_selected_checkpoint(run_dir)["inexact_reasons"]) == 6
    assert not resume(run_dir, stop_at_iteration=6)["exact"]


def test_another_version_of_what_computes_makes_a_resumed_run_inexact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernels compute this run, so the version of torch does not matter, nor on which of their processors it is."""
    monkeypatch.delitem(sys.modules, "mujoco", raising=False)  # other tests may have imported it
    run_dir = tmp_path / "run"
    train_in(run_dir, BASE, workers=0, stop_at_iteration=1)
    state = load_selected_checkpoint(run_dir)
    assert "torch" not in state["fingerprint"]
    state["fingerprint"] |= {"processor": "arm64", "mujoco": "1.0"}  # which this environment does not use
    save_checkpoint(run_dir, state)
    assert resume(run_dir, stop_at_iteration=2)["exact"]
    state = load_selected_checkpoint(run_dir)
    state["fingerprint"]["numpy"] = "1.0"
    save_checkpoint(run_dir, state)
    summary = resume(run_dir, stop_at_iteration=3)
    assert summary["inexact_reasons"] == [f"resumed with numpy {metadata.version('numpy')}, started with 1.0"]


@pytest.mark.long
def test_other_vector_instructions_make_a_resumed_run_inexact_if_torch_computes(tmp_path: Path) -> None:
    """Virtual machines may hide instructions of the same processor. torch then computes other bits."""
    start = "from shmppo import TrainConfig, train"
    for kernel in ("torch", "native"):
        config = dataclasses.replace(BASE, workers=0, stop_at_iteration=1, run_dir=str(tmp_path / kernel))
        start += f"; train(TrainConfig(**{dataclasses.replace(config, kernel=kernel).to_json()!r}))"  # type: ignore[arg-type]
    subprocess.run([sys.executable, "-c", start], env=os.environ | {"ATEN_CPU_CAPABILITY": "default"}, check=True)
    (reason,) = resume(tmp_path / "torch", stop_at_iteration=2)["inexact_reasons"]
    before, after = reason.removeprefix("resumed with processor ").split(", started with ")
    assert after.endswith("DEFAULT)")
    assert before.split(", ")[:2] == after.split(", ")[:2]  # the name, family, and model
    assert resume(tmp_path / "native", stop_at_iteration=2)["exact"]


def test_a_run_in_another_thread_does_not_change_signal_handlers(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    config = dataclasses.replace(BASE, workers=0, stop_at_iteration=1, run_dir=str(tmp_path / "run"))
    results: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: results.append(train(config)))
    thread.start()
    thread.join()
    assert results[0]["iterations"] == 1
    assert signal.getsignal(signal.SIGINT) is before
