"""Checkpoints: which are refused, and the files that show why a run has failed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import summary_of

from shmppo import load_policy
from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError, EnvError, TrainingError
from shmppo.lockstep.learner import Learner
from shmppo.runs.session import Session
from shmppo.runs.trainer import resume, train
from shmppo.storage.checkpoint import BEFORE, NAME, load_selected_checkpoint
from shmppo.storage.checkpoint_file import FORMAT, load_checkpoint, write_checkpoint

BASE = TrainConfig(
    env="CartPole-v1", num_envs=4, rollout_steps=32, minibatches=2, epochs=2, hidden_size=16, encoder_sizes=(16,),
    workers=0, quiet=True, total_steps=4 * 32 * 6, seq_len=8,
)  # fmt: skip


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


def test_a_checkpoint_of_another_format_is_refused_in_one_sentence(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train(dataclasses.replace(BASE, stop_at_iteration=1, run_dir=str(run_dir)))
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


def test_a_run_can_resume_after_a_minibatch_that_is_not_finite(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run_dir, calls = tmp_path / "run", 0
    original = Learner._results

    def poisoned(learner: Learner) -> tuple[dict[str, float], float]:
        nonlocal calls
        calls += 1
        terms, largest = original(learner)
        if calls == 4 * 2 + 3:  # the third minibatch of iteration 2
            terms["value_loss"] = float("nan")
        return terms, largest

    config = dataclasses.replace(BASE, run_dir=str(run_dir))
    with monkeypatch.context() as patched:
        patched.setattr(Learner, "_results", poisoned)
        with pytest.raises(
            TrainingError,
            match=r"minibatch 0 of epoch 1: the loss is not finite .*nan.*; this minibatch has not changed",
        ):
            train(config)
    summary = summary_of(run_dir)
    assert (summary["iterations"], summary["weights_sha256"]) == (2, None)
    assert summary["error"].startswith("minibatch 0 of epoch 1: the loss is not finite")
    straight = train(dataclasses.replace(config, run_dir=str(tmp_path / "straight")))
    assert resume(run_dir)["weights_sha256"] == straight["weights_sha256"]


def test_the_steps_of_a_failed_rollout_are_those_that_the_worker_of_the_environment_has_begun() -> None:
    session: Any = Session.__new__(Session)
    session.config = dataclasses.replace(BASE, workers=2)
    session.buffers = SimpleNamespace(control=SimpleNamespace(progress=np.array([[3 * 32 + 20, 0], [3 * 32 + 7, 0]])))
    session.state = SimpleNamespace(actions=SimpleNamespace(iteration=3))
    assert [session._steps_begun(n) for n in range(4)] == [20, 20, 7, 7]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_an_environment_ends_the_run_and_saves_the_iteration_before(workers: int, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    config = dataclasses.replace(BASE, env="faulty_environments:Faulty-nan-v0", workers=workers, run_dir=str(run_dir))
    with pytest.raises(EnvError, match="not finite") as caught:
        train(config)
    assert load_selected_checkpoint(run_dir)["iteration"] == 1  # the error comes at step 40, in the second rollout
    summary = summary_of(run_dir)
    assert (summary["error"], summary["iterations"], summary["stop_reason"]) == (str(caught.value), 1, "error")


def test_an_episode_longer_than_the_replay_limit_is_restarted_instead_of_replayed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("shmppo.runs.train_state.REPLAY_LIMIT", 40)
    run_dir = tmp_path / "run"
    config = dataclasses.replace(BASE, env="Pendulum-v1", stop_at_iteration=3, run_dir=str(run_dir))
    assert train(config)["exact"]
    assert len(load_selected_checkpoint(run_dir)["actions"]["actions"]) == 0
    summary = resume(run_dir)
    assert not summary["exact"]
    assert summary["inexact_reasons"][0] == "environment 0: its episode could not be replayed and was restarted"
    assert (
        "environment 0: the episode has more than 40 steps, so it cannot be replayed"
        in (run_dir / "run.log").read_text()
    )
