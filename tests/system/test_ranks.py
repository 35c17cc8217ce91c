"""Several ranks: the same weights on all of them and on one rank with all environments; stop, resume, and failures."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from conftest import summary_of
from public_helpers import csv_rows
from rank_processes import FLAGS, directories, free_port, output_of, start, wait_for_training

from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError, RankError
from shmppo.parallel.process_group import ProcessGroup
from shmppo.parallel.rendezvous import connect
from shmppo.runs.trainer import resume, train
from shmppo.storage.checkpoint import BEFORE, BEST, NAME, kept_name, load_selected_checkpoint
from shmppo.storage.checkpoint_file import load_checkpoint, write_checkpoint

SMALL = TrainConfig(
    env="CartPole-v1", num_envs=8, env_block=4, rollout_steps=16, seq_len=8, minibatches=2, epochs=2,
    hidden_size=8, encoder_sizes=(8,), workers=0, quiet=True, total_steps=128 * 8,
)  # fmt: skip
STEPS = ("--total-steps", 128 * 8)
pytestmark = pytest.mark.usefixtures("environments_importable")


@pytest.fixture(autouse=True)
def _stacks_on_abort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONFAULTHANDLER", "1")


def parameters(checkpoint: dict[str, Any]) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in checkpoint["learner"]["model"].values()])


def iteration_of(path: Path) -> int:
    return load_checkpoint(path)["iteration"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks that have trained for 8 iterations and kept every checkpoint."""
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    process = start(run_dir, *STEPS, "--checkpoint-every", 1, "--keep-every", 1)
    output = output_of(process)
    assert process.returncode == 0, output
    return run_dir


@pytest.mark.slow
def test_two_ranks_learn_the_same_as_one_rank_with_all_environments(undisturbed: Path, tmp_path: Path) -> None:
    """Seeds, minibatches, and moments are the same. So after one update the weights differ only by rounding."""
    train(dataclasses.replace(SMALL, stop_at_iteration=1, run_dir=str(tmp_path / "one")))
    one = load_selected_checkpoint(tmp_path / "one")
    two = load_checkpoint(undisturbed / kept_name(1))
    start_of_all = load_checkpoint(tmp_path / "one" / BEFORE)
    ours, theirs, before = (parameters(state) for state in (two, one, start_of_all))
    assert (theirs - before).abs().max() > 1e-3
    assert (ours - theirs).abs().max() < 1e-6
    assert str(two["episodes"]) == str(one["episodes"])
    for moments in ("obs_moments", "return_moments"):
        for name, tensor in two["learner"][moments].items():
            assert torch.equal(tensor, one["learner"][moments][name]), (moments, name)
    # Environment n of rank 1 is environment 4 + n of the single rank.
    other = load_checkpoint(next(p for p in (undisturbed / "rank-1").glob("checkpoint-*.pt") if iteration_of(p) == 1))
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


