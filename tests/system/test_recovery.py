"""Killed and stalled workers, stop and resume, damaged checkpoints: the weights are those of an undisturbed run."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import summary_of
from helpers import Saboteur, long_after
from public_helpers import csv_rows

from shmppo.config.train_config import TrainConfig
from shmppo.config.trust import resume_command
from shmppo.errors import ConfigError, WorkerError
from shmppo.parallel.mailbox import StepOptimizer
from shmppo.runs.trainer import resume, train
from shmppo.sampling.worker_pool import WorkerPool
from shmppo.sampling.worker_process import WorkerProcess
from shmppo.storage.checkpoint import BEFORE, NAME, load_selected_checkpoint, save_checkpoint
from shmppo.storage.checkpoint_file import write_checkpoint

BASE = TrainConfig(
    env="CartPole-v1", num_envs=6, rollout_steps=32, minibatches=2, epochs=2, hidden_size=16, encoder_sizes=(16,),
    grad_shards=2, workers=2, quiet=True, total_steps=6 * 32 * 10, seq_len=8,
)  # fmt: skip
Undisturbed = Callable[[str], str]
CARTPOLE = Path(__file__).parents[2] / "examples" / "trained" / "cartpole"
CASES = {
    "cartpole-sharded": dataclasses.replace(BASE, learning="sharded"),
    "pendulum-gru": dataclasses.replace(BASE, env="Pendulum-v1", hide_obs=(2,), core="gru", kernel="torch"),
    "cartpole-teacher": dataclasses.replace(BASE, objective="distill", teacher=str(CARTPOLE)),
    "cartpole-central": dataclasses.replace(BASE, learning="central"),
    "pendulum-beta": dataclasses.replace(BASE, env="Pendulum-v1", distribution="beta"),
    "halfcheetah": dataclasses.replace(BASE, env="HalfCheetah-v5"),
    "auxiliary": dataclasses.replace(BASE, hide_obs=(1, 3), auxiliary="networks:Predict", learning="sharded"),
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """The hash of the weights of a case without a disturbance. A case is trained when a test needs it."""
    root = tmp_path_factory.mktemp("undisturbed")

    @cache
    def weights(case: str) -> str:
        config = dataclasses.replace(CASES[case], workers=0, learning="auto", run_dir=str(root / case))
        return str(train(config)["weights_sha256"])

    return weights


@pytest.mark.parametrize("delay", long_after(1, [0.003, 0.0]))
@pytest.mark.parametrize("at_round", [1, 2, 7, 8, 12])
def test_a_killed_worker_changes_no_bit(
    at_round: int, delay: float, undisturbed: Undisturbed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Sharded: round 1 is the first COLLECT, 2 … 5 are its update's minibatches, and so on.
    saboteur = Saboteur(monkeypatch, at_round=at_round, number=signal.SIGKILL, delay=delay)
    summary = train(dataclasses.replace(CASES["cartpole-sharded"], run_dir=str(tmp_path / "run")))
    assert saboteur.hit
    assert summary["worker_restarts"] == 1
    assert summary["exact"]
    assert summary["weights_sha256"] == undisturbed("cartpole-sharded")


@pytest.mark.parametrize(
    "case", ["cartpole-central", "cartpole-teacher", "halfcheetah", "pendulum-gru", "pendulum-beta", "auxiliary"]
)
def test_a_killed_worker_changes_no_bit_in_other_environments_and_learning_modes(
    case: str, undisturbed: Undisturbed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Saboteur(monkeypatch, at_round=6, number=signal.SIGSEGV, delay=0.002)
    summary = train(dataclasses.replace(CASES[case], run_dir=str(tmp_path / "run")))
    assert summary["worker_restarts"] == 1
    assert summary["weights_sha256"] == undisturbed(case)


def test_a_stalled_worker_is_replaced_and_killed_so_that_it_cannot_write_again(
    undisturbed: Undisturbed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    saboteur = Saboteur(monkeypatch, at_round=6, number=signal.SIGSTOP, delay=0.0)
    config = dataclasses.replace(CASES["cartpole-sharded"], worker_timeout=2.0, run_dir=str(tmp_path / "run"))
    summary = train(config)
    with pytest.raises(ProcessLookupError):
        os.kill(saboteur.hit, 0)
    assert summary["worker_restarts"] == 1
    assert summary["weights_sha256"] == undisturbed("cartpole-sharded")


def test_a_worker_that_dies_again_and_again_ends_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    original = WorkerPool._send

    def kill_always(pool: WorkerPool, workers: list[Any], command: Any) -> None:
        os.kill(workers[0].process.pid, signal.SIGKILL)
        original(pool, workers, command)

    monkeypatch.setattr(WorkerPool, "_send", kill_always)
    with pytest.raises(WorkerError, match=r"worker 0 died: killed by signal 9, as when memory runs out") as caught:
        train(dataclasses.replace(BASE, run_dir=str(tmp_path / "run")))
    summary = summary_of(tmp_path / "run")
    assert (summary["error"], summary["worker_restarts"]) == (str(caught.value), 3)
    assert caught.value.hints == [f"To continue from the last checkpoint: {resume_command(tmp_path / 'run')}"]


def test_a_worker_that_dies_in_an_optimizer_step_ends_the_run_which_can_be_resumed(
    undisturbed: Undisturbed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The step of its part cannot be repeated."""
    original, steps = WorkerPool._send, 0

    def kill(pool: WorkerPool, workers: list[Any], command: Any) -> None:
        nonlocal steps
        is_step = bool(workers) and isinstance(command, StepOptimizer)
        steps += is_step
        kills = is_step and steps == 5
        for number in (signal.SIGSTOP, signal.SIGKILL):
            if kills:
                os.kill(workers[-1].process.pid, number)
            if number == signal.SIGSTOP:
                original(pool, workers, command)

    monkeypatch.setattr("shmppo.sampling.worker_pool.MIN_DIVIDED_STEP", 0)
    with monkeypatch.context() as patched:
        patched.setattr(WorkerPool, "_send", kill)
        with pytest.raises(WorkerError, match=r"worker \d died: killed by signal 9"):
            train(dataclasses.replace(CASES["cartpole-sharded"], run_dir=str(tmp_path / "run")))
    assert summary_of(tmp_path / "run")["weights_sha256"] is None
    assert resume(tmp_path / "run")["weights_sha256"] == undisturbed("cartpole-sharded")


