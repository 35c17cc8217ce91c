"""What a callback can do with its run: look at the current policy, save, evaluate, and stop."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from public_helpers import SIX_ITERATIONS, train_in

from shmppo import load_policy
from shmppo.errors import ConfigError, ShmppoError
from shmppo.parallel.process_group import ProcessGroup
from shmppo.policies.evaluation import evaluate
from shmppo.runs.handle import RunHandle
from shmppo.runs.launch import resume, train
from shmppo.storage.checkpoint import load_selected_checkpoint

CONFIG = dataclasses.replace(SIX_ITERATIONS, workers=2)


def test_a_callback_acts_on_its_run_without_changing_the_weights(tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    def callback(row: dict[str, float], run: RunHandle) -> None:
        if row["iteration"] == 2:
            run.save("second")
            seen["policy"], seen["result"] = run.policy(), run.evaluate(3)
            seen["seeded"], seen["sampled"] = run.policy(seed=7), run.evaluate(3, stochastic=True)
        if row["iteration"] == 4:
            run.stop("good enough")

    run_dir = tmp_path / "run"
    summary = train_in(run_dir, CONFIG, callback=callback)
    assert (summary["iterations"], summary["stop_reason"]) == (4, "good enough")
    file = run_dir / "checkpoint-second.pt"
    assert load_selected_checkpoint(run_dir, file)["iteration"] == seen["policy"].iteration == 2
    assert seen["result"].returns == evaluate(run_dir, checkpoint=file, episodes=3, seed=CONFIG.seed).returns
    saved, obs = load_policy(run_dir, checkpoint=file), np.array([0.01, 0.0, 0.02, 0.0], np.float32)
    action, state = seen["policy"].act(obs, None)  # a copy: two iterations have changed the weights of the run since
    assert action == saved.act(obs, None)[0]
    assert np.array_equal(state, saved.act(obs, None)[1])
    assert not np.array_equal(state, load_policy(run_dir).act(obs, None)[1])
    many = np.tile(obs, (3, 1))  # a batch of another size reads the weights and the normalization again
    assert np.array_equal(seen["policy"].act(many, None)[1], saved.act(many, None)[1])
    sampled = evaluate(run_dir, checkpoint=file, episodes=3, seed=CONFIG.seed, stochastic=True)
    assert seen["sampled"].returns == sampled.returns != seen["result"].returns
    many = np.tile(obs, (40, 1))
    seeded = load_policy(run_dir, checkpoint=file, seed=7).act(many, None, deterministic=False)[0]
    assert np.array_equal(seen["seeded"].act(many, None, deterministic=False)[0], seeded)
    assert not np.array_equal(seen["policy"].act(many, None, deterministic=False)[0], seeded)
    whole = train_in(tmp_path / "whole", CONFIG)
    assert resume(run_dir)["weights_sha256"] == whole["weights_sha256"]


def test_an_environment_that_raises_in_an_evaluation_of_the_callback_has_no_failed_training_episode(
    tmp_path: Path,
) -> None:
    config = dataclasses.replace(
        CONFIG, env="faulty_environments:FaultyInEvaluation", workers=0, eval_every=100, run_dir=str(tmp_path / "run"),
        eval_env_kwargs={"fails": True}, hide_obs=(),
    )  # fmt: skip
    with pytest.raises(ShmppoError, match=r"^the evaluation of iteration 1 failed in episode \d: step raised"):
        train(config, callback=lambda row, run: run.evaluate(20).returns[0] < 0)
    assert not (tmp_path / "run" / "failed_episode.json").exists()


def test_the_reason_to_stop_may_come_from_any_rank(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As if a rank before this one had no reason of its own."""
    original = ProcessGroup.gather_objects

    def gather(group: ProcessGroup, value: Any) -> list[Any]:
        return ["finished"] * (value == "good enough") + original(group, value)

    monkeypatch.setattr(ProcessGroup, "gather_objects", gather)
    config = dataclasses.replace(CONFIG, workers=0, run_dir=str(tmp_path / "run"))
    assert train(config, callback=lambda row, run: run.stop("good enough"))["stop_reason"] == "good enough"


@pytest.mark.parametrize("name", ["best", "1", "iteration-5", "", "a/b", "../a"])
def test_a_checkpoint_name_that_cannot_be_used_is_refused(name: str, tmp_path: Path) -> None:
    def callback(row: dict[str, float], run: RunHandle) -> None:
        run.save(name)

    with pytest.raises(ConfigError, match=r"run\.save got the name .* but not best, 1, or iteration-…\n"):
        train_in(tmp_path / "run", CONFIG, workers=0, callback=callback)
