"""Exported policies act as in their run, and can be trained again."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from public_helpers import SIX_ITERATIONS, train_in

from shmppo import load_policy
from shmppo.errors import ConfigError
from shmppo.runs.launch import resume
from shmppo.storage.checkpoint_file import load_checkpoint, write_checkpoint
from shmppo.tools.export_policy import export_policy
from shmppo.tools.verify import verify_run

CONFIG = dataclasses.replace(SIX_ITERATIONS, hide_obs=(1, 3), total_steps=4 * 32 * 5)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    train_in(tmp_path / "run", CONFIG)
    return tmp_path / "run"


def test_an_exported_policy_acts_as_its_run_and_is_trained_again(run_dir: Path, tmp_path: Path) -> None:
    policy = export_policy(run_dir)
    assert policy == run_dir / "policy"
    assert sum(file.stat().st_size for file in policy.iterdir()) < 40_000
    for text in (policy / "config.json", policy / "summary.json"):
        assert str(tmp_path) not in text.read_text()
    obs = np.linspace(-1, 1, 4, dtype=np.float32)
    for own, exported in zip(load_policy(run_dir).act(obs), load_policy(policy).act(obs), strict=True):
        np.testing.assert_array_equal(own, exported)
    whole = verify_run(policy)
    assert whole.equal
    assert "iterations 1 to 5 gave the same results again, and so did checkpoint.pt" in whole.text
    assert "iterations 1 to 2" in verify_run(policy, iterations=2, workers=2).text
    started = train_in(tmp_path / "fine-tuned", CONFIG, init_from=str(policy))
    assert started["initial_weights"]["iteration"] == 5


@pytest.mark.parametrize("where", ["checkpoint", "metrics"])
def test_another_result_is_found(run_dir: Path, where: str) -> None:
    policy = export_policy(run_dir)
    if where == "metrics":
        path = policy / "metrics.csv"
        before = path.read_text().splitlines()[2].split(",")[1]
        path.write_text(path.read_text().replace(before, before[::-1]))
    else:
        state = load_checkpoint(policy / "checkpoint.pt")
        state["learner"]["obs_moments"]["mean"] += 1
        write_checkpoint(policy / "checkpoint.pt", state)
    verdict = verify_run(policy)
    assert not verdict.equal
    expected = "iteration 2 differs" if where == "metrics" else "checkpoint.pt differs in obs_moments"
    assert expected in verdict.text


def test_what_cannot_be_done_with_an_exported_policy_is_refused(run_dir: Path, tmp_path: Path) -> None:
    policy = export_policy(run_dir, checkpoint="checkpoint-1.pt", out=tmp_path / "policy")
    with pytest.raises(
        ConfigError, match="is an exported policy, which cannot be resumed; start a new run with --init"
    ):
        resume(policy, total_steps=4 * 32 * 10)
    with pytest.raises(ConfigError, match="cannot be written: File exists; name another directory"):
        export_policy(run_dir, out=policy)
    assert len((policy / "metrics.csv").read_text().splitlines()) == 1 + load_policy(policy).iteration
    assert json.loads((policy / "summary.json").read_text())["iterations"] == load_policy(policy).iteration
    assert json.loads((policy / "config.json").read_text())["config"]["run_dir"] is None
