"""Checkpoints: which are refused, full disks, and the files that show why a run has failed."""

from __future__ import annotations

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

import pytest
import torch
from conftest import summary_of

from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError, EnvError, TrainingError, WorkerError
from shmppo.parallel.shared_buffers import LossTerms, Rollout
from shmppo.policies.policy import load_policy
from shmppo.ppo.learner import Learner
from shmppo.runs.trainer import resume, train
from shmppo.runs.training import EpisodeStatistics
from shmppo.sampling.pool import CollectTimes, Pool
from shmppo.storage.checkpoint import BEFORE, BEST, NAME, load_newest_checkpoint, save_checkpoint
from shmppo.storage.checkpoint_file import FORMAT, load_checkpoint, write_checkpoint
from shmppo.storage.integrity import check_run

BASE = TrainConfig(
    env="CartPole-v1", num_envs=4, rollout_steps=32, minibatches=2, epochs=2, hidden_size=16, encoder_sizes=(16,),
    workers=0, quiet=True, total_steps=4 * 32 * 6, seq_len=8,
)  # fmt: skip


def test_a_run_can_resume_from_its_very_start(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    whole = train(dataclasses.replace(BASE, stop_at_iteration=2, run_dir=str(run_dir)))
    os.replace(run_dir / BEFORE, run_dir / NAME)
    assert load_newest_checkpoint(run_dir)["iteration"] == 0
    assert resume(run_dir, stop_at_iteration=2)["weights_sha256"] == whole["weights_sha256"]


def test_a_checkpoint_of_other_spaces_is_refused_with_the_difference(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train(dataclasses.replace(BASE, stop_at_iteration=1, run_dir=str(run_dir)))
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


def test_a_checkpoint_of_format_6_is_refused_in_one_sentence(tmp_path: Path) -> None:
    assert FORMAT == 7
    run_dir = tmp_path / "run"
    train(dataclasses.replace(BASE, stop_at_iteration=1, run_dir=str(run_dir)))
    state = load_checkpoint(run_dir / NAME)
    for name in (NAME, BEFORE):
        write_checkpoint(run_dir / name, state | {"format": 6, "fingerprint": {"shmppo": "0.9.1"}})
    message = (
        rf"^{run_dir / NAME} has checkpoint format 6, but this version reads format 7; "
        r"use the version of shmppo that wrote it \(0\.9\.1\)$"
    )
    for use in (resume, load_policy):
        with pytest.raises(ConfigError, match=message):
            use(run_dir)


@pytest.mark.parametrize("prev_action", [False, True])
def test_a_minibatch_that_is_not_finite_is_written_to_a_file_and_the_run_can_resume(
    prev_action: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run_dir, calls = tmp_path / "run", 0
    original = Learner._reduce

    def poisoned(learner: Learner) -> tuple[LossTerms, float]:
        nonlocal calls
        calls += 1
        terms, largest = original(learner)
        if calls == 4 * 2 + 3:  # the third minibatch of iteration 2
            terms = terms._replace(value_loss=float("nan"))
        return terms, largest

    config = dataclasses.replace(BASE, prev_action=prev_action, run_dir=str(run_dir))
    with monkeypatch.context() as patched:
        patched.setattr(Learner, "_reduce", poisoned)
        with pytest.raises(
            TrainingError,
            match=r"minibatch 0 of epoch 1: the loss is not finite .*nan.*; this minibatch has not changed",
        ):
            train(config)
    kept = torch.load(run_dir / "failed_minibatch.pt", weights_only=True)
    assert kept["rollout"]["obs/obs" if prev_action else "obs"].shape == (32, 4, 4)
    assert int(kept["sequences"][:, 2].sum()) == pytest.approx(32 * 4 / 2, abs=8)
    assert set(kept["weights"]) >= {"policy_head.weight", "value_head.weight"}
    summary = summary_of(run_dir)
    assert (summary["iterations"], summary["weights_sha256"]) == (2, None)
    assert summary["error"].startswith("minibatch 0 of epoch 1: the loss is not finite")
    straight = train(dataclasses.replace(config, run_dir=str(tmp_path / "straight")))
    assert resume(run_dir)["weights_sha256"] == straight["weights_sha256"]


def test_a_checkpoint_after_an_error_names_episodes_that_were_lost_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    original = Pool.collect

    def collect(pool: Pool, iteration: int) -> tuple[Rollout, CollectTimes]:
        if iteration == 2:
            pool._forget(3)
            raise EnvError(0, "given up")
        return original(pool, iteration)

    monkeypatch.setattr(Pool, "collect", collect)
    with pytest.raises(EnvError, match="given up"):
        train(dataclasses.replace(BASE, run_dir=str(tmp_path / "run")))
    reasons = load_newest_checkpoint(tmp_path / "run")["inexact_reasons"]
    assert reasons == ["environment 3: its episode could not be replayed and was restarted"]


def test_an_environment_that_also_fails_to_close_does_not_hide_its_error(
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


def test_a_save_that_fails_does_not_raise_the_best_return(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    returns = {0: math.nan, 1: 1.0, 2: 5.0, 3: 3.0}
    original = save_checkpoint

    def failing(path: Path, state: dict[str, Any], **options: Any) -> None:
        if state["iteration"] == 2:
            raise OSError("the disk is full")
        original(path, state, **options)

    monkeypatch.setattr("shmppo.storage.checkpoint.save_checkpoint", failing)
    monkeypatch.setattr("shmppo.storage.checkpoint.RETRY_SECONDS", 0.0)
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
def test_an_error_of_an_environment_ends_the_run_and_saves_the_iteration_before(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shmppo.sampling.worker_pool.MAX_RESTARTS", 0)
    run_dir = tmp_path / "run"
    config = dataclasses.replace(BASE, env="environments:Faulty-nan-v0", workers=workers, run_dir=str(run_dir))
    with pytest.raises((EnvError, WorkerError), match="not finite") as caught:
        train(config)
    assert load_newest_checkpoint(run_dir)["iteration"] == 1  # the error comes at step 40, in the second rollout
    summary = summary_of(run_dir)
    assert (summary["error"], summary["iterations"], summary["stopped_early"]) == (str(caught.value), 1, True)
    assert check_run(run_dir).last_iteration == 1


def test_an_episode_longer_than_the_replay_limit_is_restarted_instead_of_replayed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("shmppo.runs.training.REPLAY_LIMIT", 40)
    run_dir = tmp_path / "run"
    config = dataclasses.replace(BASE, env="Pendulum-v1", stop_at_iteration=3, run_dir=str(run_dir))
    assert train(config)["exact"]
    assert len(load_newest_checkpoint(run_dir)["actions"]["actions"]) == 0
    summary = resume(run_dir)
    assert not summary["exact"]
    assert summary["inexact_reasons"][0] == "environment 0: its episode could not be replayed and was restarted"
    assert (
        "environment 0: the episode has more than 40 steps, so it cannot be replayed"
        in (run_dir / "run.log").read_text()
    )


FULL_DISK = """
    import csv, json, os, sys, threading, time
    from pathlib import Path
    from shmppo import TrainConfig, train

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
        full_at = latest = rows()
        unchanged_since = time.monotonic()
        while time.monotonic() - unchanged_since < 2.0:  # until rows no longer fit
            time.sleep(0.01)
            if rows() != latest:
                latest, unchanged_since = rows(), time.monotonic()
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
def test_a_disk_that_is_full_for_a_while_loses_no_row_and_changes_no_bit(tmp_path: Path) -> None:
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
        ["unshare", "--mount", "sh", "-c", command], capture_output=True, text=True, timeout=250, check=False
    )
    if "unshare failed" in result.stderr or "permission denied" in result.stderr.lower():
        pytest.skip(f"mounting a small disk is not allowed here: {result.stderr.strip()}")
    assert result.returncode == 0, result.stderr
    while_full = re.search(r"rows while full (\d+)", result.stdout)
    assert while_full, result.stdout
    assert int(while_full[1]) <= 14, "more rows than fit into the rest of a page of the file"
    assert re.fullmatch(
        r"warning: \S+ cannot be written \(No space left on device\); the run continues, and tries to write its files "
        r"again\nwarning: all files of the run can be written again\n",
        result.stderr,
    ), "the log is on the full disk too, so these two go to stderr"
    straight = train(TrainConfig(**fields | {"workers": 0}, run_dir=str(tmp_path / "straight")))
    assert result.stdout.split()[-1] == straight["weights_sha256"]
