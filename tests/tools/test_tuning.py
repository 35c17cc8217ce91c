"""Tuning: the search finds the fastest of artificial rates within its time, and prints flags that work."""

from __future__ import annotations

import dataclasses
import json
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from shmppo.config.differences import command, differences
from shmppo.config.flags import parse_config, read_config_file
from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError, run_command
from shmppo.tools import tuning as module
from shmppo.tools.tuning import Search, Tune, neighbors, tune

JOB = Tune(env="Pendulum-v1", num_envs=16, rollout_steps=128, minibatches=2)


@pytest.fixture
def artificial_rates(monkeypatch: pytest.MonkeyPatch) -> list[TrainConfig]:
    """Rates from a formula instead of a measurement. Best are 4 workers, 64 environments, and 2 shards.

    The clock advances by one second per measurement.
    """
    seen: list[TrainConfig] = []

    def measured(config: TrainConfig, iterations: int) -> SimpleNamespace:
        seen.append(config)
        rate = 1000 - 50 * abs(config.num_workers - 4) - abs(config.num_envs - 64) - 10 * abs(config.shards - 2)
        return SimpleNamespace(median=lambda column: float(rate))

    monkeypatch.setattr(module, "measured_run", measured)
    monkeypatch.setattr(module, "usable_cores", lambda: 4)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: float(len(seen))))
    return seen


def test_the_search_finds_the_best_of_artificial_rates(artificial_rates: list[TrainConfig]) -> None:
    search = Search(dataclasses.replace(JOB, minutes=1.0))
    search.run()
    assert 60 <= len(artificial_rates) < 60 + module.FINALISTS
    best = search.best.config
    assert (best.num_workers, best.num_envs, best.rollout_steps) == (4, 64, 32)
    assert best.shards == 2
    assert {config.batch_steps for config in artificial_rates} == {2048}
    assert [c.rate for c in search.ranking()] == sorted((c.rate for c in search.ranking()), reverse=True)
    assert len(search.best.rates) > 1, "the remaining time is spent on the fastest"


def test_varying_only_workers_changes_no_other_flag(artificial_rates: list[TrainConfig]) -> None:
    Search(dataclasses.replace(JOB, vary=("workers",), minutes=1.0)).run()
    assert {(config.num_envs, config.shards) for config in artificial_rates} == {(16, JOB.config().shards)}
    assert {config.num_workers for config in artificial_rates} == {0, 1, 2, 4}


def test_a_search_with_almost_no_time_measures_once(artificial_rates: list[TrainConfig]) -> None:
    tune(dataclasses.replace(JOB, minutes=1e-9))
    assert len(artificial_rates) == 1
    with pytest.raises(ConfigError, match="--minutes is 0"):
        tune(dataclasses.replace(JOB, minutes=0.0))


def test_a_signal_ends_the_search_with_the_best_so_far(
    artificial_rates: list[TrainConfig], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured, out = module.measured_run, tmp_path / "deeper" / "best.json"

    def interrupted(config: TrainConfig, iterations: int) -> object:
        if len(artificial_rates) == last:
            raise KeyboardInterrupt
        return measured(config, iterations)

    monkeypatch.setattr(module, "measured_run", interrupted)
    last = 3
    best = tune(dataclasses.replace(JOB, minutes=1.0, out=out))
    assert len(artificial_rates) == 3
    assert best in artificial_rates
    assert out.is_file()
    artificial_rates.clear()
    last = 0
    assert run_command(lambda: tune(JOB), "interrupted") == 130


def test_all_neighbors_are_valid_configurations() -> None:
    config = TrainConfig(num_envs=2, rollout_steps=8, seq_len=4, minibatches=2, workers=2)
    assert [(c.num_envs, c.rollout_steps) for c in neighbors(config, "envs")] == []
    assert [c.num_workers for c in neighbors(config, "workers")] == [0, 1, 2]
    assert [c.shards for c in neighbors(config, "shards")] == [2]
    for workers, each in ((0, 1), (2, 2)):
        config = TrainConfig(num_envs=64, minibatches=4, workers=workers)
        assert [c.shards for c in neighbors(config, "shards")] == [each, 4, 16], "one per process, fewer, and more"


def test_the_printed_command_and_the_file_have_the_same_configuration(tmp_path: Path) -> None:
    config = TrainConfig(
        env="Pendulum-v1", env_kwargs={"g": 9.5}, hide_obs=(2,), separate_critic="all", normalize_obs=False, gamma=0.9,
        workers=0, num_envs=8, grad_shards=2,
    )  # fmt: skip
    words = shlex.split(command(config))
    assert words[:3] == ["python", "-m", "shmppo.train"]
    assert parse_config(words[3:]) == config
    (tmp_path / "best.json").write_text(json.dumps(differences(config)))
    assert dataclasses.replace(TrainConfig(), **read_config_file(tmp_path / "best.json")) == config


@pytest.mark.long
def test_the_tune_command_measures_real_runs(
    run_command: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    flags = ("--num-envs", 4, "--rollout-steps", 32, "--minibatches", 2, "--hidden-size", 8, "--iterations", 4)
    done = run_command("shmppo.tune", *flags, "--minutes", 0.05, "--out", tmp_path / "best.json")
    assert done.returncode == 0, done.stderr
    assert "python -m shmppo.train --num-envs" in done.stdout
    train = ("--config", tmp_path / "best.json", "--stop-at-iteration", 1, "--quiet", "--run-dir", tmp_path / "run")
    trained = run_command("shmppo.train", *train)
    assert trained.returncode == 0, trained.stderr
    config = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert config["num_envs"] * config["rollout_steps"] == 128
