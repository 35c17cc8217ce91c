"""Environments that refuse seeds, that are seeded only once, or whose episodes sometimes fail."""

from __future__ import annotations

import dataclasses
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from public_helpers import SIX_ITERATIONS, csv_rows, exit_code, raises, summary_of, train_in, worker_processes

from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.envs.sync_vector_env import SyncVectorEnv
from shmppo.errors import EnvError
from shmppo.policies.evaluation import evaluate
from shmppo.runs.launch import resume, train
from shmppo.train import main

BASE = dataclasses.replace(SIX_ITERATIONS, env="environments:Counter-v0")


def configuration(env: str, run_dir: Path, **changes: Any) -> TrainConfig:
    return dataclasses.replace(BASE, env=env, run_dir=str(run_dir), **changes)


def test_an_environment_that_refuses_seeds_trains_and_is_not_exact(tmp_path: Path) -> None:
    summary = train(configuration("environments:RefusesSeeds-v0", tmp_path / "run", stop_at_iteration=3))
    assert summary["iterations"] == 3
    assert summary["inexact_reasons"] == ["the environment raises on reset(seed=…), so its episodes begin at random"]
    again = resume(tmp_path / "run", stop_at_iteration=4)
    assert again["inexact_reasons"][0] == summary["inexact_reasons"][0]
    assert "environment 3: its episode could not be replayed and was restarted" in again["inexact_reasons"]


def test_an_environment_that_draws_from_its_spaces_is_reproducible() -> None:
    """IdentityEnvBox of Stable-Baselines3 does this."""
    config = dataclasses.replace(BASE, env="hidden_state:SamplesSpaces")
    task = inspect_task(config)
    assert task.inexact_reason is None
    drawn = []
    for first in (0, 5):
        envs = SyncVectorEnv(config, task, 0, 2)
        for episode in (first, 7, 8):
            envs.reset_all(episode)
        drawn.append(envs.obs[0].copy())
        envs.close()
    assert (drawn[0] == drawn[1]).all()
    assert len(np.unique(drawn[0])) == drawn[0].size, "each environment and each number is another one"


def test_an_environment_whose_resets_differ_is_not_exact_from_the_start(tmp_path: Path) -> None:
    config = dataclasses.replace(BASE, env="hidden_state:UnseededReset", run_dir=str(tmp_path / "run"))
    summary = train(dataclasses.replace(config, stop_at_iteration=1))
    assert summary["inexact_reasons"] == ["two resets with the same seed give different observations"]
    assert not summary["exact"]


def test_all_resets_are_seeded() -> None:
    config = dataclasses.replace(BASE, env="environments:SeedCounter-v0")
    envs = SyncVectorEnv(config, inspect_task(config), 0, 1)
    envs.reset_all(0)
    rewards, terminated, truncated = np.zeros(1), np.zeros(1, bool), np.zeros(1, bool)
    for _ in range(14):  # two episodes of 7 steps
        envs.step([0], rewards, terminated, truncated)
    assert envs.obs[0][0].tolist() == [3.0, 0.0]
    envs.close()


def test_a_run_whose_episodes_are_not_seeded_is_not_exact_after_a_worker_has_died(tmp_path: Path) -> None:
    def kill_a_worker(row: dict[str, float]) -> None:
        if row["iteration"] == 3:
            worker_processes()[0].kill()

    config = dataclasses.replace(BASE, env="vector_environments:SameStep", env_backend="vector", workers=2)
    summary = train_in(tmp_path / "run", config, callback=kill_a_worker)
    assert summary["worker_restarts"] == 1
    assert not summary["exact"]
    assert summary["iterations"] == 6


