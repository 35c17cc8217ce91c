"""Not a bit lost: killed and stalled workers, stop and resume, torn checkpoints. Every hash is compared."""

from __future__ import annotations

import csv
import dataclasses
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError, WorkerError
from shmppo.runs.checkpoint import FORMAT, NAME, load_newest_checkpoint, older, save_checkpoint
from shmppo.runs.trainer import resume, train
from shmppo.sampling.action_log import ActionLog
from shmppo.sampling.worker_pool import WorkerPool
from shmppo.sampling.worker_process import WorkerProcess

BASE = TrainConfig(
    env="CartPole-v1", num_envs=6, rollout_steps=32, minibatches=2, epochs=2, hidden_size=16, encoder_sizes=(16,),
    grad_shards=2, workers=2, quiet=True, total_steps=6 * 32 * 16, seq_len=8,
)  # fmt: skip
CASES = {
    "cartpole-sharded": dataclasses.replace(BASE, learning="sharded"),
    "cartpole-central": dataclasses.replace(BASE, learning="central"),
    "halfcheetah": dataclasses.replace(BASE, env="HalfCheetah-v5"),
    "pendulum-gru": dataclasses.replace(BASE, env="Pendulum-v1", hide_obs=(2,), core="gru"),
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The hash of each case without faults."""
    root = tmp_path_factory.mktemp("undisturbed")
    return {
        name: train(dataclasses.replace(config, workers=0, learning="auto", run_dir=str(root / name)))["weights_sha256"]
        for name, config in CASES.items()
    }


class Saboteur:
    """Sends a signal to a worker at a given round (a COLLECT or a LEARN command) of a run in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, at_round: int, number: int, delay: float) -> None:
        self.hit = 0
        rounds = 0
        original = WorkerPool._signal

        def signal_and_strike(pool: WorkerPool, workers: list[Any], command: Any) -> None:
            nonlocal rounds
            rounds += bool(workers)
            original(pool, workers, command)
            if rounds == at_round and not self.hit:
                self.hit = workers[-1].process.pid
                time.sleep(delay)
                os.kill(self.hit, number)

        monkeypatch.setattr(WorkerPool, "_signal", signal_and_strike)