@pytest.mark.slow
def test_ranks_that_do_not_share_memory_compute_the_same(undisturbed: Path, tmp_path: Path) -> None:
    """Without torchrun, ranks do not know that they are on one machine. They use torch.distributed for all data."""
    command = [sys.executable, "-m", "shmppo.train", "--env", "CartPole-v1", *FLAGS.split(), *map(str, STEPS)]
    port = free_port()
    ranks = [
        subprocess.Popen(
            [*command, "--run-dir", str(tmp_path / "run")],
            env=os.environ | {"RANK": str(r), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
        )
        for r in range(2)
    ]
    assert [rank.wait(200) for rank in ranks] == [0, 0]
    assert summary_of(tmp_path / "run")["weights_sha256"] == summary_of(undisturbed)["weights_sha256"]


@pytest.mark.slow
def test_resume_continues_from_the_newest_iteration_that_all_ranks_have(undisturbed: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(undisturbed, run_dir)
    for path, last in zip(directories(run_dir), (5, 3), strict=True):
        kept = sorted(p for p in path.glob("checkpoint*.pt") if p.name != BEST and iteration_of(p) <= last)
        states = sorted((load_checkpoint(p) for p in kept), key=lambda state: -state["iteration"])
        for p in path.glob("checkpoint*.pt"):
            p.unlink()
        for age, state in enumerate(states):
            write_checkpoint(path / (NAME if age == 0 else kept_name(state["iteration"])), state)
    process = start(run_dir, "--resume", run_dir, "--workers", 1)
    output = output_of(process)
    assert process.returncode == 0, output
    for path in directories(run_dir):
        assert summary_of(path)["weights_sha256"] == summary_of(undisturbed)["weights_sha256"]
        assert "resumed at iteration 3" in (path / "run.log").read_text()
        assert [int(row["iteration"]) for row in csv_rows(path / "metrics.csv")] == list(range(1, 9))


def test_a_run_of_two_ranks_cannot_be_resumed_by_one(undisturbed: Path) -> None:
    with pytest.raises(ConfigError, match="was started with 2 ranks, not 1; start as many again"):
        resume(undisturbed, total_steps=2048)


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_to_one_rank_saves_and_ends_all_ranks(number: int, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    process = start(run_dir, "--total-steps", 10**8)
    _, second = wait_for_training(process, run_dir)
    second.send_signal(number)
    output = output_of(process)
    assert process.returncode == 0, output
    first, second_summary = (summary_of(path) for path in directories(run_dir))
    assert first["stop_reason"] == "signal"
    assert first["iterations"] == second_summary["iterations"]
    assert first["weights_sha256"] == second_summary["weights_sha256"]
    for path in directories(run_dir):
        assert load_selected_checkpoint(path)["iteration"] == first["iterations"]


@pytest.mark.slow
def test_ranks_that_torchrun_restarts_resume_the_run(undisturbed: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    flags, again = (*STEPS, "--checkpoint-every", 1), ("--max-restarts", "1")
    process = start(run_dir, *flags, env="environments:SlowCartPole-v0", torchrun=again)
    _, second = wait_for_training(process, run_dir, rows=2)
    second.kill()
    output = output_of(process)
    assert process.returncode == 0, output
    assert summary_of(run_dir)["weights_sha256"] == summary_of(undisturbed)["weights_sha256"]


@pytest.mark.slow
def test_different_configurations_are_refused_in_one_sentence(tmp_path: Path) -> None:
    port, processes = free_port(), []
    for rank in (0, 1):
        env = os.environ | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        command = [
            sys.executable,
            "-m",
            "shmppo.train",
            *FLAGS.split(),
            "--seed",
            str(rank),
            "--run-dir",
            str(tmp_path / "r"),
        ]
        processes.append(subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True, cwd=tmp_path))
    errors = [process.communicate(timeout=200)[1] for process in processes]
    assert [process.returncode for process in processes] == [2, 2]
    assert errors == ["error: rank 1 has --seed 1, but rank 0 has --seed 0; start all ranks with the same value\n", ""]
    assert not (tmp_path / "r").exists()


def test_different_weights_stop_the_run_with_the_iteration_and_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    group = ProcessGroup(0, 3)
    stops, differs = np.array([0, 1, 0]), np.array([1, 0, 0])
    monkeypatch.setattr(group, "gather", lambda mine: np.array([mine, mine + stops, mine + differs]))
    with pytest.raises(RankError, match="after iteration 7 the weights of rank 2 differ from those of rank 0"):
        group.agree((False, False), np.ones(5, np.float32), 7)
    monkeypatch.setattr(group, "gather", lambda mine: np.array([mine, mine + stops, mine]))
    assert group.agree((False, False), np.ones(5, np.float32), 7) == [True, False]


def test_incomplete_variables_of_torchrun_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with (
        pytest.raises(RankError, match=r"environment variable MASTER_ADDR expected, but not set.*; start all ranks"),
        connect(1),
    ):
        pass
