"""Episodes that fail, with --skip-bad-episodes: where they are skipped, and which values are failures."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from public_helpers import exit_code, raises, summary_of

from shmppo import TrainConfig, train
from shmppo.policies.evaluation import evaluate
from shmppo.train import main

BASE = TrainConfig(
    env="faulty_environments:FailsAtStart", num_envs=4, rollout_steps=48, minibatches=2, epochs=1, hidden_size=8,
    encoder_sizes=(8,), workers=0, quiet=True, total_steps=4 * 48 * 4, seq_len=8,
)  # fmt: skip


def test_an_episode_that_fails_while_it_is_restored_is_skipped(tmp_path: Path) -> None:
    """Each file in `tokens` lets one reset in a worker fail: here the one that restores an episode."""
    (tmp_path / "tokens").mkdir()
    run_dir = tmp_path / "run"
    kwargs = {"how": "raise", "tokens": str(tmp_path / "tokens")}
    config = dataclasses.replace(BASE, env_kwargs=kwargs, skip_bad_episodes=True, run_dir=str(run_dir))
    train(dataclasses.replace(config, stop_at_iteration=2))
    (tmp_path / "tokens" / "0").touch()
    assert exit_code(main, ["--resume", run_dir, "--workers", 1]) == 0
    assert not list((tmp_path / "tokens").iterdir())
    assert "raised ValueError('no license')" in (run_dir / "run.log").read_text()
    assert summary_of(run_dir)["worker_restarts"] == 0


def test_a_reward_beyond_float32_names_the_environment_and_can_be_skipped(tmp_path: Path) -> None:
    config = dataclasses.replace(BASE, env="faulty_environments:Faulty-huge-v0", run_dir=str(tmp_path / "strict"))
    with raises("EnvError", r"environment 0: step returned the reward 1e\+300, which is not finite in float32"):
        train(config)
    config = dataclasses.replace(config, skip_bad_episodes=True, run_dir=str(tmp_path / "skipping"))
    assert train(config)["iterations"] == 4


def test_failed_resets_count_as_failed_episodes(tmp_path: Path) -> None:
    config = dataclasses.replace(BASE, env="faulty_environments:FailsAtReset-raise-v0", skip_bad_episodes=True)
    found = set()
    for workers in (0, 2):
        run_dir = tmp_path / str(workers)
        summary = train(dataclasses.replace(config, workers=workers, run_dir=str(run_dir)))
        text = (run_dir / "run.log").read_text()
        skipped = [line for line in text.splitlines() if "WARNING environment" in line and "skipping this" in line]
        found.add((summary["failed_episodes"], len(skipped), summary["weights_sha256"]))
    ((failed, logged, _),) = found
    assert failed == logged > 5


def test_evaluations_skip_failing_episodes_as_the_run_does(tmp_path: Path) -> None:
    config = dataclasses.replace(BASE, env="faulty_environments:FailsSometimes-raise-v0", skip_bad_episodes=True)
    train(dataclasses.replace(config, run_dir=str(tmp_path / "run")))
    result = evaluate(tmp_path / "run", episodes=20, trust=("faulty_environments",))
    assert 0 < result.failed < 20
    assert (len(result.episodes) + result.failed, set(result.lengths)) == (20, {9})
    strict = dataclasses.replace(config, skip_bad_episodes=False, env="faulty_environments:Counter")
    train(dataclasses.replace(strict, run_dir=str(tmp_path / "strict")))
    assert evaluate(tmp_path / "strict", episodes=3, trust=("faulty_environments",)).failed == 0


def test_an_environment_that_gives_no_result_fails_as_one_that_raises(tmp_path: Path) -> None:
    kwargs = {"how": "hang", "at": 150}
    config = dataclasses.replace(BASE, env="faulty_environments:Faulty", env_kwargs=kwargs, workers=2, num_envs=2)
    config = dataclasses.replace(config, skip_bad_episodes=True, worker_timeout=1.0, run_dir=str(tmp_path / "run"))
    summary = train(config)
    assert (summary["failed_episodes"], summary["worker_restarts"], summary["exact"]) == (4, 0, False)
    assert summary["inexact_reasons"] == ["a skipped episode did not fail when it was repeated, or an environment hung"]
    assert "step raised TimeoutError('no result in time;" in (tmp_path / "run" / "run.log").read_text()


def test_a_run_whose_environment_catches_the_timeout_is_inexact(tmp_path: Path) -> None:
    config = dataclasses.replace(
        BASE, env="faulty_environments:CatchesTimeout", workers=1, num_envs=2, worker_timeout=1.0,
        run_dir=str(tmp_path / "run"),
    )  # fmt: skip
    summary = train(config)
    assert (summary["failed_episodes"], summary["worker_restarts"], summary["exact"]) == (0, 0, False)
