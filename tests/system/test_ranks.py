"""Several ranks, started by torchrun as a user would: the same weights everywhere, and those of one rank with all the
environments; stop, resume, and ranks that die."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from conftest import summary_of

from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError, RankError
from shmppo.parallel.process_group import ProcessGroup
from shmppo.parallel.rendezvous import connect
from shmppo.runs.checkpoint import BEST, load_checkpoint, load_newest_checkpoint, older
from shmppo.runs.trainer import resume, train

SMALL = TrainConfig(
    env="CartPole-v1", num_envs=8, env_block=4, tile_rows=4, rollout_steps=16, seq_len=8, minibatches=2, epochs=2,
    hidden_size=8, encoder_sizes=(8,), workers=0, quiet=True, total_steps=128 * 8,
)  # fmt: skip
FLAGS = (
    "--num-envs 4 --env-block 4 --tile-rows 4 --rollout-steps 16 --seq-len 8 --minibatches 2 --epochs 2 "
    "--hidden-size 8 --encoder-sizes 8 --workers 0 --quiet"
)


STEPS = ("--total-steps", 128 * 8)


def free_port() -> str:
    """A port for the ranks to meet at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.fixture(autouse=True)
def _environments_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONFAULTHANDLER", "1")


def start(run_dir: Path, *flags: object, env: str = "CartPole-v1", torchrun: tuple[str, ...] = ()) -> psutil.Popen:
    """Two ranks of the small run, as a user starts them."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", free_port()]
    command += [*torchrun, "-m", "shmppo.train"]
    if "--resume" not in flags:
        command += ["--env", env, *FLAGS.split(), "--run-dir", str(run_dir)]
    return psutil.Popen(
        [*command, *map(str, flags)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=run_dir.parent
    )


def finished(process: psutil.Popen, timeout: float = 60) -> str:
    """The output of a torchrun that ends by itself."""
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"does not end\n{stacks(process)}") from None
    return output


def stacks(process: psutil.Popen) -> str:
    """Where each process of a torchrun hangs, which ends it."""
    family = [*process.children(recursive=True), process]
    for one in family:
        one.send_signal(signal.SIGABRT)
    psutil.wait_procs(family, timeout=5)
    for one in family:
        if one.is_running():
            one.kill()
    return process.stdout.read()


def directories(run_dir: Path) -> list[Path]:
    return [run_dir, run_dir / "rank-1"]


def in_training(process: psutil.Popen, run_dir: Path, rows: int = 4) -> list[psutil.Process]:
    """The two ranks, once both have booked some iterations."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, process.stdout.read()
        files = [path / "metrics.csv" for path in directories(run_dir)]
        if all(file.exists() and len(file.read_text().splitlines()) > rows for file in files):
            ranks = [p for p in process.children() if "shmppo.train" in p.cmdline()]
            return sorted(ranks, key=lambda p: p.environ()["RANK"])
        time.sleep(0.05)
    raise AssertionError(f"did not begin to train within a minute\n{stacks(process)}")


def parameters(checkpoint: dict[str, Any]) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in checkpoint["learner"]["model"].values()])


