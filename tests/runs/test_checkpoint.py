"""What a run leaves to go on from, and to find a cause by: checkpoints kept, full disks, failed minibatches."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError, EnvError, TrainingError
from shmppo.loggers.metrics import EpisodeStatistics, MetricsFile
from shmppo.ppo import learner as learner
from shmppo.runs.checkpoint import BEST, NAME, load_checkpoint, load_newest_checkpoint, older, save_checkpoint
from shmppo.runs.trainer import resume, train
from shmppo.sampling.action_log import ActionLog
from shmppo.sampling.worker_pool import InProcessPool
from shmppo.utils.phase_timer import PhaseTimer

BASE = TrainConfig(
    env="CartPole-v1", num_envs=4, rollout_steps=32, minibatches=2, epochs=2, hidden_size=16, encoder_sizes=(16,),
    workers=0, quiet=True, total_steps=4 * 32 * 6, seq_len=8,
)  # fmt: skip


def test_the_newest_checkpoints_and_the_best_are_kept(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train(dataclasses.replace(BASE, checkpoint_every=1, keep_checkpoints=3, run_dir=str(run_dir)))
    # The last one once: it was due, and it is the end.
    assert [load_checkpoint(run_dir / older(age))["iteration"] for age in range(3)] == [6, 5, 4]
    assert not (run_dir / older(3)).exists()
    with open(run_dir / "metrics.csv") as file:
        returns = [float(row["return_mean_100"]) for row in csv.DictReader(file)]
    best = load_checkpoint(run_dir / BEST)
    assert best["iteration"] == 1 + int(np.nanargmax(returns))
    assert best["best_return"] == pytest.approx(np.nanmax(returns), rel=1e-6)


def test_a_run_can_go_on_from_its_very_start(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    whole = train(dataclasses.replace(BASE, stop_at_iteration=2, run_dir=str(run_dir)))
    os.replace(run_dir / older(1), run_dir / NAME)
    assert load_newest_checkpoint(run_dir)["iteration"] == 0
    assert resume(run_dir, stop_at_iteration=2)["weights_sha256"] == whole["weights_sha256"]


def test_every_older_checkpoint_is_tried(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train(dataclasses.replace(BASE, checkpoint_every=1, keep_checkpoints=4, run_dir=str(run_dir)))
    for age in range(3):
        (run_dir / older(age)).write_bytes(b"torn")
    assert load_newest_checkpoint(run_dir)["iteration"] == 3
    resume(run_dir)
    log = (run_dir / "run.log").read_text()
    assert log.count("is damaged or not a checkpoint") == 3
    assert log.index("is damaged") < log.index("resumed at iteration 3")


def test_a_checkpoint_of_other_spaces_is_refused_with_what_differs(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train(dataclasses.replace(BASE, stop_at_iteration=1, run_dir=str(run_dir)))
    with pytest.raises(ConfigError, match=r"carry carry_obs has the shape \(4, 4\), here it is \(4, 3\); the environ"):
        resume(run_dir, env="Pendulum-v1")
    with pytest.raises(ConfigError, match=r"parameter policy_head.bias has the shape \(2,\), here it is \(3,\)"):
        resume(run_dir, env="environments:FourNumbersThreeActions-v0")


@pytest.mark.parametrize("prev_action", [False, True])
def test_a_minibatch_that_is_not_finite_is_kept_and_the_run_can_go_on(
    prev_action: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run_dir, calls = tmp_path / "run", 0
    original = learner.Learner._reduce

    def poisoned(self: learner.Learner) -> dict[str, float]:
        nonlocal calls
        calls += 1
        total = original(self)
        if calls == 4 * 2 + 3:  # the third minibatch of iteration 2
            total["value_loss"] = float("nan")
        return total

    config = dataclasses.replace(BASE, prev_action=prev_action, run_dir=str(run_dir))
    with monkeypatch.context() as patched:
        patched.setattr(learner.Learner, "_reduce", poisoned)
        with pytest.raises(TrainingError, match=r"minibatch 0 of epoch 1: the loss is not finite .*nan.*; it has not"):
            train(config)
    kept = torch.load(run_dir / "failed_minibatch.pt", weights_only=True)
    assert kept["rollout"]["obs/obs" if prev_action else "obs"].shape == (32, 4, 4)
    assert int(kept["rows"][:, 2].sum()) == pytest.approx(32 * 4 / 2, abs=8)
    assert set(kept["weights"]) >= {"policy_head.weight", "value_head.weight"}
    straight = train(dataclasses.replace(config, run_dir=str(tmp_path / "straight")))
    assert resume(run_dir)["weights_sha256"] == straight["weights_sha256"]


def test_a_checkpoint_after_a_fault_tells_of_episodes_lost_before_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    original = InProcessPool.collect

    def collect(pool: InProcessPool, version: int, iteration: int, timer: PhaseTimer) -> None:
        if iteration == 2:
            pool.lost.append(3)
            raise EnvError(0, "given up")
        original(pool, version, iteration, timer)

    monkeypatch.setattr(InProcessPool, "collect", collect)
    with pytest.raises(EnvError, match="given up"):
        train(dataclasses.replace(BASE, run_dir=str(tmp_path / "run")))
    reasons = load_newest_checkpoint(tmp_path / "run")["inexact_reasons"]
    assert reasons == ["environment 3: its episode could not be replayed and was restarted"]


def test_an_environment_that_also_fails_to_close_does_not_hide_its_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def close(env: object) -> None:
        raise OSError("the simulator is gone")

    monkeypatch.setattr("environments.Faulty.close", close)
    run_dir = tmp_path / "run"
    with pytest.raises(EnvError, match="not finite"):
        train(dataclasses.replace(BASE, env="environments:Faulty-nan-v0", run_dir=str(run_dir)))
    assert load_newest_checkpoint(run_dir)["iteration"] == 1
    assert (run_dir / "failed_episode.json").is_file()
    assert "close raised OSError('the simulator is gone')" in (run_dir / "run.log").read_text()


def test_a_checkpoint_is_there_at_every_moment_of_the_next_one_s_saving(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    save_checkpoint(tmp_path, {"iteration": 1}, keep=3)
    replace, seen = os.replace, []

    def watched(source: Path, target: Path) -> None:
        seen.append(load_checkpoint(tmp_path / NAME)["iteration"])
        replace(source, target)
        seen.append(load_checkpoint(tmp_path / NAME)["iteration"])

    monkeypatch.setattr("os.replace", watched)
    for iteration in (2, 3):
        save_checkpoint(tmp_path, {"iteration": iteration}, keep=3)
    assert set(seen) == {1, 2, 3}
    assert [load_checkpoint(tmp_path / older(age))["iteration"] for age in range(3)] == [3, 2, 1]


def test_a_save_that_fails_leaves_the_best_return_to_the_next(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    returns = {0: math.nan, 1: 1.0, 2: 5.0, 3: 3.0}
    original = save_checkpoint

    def failing(path: Path, state: dict[str, Any], **options: Any) -> None:
        if state["iteration"] == 2:
            raise OSError("the disk is full")
        original(path, state, **options)

    monkeypatch.setattr("shmppo.runs.session.save_checkpoint", failing)
    monkeypatch.setattr("shmppo.runs.session.RETRY_SECONDS", 0.0)
    rollouts, add = 0, EpisodeStatistics.add_rollout

    def counted(statistics: EpisodeStatistics, *arguments: Any) -> int:
        nonlocal rollouts
        rollouts += 1
        return add(statistics, *arguments)

    monkeypatch.setattr(EpisodeStatistics, "add_rollout", counted)
    monkeypatch.setattr(EpisodeStatistics, "return_mean", property(lambda _: returns.get(rollouts, 0.0)))
    train(dataclasses.replace(BASE, checkpoint_every=1, run_dir=str(run_dir)))
    assert load_checkpoint(run_dir / BEST)["best_return"] == 3.0


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_that_an_environment_ends_is_saved_up_to_there(workers: int, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    config = dataclasses.replace(
        BASE, env="environments:Faulty-nan-v0", workers=workers, max_restarts=0, run_dir=str(run_dir)
    )
    with pytest.raises((EnvError, RuntimeError), match="not finite"):
        train(config)
    assert load_newest_checkpoint(run_dir)["iteration"] == 1  # the fault comes at step 40, in the second rollout


def test_an_episode_longer_than_the_replay_limit_is_restarted_where_it_would_be_replayed(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    config = dataclasses.replace(BASE, env="Pendulum-v1", replay_limit=40, stop_at_iteration=3, run_dir=str(run_dir))
    assert train(config)["exact"]
    assert len(load_newest_checkpoint(run_dir)["actions"]["actions"]) == 0
    summary = resume(run_dir)
    assert not summary["exact"]
    assert summary["inexact_reasons"][0] == "environment 0: its episode could not be replayed and was restarted"
    assert "environment 0: its episode is longer than --replay-limit 40" in (run_dir / "run.log").read_text()


def test_the_action_log_forgets_what_is_longer_than_its_limit() -> None:
    log = ActionLog(1, 1, limit=5)
    numbers, going_on = np.array([0]), np.zeros((3, 1), bool)
    ended = np.array([[False], [True], [False]])
    log.commit(np.zeros((3, 1, 1)), going_on, numbers)
    log.commit(np.ones((3, 1, 1)), going_on, numbers)
    assert log.episodes(range(1))[0].actions is None
    again = ActionLog(1, 1, limit=5)
    again.load(log.state(), 2)
    assert again.episodes(range(1))[0].actions is None
    again.commit(np.full((3, 1, 1), 7.0), ended, np.array([1]))
    actions = again.episodes(range(1))[0].actions
    assert actions is not None
    assert actions.tolist() == [[7.0]]


def test_a_row_that_was_torn_is_cut_off_when_the_run_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    file.write_text("iteration,kl\r\n1,0.5\r\n2,0.25\r\n1")  # of iteration 12
    table = MetricsFile(file, 12, ("iteration", "kl"))
    table.write({"iteration": 3, "kl": 0.125})
    table.close()
    assert file.read_text().split() == ["iteration,kl", "1,0.5", "2,0.25", "3,0.125"]


FULL_DISK = """
    import csv, json, os, sys, threading, time
    from pathlib import Path
    from shmppo import TrainConfig
    from shmppo.train import train

    run_dir = Path(sys.argv[1]) / "run"
    filler = Path(sys.argv[1]) / "filler"

    def rows():
        try:
            return (run_dir / "metrics.csv").read_bytes().count(b"\\n")
        except OSError:
            return 0

    def fill_then_free():
        while rows() < 4:
            time.sleep(0.002)
        with open(filler, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
        full_at = rows()
        time.sleep(1.0)
        print("rows while full", rows() - full_at, flush=True)
        filler.unlink()

    if __name__ == "__main__":
        threading.Thread(target=fill_then_free, daemon=True).start()
        config = TrainConfig(**json.loads(sys.argv[2]), run_dir=str(run_dir))
        print(train(config)["weights_sha256"])
        with open(run_dir / "metrics.csv") as file:
            found = [int(row["iteration"]) for row in csv.DictReader(file)]
        assert found == list(range(1, config.iterations + 1)), found
        log = (run_dir / "run.log").read_text()
        assert "checkpoint was written" not in log or "No space left" in log
"""


@pytest.mark.long
@pytest.mark.skipif(shutil.which("unshare") is None or os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_disk_that_is_full_for_a_while_costs_no_row_and_no_bit(tmp_path: Path) -> None:
    fields = {
        "env": "CartPole-v1", "num_envs": 4, "rollout_steps": 32, "minibatches": 2, "hidden_size": 16, "workers": 2,
        "total_steps": 4 * 32 * 150, "quiet": True, "checkpoint_every": 5,
    }  # fmt: skip
    disk, script = tmp_path / "disk", tmp_path / "script.py"
    disk.mkdir()
    script.write_text(textwrap.dedent(FULL_DISK))
    command = (
        f"mount -t tmpfs -o size=2m shmppo-test {disk} && exec {sys.executable} {script} {disk} '{json.dumps(fields)}'"
    )
    result = subprocess.run(
        ["unshare", "--mount", "sh", "-c", command], capture_output=True, text=True, timeout=120, check=False
    )
    if "unshare failed" in result.stderr or "permission denied" in result.stderr.lower():
        pytest.skip(f"mounting a small disk is not allowed here: {result.stderr.strip()}")
    assert result.returncode == 0, result.stderr
    while_full = re.search(r"rows while full (\d+)", result.stdout)
    assert while_full, result.stdout
    assert int(while_full[1]) <= 14, "more than fits into the rest of a page of the file"
    assert "metrics.csv" in result.stderr, "the log is on the full disk too: its records go to stderr"
    straight = train(TrainConfig(**fields | {"workers": 0}, run_dir=str(tmp_path / "straight")))
    assert result.stdout.split()[-1] == straight["weights_sha256"]
