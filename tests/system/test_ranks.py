"""Several ranks: the same weights on all of them and on one rank with all environments; stop, resume, and failures."""

from __future__ import annotations

import re
import shutil
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from conftest import summary_of
from public_helpers import csv_rows, train_in
from rank_processes import directories, finish, free_port, output_of, start, start_alone, wait_for_training

from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError, RankError
from shmppo.parallel.rendezvous import connect
from shmppo.runs.launch import resume
from shmppo.storage.checkpoint import BEFORE, BEST, NAME, kept_name, load_selected_checkpoint
from shmppo.storage.checkpoint_file import load_checkpoint, write_checkpoint

SMALL = TrainConfig(
    env="CartPole-v1", num_envs=8, rollout_steps=16, seq_len=8, minibatches=1, epochs=2,
    hidden_size=8, encoder_sizes=(8,), workers=0, quiet=True, total_steps=128 * 8,
)  # fmt: skip
STEPS = ("--total-steps", 128 * 8)
pytestmark = pytest.mark.usefixtures("environments_importable")


@pytest.fixture(autouse=True)
def _stacks_on_abort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONFAULTHANDLER", "1")


def parameters(checkpoint: dict[str, Any]) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in checkpoint["learner"]["model"].values()])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks that have trained for 8 iterations and kept every checkpoint."""
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    finish(start(run_dir, *STEPS, "--checkpoint-every", 1, "--keep-every", 1))
    return run_dir


@pytest.mark.slow(reason="about 3 s")
def test_two_ranks_learn_the_same_as_one_rank_with_all_environments(undisturbed: Path, tmp_path: Path) -> None:
    """Seeds, minibatches, and moments are the same. So after one update the weights differ only by rounding."""
    train_in(tmp_path / "one", SMALL, stop_at_iteration=1)
    one = load_selected_checkpoint(tmp_path / "one")
    process = start(tmp_path / "two", *STEPS, "--minibatches", 1, "--stop-at-iteration", 1)
    output = output_of(process)
    assert process.returncode == 0, output
    two, other = (load_selected_checkpoint(path) for path in directories(tmp_path / "two"))
    start_of_all = load_checkpoint(tmp_path / "one" / BEFORE)
    ours, theirs, before = (parameters(state) for state in (two, one, start_of_all))
    assert (theirs - before).abs().max() > 1e-3
    assert (ours - theirs).abs().max() < 1e-6
    assert str(two["episodes"]) == str(one["episodes"])
    for moments in ("obs_moments", "return_moments"):
        for name, tensor in two["learner"][moments].items():
            assert torch.equal(tensor, one["learner"][moments][name]), (moments, name)
    # Environment n of rank 1 is environment 4 + n of the single rank.
    assert torch.equal(
        torch.cat([two["carry"]["episode_hash"], other["carry"]["episode_hash"]]), one["carry"]["episode_hash"]
    )


def test_all_ranks_end_with_the_same_weights_and_counters(undisturbed: Path) -> None:
    first, second = (summary_of(path) for path in directories(undisturbed))
    for name in ("weights_sha256", "env_steps", "episodes", "return_mean_100", "iterations"):
        assert first[name] == second[name], name
    assert (first["ranks"], first["num_envs"], first["env_steps"], first["iterations"]) == (2, 4, 1024, 8)
    assert (first["exact"], second["exact"]) in ((True, True), (None, True))  # rank 0 may end before its check
    for path in directories(undisturbed):
        row = csv_rows(path / "metrics.csv")[0]
        assert float(row["allreduce_seconds"]) < float(row["wall_seconds"])


@pytest.mark.slow(reason="about 15 s")
def test_ranks_that_do_not_share_memory_compute_the_same(undisturbed: Path, tmp_path: Path) -> None:
    """Without torchrun, ranks do not know that they are on one machine. They use torch.distributed for all data."""
    port = free_port()
    ranks = [start_alone(rank, tmp_path / "run", port, *STEPS) for rank in range(2)]
    errors = [rank.communicate(timeout=200)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], errors
    assert summary_of(tmp_path / "run")["weights_sha256"] == summary_of(undisturbed)["weights_sha256"]


@pytest.mark.slow(reason="about 15 s")
def test_resume_continues_from_the_newest_iteration_that_all_ranks_have(undisturbed: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(undisturbed, run_dir)
    for path, last in zip(directories(run_dir), (5, 3), strict=True):
        kept = sorted(
            p for p in path.glob("checkpoint*.pt") if p.name != BEST and load_checkpoint(p)["iteration"] <= last
        )
        states = sorted((load_checkpoint(p) for p in kept), key=lambda state: -state["iteration"])
        for p in path.glob("checkpoint*.pt"):
            p.unlink()
        for age, state in enumerate(states):
            write_checkpoint(path / (NAME if age == 0 else kept_name(state["iteration"])), state)
    finish(start(run_dir, "--resume", run_dir, "--workers", 1))
    for path in directories(run_dir):
        assert summary_of(path)["weights_sha256"] == summary_of(undisturbed)["weights_sha256"]
        assert "resumed at iteration 3" in (path / "run.log").read_text()
        assert [int(row["iteration"]) for row in csv_rows(path / "metrics.csv")] == list(range(1, 9))


def test_a_run_of_two_ranks_cannot_be_resumed_by_one(undisturbed: Path) -> None:
    with pytest.raises(ConfigError, match="was started with 2 ranks, not 1; start as many again"):
        resume(undisturbed, total_steps=2048)


@pytest.mark.slow(reason="about 15 s")
def test_if_a_rank_is_killed_the_other_one_ends_and_names_it(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    process = start(run_dir, "--total-steps", 10**8, "--workers", 1)
    _, second = wait_for_training(process, run_dir)
    everyone = process.children(recursive=True)
    second.kill()
    output = output_of(process)
    assert process.returncode == 1
    assert re.search(r"error: rank 1 of 2 did not answer \(.*\); resume from the last checkpoint with --resume", output)
    assert "rank 1 of 2 did not answer" in (run_dir / "run.log").read_text()
    assert not psutil.wait_procs(everyone, timeout=60)[1]


@pytest.mark.slow(reason="about 15 s")
def test_the_reason_of_a_failed_rank_is_shown_by_the_other_one(tmp_path: Path) -> None:
    """Environment 0 of rank 1 raises at its 40th step. The error of rank 0 contains the reason."""
    run_dir = tmp_path / "run"
    process = start(run_dir, "--total-steps", 10**6, env="faulty_environments:FaultyStream-v0")
    output = output_of(process)
    assert process.returncode == 1
    assert re.search(
        r"error: rank 1 failed: environment 0: step raised ValueError\('the simulation exploded'\)", output
    )
    assert (run_dir / "rank-1" / "failed_episode.json").is_file()
    assert not (run_dir / "failed_episode.json").exists()


@pytest.mark.slow(reason="about 15 s per signal")
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_to_one_rank_saves_and_ends_all_ranks(number: int, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    process = start(run_dir, "--total-steps", 10**8)
    _, second = wait_for_training(process, run_dir)
    second.send_signal(number)
    finish(process)
    first, second_summary = (summary_of(path) for path in directories(run_dir))
    assert first["stop_reason"] == "signal"
    assert first["iterations"] == second_summary["iterations"]
    assert first["weights_sha256"] == second_summary["weights_sha256"]
    for path in directories(run_dir):
        assert load_selected_checkpoint(path)["iteration"] == first["iterations"]


@pytest.mark.slow(reason="about 30 s")
def test_ranks_that_torchrun_restarts_resume_the_run(undisturbed: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    flags, again = (*STEPS, "--checkpoint-every", 1), ("--max-restarts", "1")
    process = start(run_dir, *flags, env="environments:SlowCartPole-v0", torchrun=again)
    _, second = wait_for_training(process, run_dir, rows=2)
    second.kill()
    finish(process)
    assert summary_of(run_dir)["weights_sha256"] == summary_of(undisturbed)["weights_sha256"]


@pytest.mark.slow(reason="about 10 s")
def test_different_configurations_are_refused_in_one_sentence(tmp_path: Path) -> None:
    port = free_port()
    processes = [start_alone(rank, tmp_path / "r", port, "--seed", rank) for rank in range(2)]
    errors = [process.communicate(timeout=200)[1] for process in processes]
    assert [process.returncode for process in processes] == [2, 2]
    assert errors == ["error: rank 1 has --seed 1, but rank 0 has --seed 0; start all ranks with the same value\n", ""]
    assert not (tmp_path / "r").exists()


def test_incomplete_variables_of_torchrun_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with (
        pytest.raises(RankError, match=r"environment variable MASTER_ADDR expected, but not set.*; start all ranks"),
        connect(1),
    ):
        pass