@pytest.mark.parametrize("delay", [0.0, 0.003])
@pytest.mark.parametrize("at_round", [1, 2, 7, 8, 12])
def test_a_killed_worker_costs_no_bit(
    at_round: int, delay: float, undisturbed: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Sharded: round 1 is the first COLLECT, 2 … 5 are its update's minibatches, and so on.
    saboteur = Saboteur(monkeypatch, at_round=at_round, number=signal.SIGKILL, delay=delay)
    summary = train(dataclasses.replace(CASES["cartpole-sharded"], run_dir=str(tmp_path / "run")))
    assert saboteur.hit
    assert summary["worker_restarts"] == 1
    assert summary["exact"]
    assert summary["weights_sha256"] == undisturbed["cartpole-sharded"]


@pytest.mark.parametrize("case", ["cartpole-central", "halfcheetah", "pendulum-gru"])
def test_killed_in_other_environments_and_learning_modes(
    case: str, undisturbed: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Saboteur(monkeypatch, at_round=6, number=signal.SIGSEGV, delay=0.002)
    summary = train(dataclasses.replace(CASES[case], run_dir=str(tmp_path / "run")))
    assert summary["worker_restarts"] == 1
    assert summary["weights_sha256"] == undisturbed[case]


def test_a_stalled_worker_is_replaced_and_cannot_write_when_it_wakes(
    undisturbed: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    saboteur = Saboteur(monkeypatch, at_round=6, number=signal.SIGSTOP, delay=0.0)
    config = dataclasses.replace(CASES["cartpole-sharded"], worker_timeout=0.5, run_dir=str(tmp_path / "run"))
    summary = train(config)
    with pytest.raises(ProcessLookupError):
        os.kill(saboteur.hit, 0)
    assert summary["worker_restarts"] == 1
    assert summary["weights_sha256"] == undisturbed["cartpole-sharded"]


def test_a_crash_loop_ends_with_the_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    original = WorkerPool._signal

    def kill_always(pool: WorkerPool, workers: list[Any], command: Any) -> None:
        original(pool, workers, command)
        os.kill(workers[0].process.pid, signal.SIGKILL)

    monkeypatch.setattr(WorkerPool, "_signal", kill_always)
    with pytest.raises(WorkerError, match=r"worker 0 died: killed by signal 9"):
        train(dataclasses.replace(BASE, max_restarts=2, run_dir=str(tmp_path / "run")))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("stop", "workers"), [(1, 0), (5, 3), (15, 1)])
def test_stop_and_resume_costs_no_bit(
    case: str, stop: int, workers: int, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    first = train(dataclasses.replace(CASES[case], stop_at_iteration=stop, run_dir=str(run_dir)))
    assert first["stopped_early"]
    summary = resume(run_dir, workers=workers, learning="auto")
    assert summary["iterations"] == 16
    assert summary["exact"]
    assert summary["weights_sha256"] == undisturbed[case]
    with open(run_dir / "metrics.csv") as file:
        assert [int(row["iteration"]) for row in csv.DictReader(file)] == list(range(1, 17))


def test_resume_goes_back_to_the_checkpoint_and_cuts_the_metrics(undisturbed: dict[str, str], tmp_path: Path) -> None:
    """As after a SIGKILL between two checkpoints: rows of iterations that were lost are written again."""
    run_dir = tmp_path / "run"
    train(dataclasses.replace(CASES["cartpole-central"], stop_at_iteration=9, checkpoint_every=4, run_dir=str(run_dir)))
    os.replace(run_dir / older(1), run_dir / NAME)  # iteration 8; the rows go up to 9
    summary = resume(run_dir)
    assert summary["weights_sha256"] == undisturbed["cartpole-central"]
    with open(run_dir / "metrics.csv") as file:
        assert [int(row["iteration"]) for row in csv.DictReader(file)] == list(range(1, 17))


@pytest.mark.parametrize("damage", ["truncated", "empty", "garbage"])
def test_a_torn_checkpoint_gives_way_to_the_one_before(
    damage: str, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    train(dataclasses.replace(CASES["cartpole-central"], stop_at_iteration=6, checkpoint_every=3, run_dir=str(run_dir)))
    whole = (run_dir / NAME).read_bytes()
    (run_dir / NAME).write_bytes({"truncated": whole[: len(whole) // 2], "empty": b"", "garbage": b"x" * 999}[damage])
    assert resume(run_dir)["weights_sha256"] == undisturbed["cartpole-central"]


def test_resume_refuses_in_one_sentence(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with pytest.raises(ConfigError, match=r"checkpoint\.pt does not exist"):
        resume(run_dir)
    train(dataclasses.replace(BASE, workers=0, stop_at_iteration=2, total_steps=192 * 2, run_dir=str(run_dir)))
    with pytest.raises(ConfigError, match=r"has finished 2 iterations, 2 were asked for; .* above 384"):
        resume(run_dir)
    (run_dir / NAME).write_bytes(b"")
    (run_dir / older(1)).unlink(missing_ok=True)
    with pytest.raises(ConfigError, match="is damaged or not a checkpoint"):
        resume(run_dir)


def test_more_steps_than_first_asked_for_need_a_horizon_of_the_annealing(tmp_path: Path) -> None:
    config = dataclasses.replace(BASE, workers=0, total_steps=192 * 4, run_dir=str(tmp_path / "run"))
    train(config)
    with pytest.raises(ConfigError, match=r"is 0 after 768 steps; to learn from more, add --anneal-steps 1152"):
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
        env="shmppo.testing:Latency",
        env_kwargs={"mean": 0.05},
        num_envs=1,
        workers=1,
        run_dir=str(tmp_path / "r"),
    )
    train(dataclasses.replace(config, stop_at_iteration=2))
    monkeypatch.setattr("shmppo.sampling.worker_pool.START_SECONDS", 2.0)
    summary = resume(tmp_path / "r", worker_timeout=2.0, stop_at_iteration=3)  # 64 steps to replay take 3.2 s
    assert (summary["worker_restarts"], summary["exact"]) == (0, True)


def test_what_a_resumed_run_optimizes_with_is_what_it_was_told(tmp_path: Path) -> None:
    config = dataclasses.replace(BASE, workers=0, optimizer="adamw", stop_at_iteration=2)
    hashes = []
    for decay in (0.0, 0.5):
        train(dataclasses.replace(config, run_dir=str(tmp_path / str(decay))))
        hashes.append(resume(tmp_path / str(decay), weight_decay=decay, stop_at_iteration=4)["weights_sha256"])
    assert hashes[0] != hashes[1]
    with pytest.raises(ConfigError, match="begun with --optimizer adamw, whose state sgd cannot use; go on"):
        resume(tmp_path / "0.0", optimizer="sgd", stop_at_iteration=5)


def test_workers_that_have_started_end_where_another_cannot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[int] = []
    original = WorkerPool._start

    def second_fails(pool: WorkerPool, index: int, *, replay: bool) -> WorkerProcess:
        if index == 1:
            raise OSError("no more processes")
        worker = original(pool, index, replay=replay)
        started.append(worker.process.pid)
        return worker

    monkeypatch.setattr(WorkerPool, "_start", second_fails)
    with pytest.raises(OSError, match="no more processes"):
        train(dataclasses.replace(BASE, run_dir=str(tmp_path / "run")))
    assert [psutil.pid_exists(pid) for pid in started] == [False]


def test_an_environment_that_does_not_replay_makes_the_run_inexact_for_good(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    config = dataclasses.replace(BASE, env="environments:Unrepeatable-v0", stop_at_iteration=3, run_dir=str(run_dir))
    assert train(config)["exact"]
    summary = resume(run_dir, stop_at_iteration=5)
    assert not summary["exact"]
    assert "environment 0: its episode could not be replayed and was restarted" in summary["inexact_reasons"]
    assert len(load_newest_checkpoint(run_dir)["inexact_reasons"]) == 6
    assert not resume(run_dir, stop_at_iteration=6)["exact"]


def test_another_build_makes_a_resumed_run_inexact(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train(dataclasses.replace(BASE, workers=0, stop_at_iteration=1, run_dir=str(run_dir)))
    state = load_newest_checkpoint(run_dir)
    state["fingerprint"]["torch"] = "1.0"
    save_checkpoint(run_dir, state)
    summary = resume(run_dir, stop_at_iteration=2)
    assert summary["inexact_reasons"] == [f"resumed with torch {_torch_version()}, begun with 1.0"]


def _torch_version() -> str:
    from importlib import metadata

    return metadata.version("torch")


def test_nothing_in_a_checkpoint_is_executed(tmp_path: Path) -> None:
    import torch

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "executed"),)

    torch.save({"format": FORMAT, "evil": Evil()}, tmp_path / NAME)
    with pytest.raises(ConfigError, match="is damaged or not a checkpoint"):
        load_newest_checkpoint(tmp_path)
    assert not (tmp_path / "executed").exists()


def test_a_disk_that_is_full_keeps_the_checkpoint_before_and_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    calls = 0
    fsync = os.fsync

    def full(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 4:  # each checkpoint is a file and its directory: that of the start and the first one
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    config = dataclasses.replace(BASE, workers=0, stop_at_iteration=4, checkpoint_every=2, run_dir=str(run_dir))
    assert train(config)["iterations"] == 4
    assert load_newest_checkpoint(run_dir)["iteration"] == 2
    assert "no checkpoint was written, the one before is kept" in (run_dir / "run.log").read_text()


def test_the_action_log_holds_what_came_after_the_last_end() -> None:
    actions = np.arange(2 * 4 * 3, dtype=np.float32).reshape(8, 3, 1)
    log = ActionLog(3, 1, limit=100)
    ended = np.zeros((4, 3), bool)
    ended[1, 1] = ended[3, 2] = True
    log.commit(actions[:4], ended, np.array([0, 1, 1]))
    assert [e.actions[:, 0].tolist() for e in log.episodes(range(3))] == [[0, 3, 6, 9], [7, 10], []]
    log.commit(actions[4:], np.zeros((4, 3), bool), np.array([0, 1, 1]))
    expected = [[0, 3, 6, 9, 12, 15, 18, 21], [7, 10, 13, 16, 19, 22], [14, 17, 20, 23]]
    assert [e.actions[:, 0].tolist() for e in log.episodes(range(3))] == expected
    other = ActionLog(3, 1, limit=100)
    other.load(log.state(), 2)
    assert [e.actions[:, 0].tolist() for e in other.episodes(range(3))] == expected
    assert [e.number for e in other.episodes(range(3))] == [0, 1, 1]
    log.forget(0)
    assert (log.episodes(range(1))[0].number, len(log.episodes(range(1))[0].actions)) == (1, 0)


def test_a_run_in_another_thread_leaves_signal_handlers_alone(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    config = dataclasses.replace(BASE, workers=0, stop_at_iteration=1, run_dir=str(tmp_path / "run"))
    results: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: results.append(train(config)))
    thread.start()
    thread.join()
    assert results[0]["iterations"] == 1
    assert signal.getsignal(signal.SIGINT) is before