def skipping(env: str, error: str, root: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Train with skipped episodes; returns the summary and the last row of metrics.csv.

    Without skipping, the run ends with `error`.
    """
    with pytest.raises(EnvError, match=error):
        train(configuration(env, root / "strict"))
    summary = train(configuration(env, root / "0", skip_bad_episodes=True))
    return summary, csv_rows(root / "0" / "metrics.csv")[-1]


@pytest.mark.parametrize(("how", "workers"), [("exit", 2), ("interrupt", 0)])
def test_sys_exit_in_an_environment_is_a_failed_episode(how: str, workers: int, tmp_path: Path) -> None:
    config = configuration(
        f"faulty_environments:FailsSometimes-{how}-v0", tmp_path / "run", skip_bad_episodes=True, workers=workers
    )
    assert train(config)["iterations"] == 6
    assert "skipping this episode" in (tmp_path / "run" / "run.log").read_text()


@pytest.mark.parametrize("how", ["raise", "nan", "reward", "flag"])
def test_failed_episodes_are_skipped_and_counted(how: str, tmp_path: Path) -> None:
    summary, last = skipping(
        f"faulty_environments:FailsSometimes-{how}-v0", r"exploded|not finite|is ambiguous", tmp_path
    )
    assert int(last["failed_episodes"]) > 5
    assert float(last["return_mean_100"]) == 9.0, "only complete episodes are counted"
    assert summary["exact"]


@pytest.mark.parametrize("how", ["raise", "nan"])
def test_a_failed_reset_does_not_change_the_episode_before_it(how: str, tmp_path: Path) -> None:
    error = r"no such level|reset returned an invalid observation: obs is not finite: \[\d\] is nan"
    summary, last = skipping(f"faulty_environments:FailsAtReset-{how}-v0", error, tmp_path)
    steps = int(last["env_steps"]) // summary["num_envs"]
    assert int(last["episodes"]) == steps // 9 * summary["num_envs"]
    assert int(last["failed_episodes"]) > 5, "each failed reset counts"
    assert float(last["return_mean_100"]) == 9.0
    assert "no such level" in (tmp_path / "0" / "run.log").read_text() or how == "nan"


@pytest.mark.parametrize(("workers", "named"), [(0, False), (2, True)])
def test_a_constructor_that_changes_its_arguments_the_directory_and_signals_changes_nothing_else(
    workers: int, named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(partial(signal.signal, signal.SIGTERM, signal.getsignal(signal.SIGTERM)))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    arguments = {"settings": {"length": 5}, "directory": str(elsewhere)}
    run_dir = "run" if named else None
    config = dataclasses.replace(
        BASE, env="environments:ReadsSettings", env_kwargs=arguments, run_dir=run_dir, workers=workers
    )
    summary = train(config, callback=lambda row: os.kill(os.getpid(), signal.SIGTERM))
    assert (summary["iterations"], summary["stop_reason"]) == (1, "signal")
    assert (summary["return_mean_100"], summary["config"]["env_kwargs"]) == (5.0, arguments)
    assert not list(elsewhere.iterdir())
    (directory,) = [tmp_path / "run"] if named else (tmp_path / "runs").iterdir()
    assert (directory / "metrics.csv").is_file()


FAULTY = dataclasses.replace(BASE, env="faulty_environments:FailsAtStart", rollout_steps=48, total_steps=4 * 48 * 4)


def test_an_episode_that_fails_while_it_is_restored_is_skipped(tmp_path: Path) -> None:
    """Each file in `tokens` lets one reset in a worker fail: here the one that restores an episode."""
    (tmp_path / "tokens").mkdir()
    run_dir = tmp_path / "run"
    kwargs = {"how": "raise", "tokens": str(tmp_path / "tokens")}
    config = dataclasses.replace(FAULTY, env_kwargs=kwargs, skip_bad_episodes=True, run_dir=str(run_dir))
    train(dataclasses.replace(config, stop_at_iteration=2))
    (tmp_path / "tokens" / "0").touch()
    assert exit_code(main, ["--resume", run_dir, "--workers", 1]) == 0
    assert not list((tmp_path / "tokens").iterdir())
    assert "raised ValueError('no license')" in (run_dir / "run.log").read_text()
    assert summary_of(run_dir)["worker_restarts"] == 0


def test_a_reward_beyond_float32_names_the_environment_and_can_be_skipped(tmp_path: Path) -> None:
    config = dataclasses.replace(FAULTY, env="faulty_environments:Faulty-huge-v0", run_dir=str(tmp_path / "strict"))
    with raises("EnvError", r"environment 0: step returned the reward 1e\+300, which is not finite in float32"):
        train(config)
    config = dataclasses.replace(config, skip_bad_episodes=True, run_dir=str(tmp_path / "skipping"))
    assert train(config)["iterations"] == 4


def test_failed_resets_count_as_failed_episodes(tmp_path: Path) -> None:
    config = dataclasses.replace(FAULTY, env="faulty_environments:FailsAtReset-raise-v0", skip_bad_episodes=True)
    found = set()
    for workers in (0, 2):
        run_dir = tmp_path / str(workers)
        summary = train_in(run_dir, config, workers=workers)
        text = (run_dir / "run.log").read_text()
        skipped = [line for line in text.splitlines() if "WARNING environment" in line and "skipping this" in line]
        found.add((summary["failed_episodes"], len(skipped), summary["weights_sha256"]))
    ((failed, logged, _),) = found
    assert failed == logged > 5


def test_evaluations_skip_failing_episodes_as_the_run_does(tmp_path: Path) -> None:
    config = dataclasses.replace(FAULTY, env="faulty_environments:FailsSometimes-raise-v0", skip_bad_episodes=True)
    train_in(tmp_path / "run", config)
    result = evaluate(tmp_path / "run", episodes=20, trust=("faulty_environments",))
    assert 0 < result.failed < 20
    assert (len(result.episodes) + result.failed, set(result.lengths)) == (20, {9})
    train_in(tmp_path / "strict", config, skip_bad_episodes=False, env="faulty_environments:Counter")
    assert evaluate(tmp_path / "strict", episodes=3, trust=("faulty_environments",)).failed == 0


def test_an_environment_that_gives_no_result_fails_as_one_that_raises(tmp_path: Path) -> None:
    kwargs = {"how": "hang", "at": 150}
    config = dataclasses.replace(FAULTY, env="faulty_environments:Faulty", env_kwargs=kwargs, workers=2, num_envs=2)
    config = dataclasses.replace(config, skip_bad_episodes=True, worker_timeout=1.0, run_dir=str(tmp_path / "run"))
    summary = train(config)
    assert (summary["failed_episodes"], summary["worker_restarts"], summary["exact"]) == (4, 0, False)
    assert summary["inexact_reasons"] == ["a skipped episode did not fail when it was repeated, or an environment hung"]
    assert "step raised TimeoutError('no result in time;" in (tmp_path / "run" / "run.log").read_text()


@pytest.mark.long
def test_a_run_whose_environment_catches_the_timeout_is_inexact(tmp_path: Path) -> None:
    config = dataclasses.replace(FAULTY, env="faulty_environments:Faulty", env_kwargs={"how": "caught"})
    summary = train_in(tmp_path / "run", config, workers=1, num_envs=2, worker_timeout=1.0)
    assert (summary["failed_episodes"], summary["worker_restarts"], summary["exact"]) == (0, 0, False)