@pytest.mark.parametrize("case", long_after(3, CASES))
@pytest.mark.parametrize(
    ("stop", "workers"), [(5, 3), *(pytest.param(*v, marks=pytest.mark.long) for v in [(1, 0), (9, 1)])]
)
def test_stop_and_resume_changes_no_bit(
    case: str, stop: int, workers: int, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    first = train(dataclasses.replace(CASES[case], stop_at_iteration=stop, run_dir=str(run_dir)))
    assert (first["iterations"], first["stop_reason"]) == (stop, "finished")
    summary = resume(run_dir, workers=workers, learning="auto")
    assert summary["iterations"] == 10
    assert summary["exact"]
    assert summary["weights_sha256"] == undisturbed(case)
    assert [int(row["iteration"]) for row in csv_rows(run_dir / "metrics.csv")] == list(range(1, 11))


def test_resume_drops_the_rows_of_metrics_after_the_checkpoint(undisturbed: Undisturbed, tmp_path: Path) -> None:
    """As after a SIGKILL between two checkpoints: the lost iterations are repeated, and their rows written again."""
    run_dir = tmp_path / "run"
    train(dataclasses.replace(CASES["cartpole-central"], stop_at_iteration=9, checkpoint_every=4, run_dir=str(run_dir)))
    os.replace(run_dir / BEFORE, run_dir / NAME)  # iteration 8; the rows go up to 9
    summary = resume(run_dir)
    assert summary["weights_sha256"] == undisturbed("cartpole-central")
    assert [int(row["iteration"]) for row in csv_rows(run_dir / "metrics.csv")] == list(range(1, 11))


def test_resume_is_refused_in_one_sentence(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with pytest.raises(ConfigError, match=f"^{run_dir} does not exist; name the directory of a run$"):
        resume(run_dir)
    train(dataclasses.replace(BASE, workers=0, stop_at_iteration=2, total_steps=192 * 2, run_dir=str(run_dir)))
    with pytest.raises(ConfigError, match=r"has finished 2 iterations, 2 were asked for; .* above 384"):
        resume(run_dir)
    (run_dir / NAME).write_bytes(b"")
    (run_dir / BEFORE).unlink(missing_ok=True)
    with pytest.raises(ConfigError, match="is damaged or not a checkpoint"):
        resume(run_dir)


def test_more_steps_than_the_annealing_need_anneal_steps(tmp_path: Path) -> None:
    config = dataclasses.replace(BASE, workers=0, total_steps=192 * 4, run_dir=str(tmp_path / "run"))
    train(config)
    with pytest.raises(ConfigError, match=r"is 0 after 768 steps; to learn from more steps, add --anneal-steps 1152"):
        resume(tmp_path / "run", total_steps=192 * 6)
    longer = resume(tmp_path / "run", total_steps=192 * 6, anneal_steps=192 * 4)
    straight = dataclasses.replace(
        config, total_steps=192 * 6, anneal_steps=192 * 4, run_dir=str(tmp_path / "straight")
    )
    assert longer["weights_sha256"] == train(straight)["weights_sha256"]


@pytest.mark.long
def test_a_replay_may_take_longer_than_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = dataclasses.replace(
        BASE,
        env="environments:Sleeping",
        env_kwargs={"seconds": 0.1},
        num_envs=1,
        workers=1,
        run_dir=str(tmp_path / "r"),
    )
    train(dataclasses.replace(config, stop_at_iteration=2))
    monkeypatch.setattr("shmppo.sampling.worker_pool.MIN_START_SECONDS", 5.0)
    summary = resume(
        tmp_path / "r", trust=["environments"], worker_timeout=5.0, stop_at_iteration=3
    )  # 64 steps to replay take 6.4 s
    assert (summary["worker_restarts"], summary["exact"]) == (0, True)


def test_workers_that_have_started_end_if_another_cannot_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[int] = []
    original = WorkerPool._start

    def second_fails(pool: WorkerPool, index: int) -> WorkerProcess:
        if index == 1:
            raise OSError("no more processes")
        worker = original(pool, index)
        started.append(worker.process.pid)
        return worker

    monkeypatch.setattr(WorkerPool, "_start", second_fails)
    with pytest.raises(OSError, match="no more processes"):
        train(dataclasses.replace(BASE, run_dir=str(tmp_path / "run")))
    assert [psutil.pid_exists(pid) for pid in started] == [False]


def test_an_environment_that_cannot_be_replayed_makes_the_run_inexact_permanently(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    config = dataclasses.replace(BASE, env="environments:Unrepeatable-v0", stop_at_iteration=3, run_dir=str(run_dir))
    assert train(config)["exact"]
    summary = resume(run_dir, stop_at_iteration=5)
    assert not summary["exact"]
    assert "environment 0: its episode could not be replayed and was restarted" in summary["inexact_reasons"]
    assert len(load_selected_checkpoint(run_dir)["inexact_reasons"]) == 6
    assert not resume(run_dir, stop_at_iteration=6)["exact"]


def test_another_build_makes_a_resumed_run_inexact(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train(dataclasses.replace(BASE, workers=0, stop_at_iteration=1, run_dir=str(run_dir)))
    state = load_selected_checkpoint(run_dir)
    state["fingerprint"]["torch"] = "1.0"
    save_checkpoint(run_dir, state)
    summary = resume(run_dir, stop_at_iteration=2)
    assert summary["inexact_reasons"] == [f"resumed with torch {metadata.version('torch')}, started with 1.0"]


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


def test_nothing_in_a_checkpoint_is_executed(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "executed"),)

    write_checkpoint(tmp_path / NAME, {"evil": Evil()})
    with pytest.raises(ConfigError, match="is damaged or not a checkpoint"):
        load_selected_checkpoint(tmp_path)
    assert not (tmp_path / "executed").exists()


def test_a_run_in_another_thread_does_not_change_signal_handlers(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    config = dataclasses.replace(BASE, workers=0, stop_at_iteration=1, run_dir=str(tmp_path / "run"))
    results: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: results.append(train(config)))
    thread.start()
    thread.join()
    assert results[0]["iterations"] == 1
    assert signal.getsignal(signal.SIGINT) is before