def iteration_of(path: Path) -> int:
    return load_checkpoint(path)["iteration"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks that have trained for 8 iterations and kept every checkpoint."""
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    process = start(run_dir, *STEPS, "--checkpoint-every", 1, "--keep-checkpoints", 20)
    output = finished(process)
    assert process.returncode == 0, output
    return run_dir


def test_two_ranks_learn_what_one_with_all_environments_does(undisturbed: Path, tmp_path: Path) -> None:
    """Same streams, same minibatches, same moments: after one update the weights differ by rounding alone."""
    train(dataclasses.replace(SMALL, stop_at_iteration=1, run_dir=str(tmp_path / "one")))
    one = load_newest_checkpoint(tmp_path / "one")
    two = next(c for age in range(20) if (c := load_checkpoint(undisturbed / older(age)))["iteration"] == 1)
    start_of_all = load_checkpoint(tmp_path / "one" / older(1))
    ours, theirs, before = (parameters(state) for state in (two, one, start_of_all))
    assert (theirs - before).abs().max() > 1e-3
    assert (ours - theirs).abs().max() < 1e-6
    assert two["episodes"] == one["episodes"]
    for moments in ("obs_moments", "return_moments"):
        for name, tensor in two["learner"][moments].items():
            assert torch.equal(tensor, one["learner"][moments][name]), (moments, name)
    # Column n of rank 1 is column 4 + n of the one.
    other = load_checkpoint(next(p for p in (undisturbed / "rank-1").glob("checkpoint-*.pt") if iteration_of(p) == 1))
    assert torch.equal(
        torch.cat([two["carry"]["carry_hash"], other["carry"]["carry_hash"]]), one["carry"]["carry_hash"]
    )


def test_all_ranks_end_with_the_same_weights_and_the_same_books(undisturbed: Path) -> None:
    first, second = (summary_of(path) for path in directories(undisturbed))
    for name in ("weights_sha256", "env_steps", "episodes", "return_mean_100", "iterations", "exact"):
        assert first[name] == second[name], name
    assert (first["ranks"], first["num_envs"], first["env_steps"], first["iterations"]) == (2, 4, 1024, 8)
    assert first["exact"]


@pytest.mark.long
def test_ranks_that_do_not_share_memory_compute_the_same(undisturbed: Path, tmp_path: Path) -> None:
    """Started without torchrun they do not know that they are on one machine, and use the process group alone."""
    command = [sys.executable, "-m", "shmppo.train", "--env", "CartPole-v1", *FLAGS.split(), *map(str, STEPS)]
    port = free_port()
    ranks = [
        subprocess.Popen(
            [*command, "--run-dir", str(tmp_path / "run")],
            env=os.environ | {"RANK": str(r), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
        )
        for r in range(2)
    ]
    assert [rank.wait(60) for rank in ranks] == [0, 0]
    assert summary_of(tmp_path / "run")["weights_sha256"] == summary_of(undisturbed)["weights_sha256"]


@pytest.mark.long
def test_resume_takes_the_newest_iteration_that_all_ranks_have(undisturbed: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(undisturbed, run_dir)
    for path, last in zip(directories(run_dir), (5, 3), strict=True):
        kept = sorted(p for p in path.glob("checkpoint*.pt") if p.name != BEST and iteration_of(p) <= last)
        states = sorted((load_checkpoint(p) for p in kept), key=lambda state: -state["iteration"])
        for p in path.glob("checkpoint*.pt"):
            p.unlink()
        for age, state in enumerate(states):
            torch.save(state, path / older(age))
    process = start(run_dir, "--resume", run_dir, "--workers", 1)
    output = finished(process)
    assert process.returncode == 0, output
    for path in directories(run_dir):
        assert summary_of(path)["weights_sha256"] == summary_of(undisturbed)["weights_sha256"]
        assert "resumed at iteration 3" in (path / "run.log").read_text()
        with open(path / "metrics.csv") as file:
            assert [int(row["iteration"]) for row in csv.DictReader(file)] == list(range(1, 9))


def test_a_run_of_two_ranks_is_not_resumed_by_one(undisturbed: Path) -> None:
    with pytest.raises(ConfigError, match="was begun with 2 ranks, not 1; start as many again"):
        resume(undisturbed, total_steps=2048)


@pytest.mark.long
def test_a_rank_that_is_killed_ends_the_others_who_name_it(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    process = start(run_dir, "--total-steps", 10**8, "--workers", 1)
    _, second = in_training(process, run_dir)
    everyone = process.children(recursive=True)
    second.kill()
    output = finished(process)
    assert process.returncode == 1
    assert re.search(r"error: rank 1 of 2 did not answer \(.*\); resume from the last checkpoint with --resume", output)
    assert "rank 1 of 2 did not answer" in (run_dir / "run.log").read_text()
    assert not psutil.wait_procs(everyone, timeout=5)[1]


@pytest.mark.long
def test_a_rank_that_fails_says_why_on_all(tmp_path: Path) -> None:
    """Environment 0 of rank 1 raises at its 40th step: the other rank's error tells it."""
    run_dir = tmp_path / "run"
    process = start(run_dir, "--total-steps", 10**6, env="environments:FaultyStream-v0")
    output = finished(process)
    assert process.returncode == 1
    assert re.search(
        r"error: rank 1 failed: environment 0: step raised ValueError\('the simulation exploded'\)", output
    )
    assert (run_dir / "rank-1" / "failed_episode.json").is_file()
    assert not (run_dir / "failed_episode.json").exists()


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="threads are named in /proc")
def test_the_threads_of_a_group_end_with_the_run(tmp_path: Path) -> None:
    """One that outlives the interpreter aborts the process now and then."""
    script = tmp_path / "script.py"
    script.write_text(
        "from pathlib import Path\n"
        "from shmppo.train import main\n"
        "if __name__ == '__main__':\n"
        "    main()\n"
        "    print('threads', [p.read_text() for p in Path('/proc/self/task').glob('*/comm')])\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", free_port()]
    flags = ["--env", "CartPole-v1", *FLAGS.split(), *map(str, STEPS), "--run-dir", str(tmp_path / "run")]
    result = subprocess.run(
        [*command, str(script), *flags], capture_output=True, text=True, timeout=100, check=False, cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("threads") == 2
    assert "gloo" not in result.stdout


@pytest.mark.parametrize("number", [signal.SIGUSR1, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_to_one_rank_saves_and_ends_all(number: int, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    process = start(run_dir, "--total-steps", 10**8)
    _, second = in_training(process, run_dir)
    second.send_signal(number)
    output = finished(process)
    assert process.returncode == 0, output
    first, second_summary = (summary_of(path) for path in directories(run_dir))
    assert first["stopped_early"]
    assert first["iterations"] == second_summary["iterations"]
    assert first["weights_sha256"] == second_summary["weights_sha256"]
    for path in directories(run_dir):
        assert load_newest_checkpoint(path)["iteration"] == first["iterations"]


@pytest.mark.slow
def test_torchrun_starts_the_ranks_again_and_they_resume(undisturbed: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    flags, again = (*STEPS, "--checkpoint-every", 1), ("--max-restarts", "1")
    process = start(run_dir, *flags, env="environments:SlowCartPole-v0", torchrun=again)
    _, second = in_training(process, run_dir, rows=2)
    second.kill()
    output = finished(process)
    assert process.returncode == 0, output
    assert summary_of(run_dir)["weights_sha256"] == summary_of(undisturbed)["weights_sha256"]


@pytest.mark.long
def test_configurations_that_differ_are_refused_in_one_sentence(tmp_path: Path) -> None:
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
    errors = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [2, 2]
    assert errors == ["error: rank 1 has --seed 1, but rank 0 has --seed 0; start all ranks with the same value\n", ""]
    assert not (tmp_path / "r").exists()


def test_weights_that_differ_stop_the_run_and_name_iteration_and_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = ProcessGroup(0, 3)
    stops, differs = np.array([0, 1, 0]), np.array([1, 0, 0])
    monkeypatch.setattr(ranks, "gather", lambda mine: np.array([mine, mine + stops, mine + differs]))
    with pytest.raises(RankError, match="after iteration 7 the weights of rank 2 differ from those of rank 0"):
        ranks.agree((False, False), torch.ones(5), 7)
    monkeypatch.setattr(ranks, "gather", lambda mine: np.array([mine, mine + stops, mine]))
    assert ranks.agree((False, False), torch.ones(5), 7) == [True, False]


def test_an_environment_that_is_not_whole_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with (
        pytest.raises(ConfigError, match="WORLD_SIZE is 2, but the environment lacks MASTER_ADDR, MASTER_PORT"),
        connect(1),
    ):
        pass


@pytest.mark.slow
def test_two_ranks_solve_cartpole_without_velocities_in_one_ranks_budget(
    tmp_path: Path, run_command: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """The default job, 16 environments and 200,000 steps, dealt out to two ranks: 50 iterations and more, one hash."""
    run_dir = tmp_path / "run"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", free_port()]
    command += ["-m", "shmppo.train", "--num-envs", "8", "--workers", "0", "--quiet", "--run-dir", str(run_dir)]
    subprocess.run(command, check=True, cwd=tmp_path, capture_output=True, timeout=280)
    first, second = (summary_of(path) for path in directories(run_dir))
    assert first["iterations"] == 98
    assert first["weights_sha256"] == second["weights_sha256"]
    result = run_command("shmppo.evaluate", run_dir, "--episodes", 20, "--seed", 1, "--json")
    assert json.loads(result.stdout)["return_mean"] >= 475
