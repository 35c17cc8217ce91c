"""Statistics of an iteration that the state of a run computes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from public_helpers import SIX_ITERATIONS

from shmppo import read_metrics, train
from shmppo.config.info_keys import parse_info_keys
from shmppo.config.train_config import TrainConfig
from shmppo.runs.episode_statistics import EpisodeStatistics
from shmppo.runs.train_state import waiting_share


def test_the_waiting_share_is_the_mean_over_the_workers() -> None:
    assert waiting_share(np.array([1.0, 2.0, 4.0, 1.0])) == pytest.approx(0.5)
    assert waiting_share(np.array([3.0])) == 0


def test_means_are_those_of_the_last_100_episodes() -> None:
    statistics = EpisodeStatistics(parse_info_keys(("level",))[:1])
    for n in range(1, 121):
        statistics.add([[10.0 * n, n, -n]])
    assert (statistics.count, statistics.return_mean, statistics.length_mean) == (120, 705.0, 70.5)
    assert statistics.info_means == {"info/level": -70.5}


def test_a_resume_keeps_the_names_of_metrics_that_recent_episodes_lack() -> None:
    keys = parse_info_keys(())
    before, after = EpisodeStatistics(keys), EpisodeStatistics(keys)
    before.add([[1.0, 2.0, *[0.5] * len(keys)]])
    before.add([[1.0, 2.0, *[np.nan] * len(keys)]] * 100)
    after.load(before.state())
    assert len(before.info_means) == len(keys) > 0
    assert list(after.info_means) == list(before.info_means)


@pytest.mark.parametrize(("known", "misleading"), [(0, False), (1, True), (49, True), (50, False), (100, False)])
def test_a_success_that_few_episodes_have_is_named(known: int, misleading: bool) -> None:
    statistics, nan = EpisodeStatistics(parse_info_keys(("level",))), float("nan")
    statistics.add([[1.0, 5.0, 3.0, nan, 1.0 if i < known else nan] for i in range(100)])
    assert [text.split()[0] for text in statistics.misleading] == [statistics.keys[2].metric] * misleading


def test_a_key_that_no_episode_has_is_named() -> None:
    keys, nan = parse_info_keys(("levle", "level")), float("nan")
    statistics, deciding = EpisodeStatistics(keys), EpisodeStatistics(keys, ["eval/return", "eval/info/success"])
    deciding.add([[1.0, 5.0, 1.0, 2.0, nan, nan]] * 20)
    assert [text.partition(":")[0] for text in deciding.misleading] == ["info/success"]
    statistics.add([[1.0, 5.0, nan, nan, nan, nan]] * 19)
    assert not statistics.misleading
    statistics.add([[1.0, 5.0, nan, 2.0, nan, nan]])
    statistics.add([[1.0, 5.0, nan, nan, nan, nan]] * 100)
    (text,) = statistics.misleading
    assert text == "info/levle: no episode has had this key so far; correct its name if it is misspelled"


def test_episodes_csv_has_every_finished_episode(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train(dataclasses.replace(SIX_ITERATIONS, run_dir=str(run_dir), num_envs=3, workers=0, stop_at_iteration=4))
    metrics, episodes = read_metrics(run_dir), read_metrics(run_dir, "episodes")
    ended = [int((episodes["iteration"] <= iteration).sum()) for iteration in metrics["iteration"]]
    assert ended == metrics["episodes"].tolist()
    assert episodes["return"][-100:].mean() == pytest.approx(metrics["return_mean_100"][-1])
    assert episodes["length"][-100:].mean() == pytest.approx(metrics["length_mean_100"][-1])
    for env in range(3):
        numbers = episodes["episode"][episodes["environment"] == env]
        assert numbers.tolist() == [*range(len(numbers))] != []
    assert len(set(episodes["crc"])) == ended[-1], "no two have the same observations"


def test_a_warning_is_shown_and_logged_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = TrainConfig(
        env="environments:Reach", env_kwargs={"rare": 0.2}, num_envs=4, rollout_steps=16, total_steps=4 * 16 * 3,
        minibatches=2, hidden_size=8, workers=0, run_dir=str(tmp_path / "run"),
    )  # fmt: skip
    train(config)
    for text in ((tmp_path / "run" / "run.log").read_text(), capsys.readouterr().out):
        assert text.count("info/success is the mean of only those episodes that have it") == 1


def test_a_newer_torch_than_the_tested_ones_is_one_line_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TrainConfig(num_envs=2, rollout_steps=8, minibatches=1, seq_len=8, workers=0, quiet=True, total_steps=16)
    for limit in ("2.0", "99.0"):
        monkeypatch.setattr("shmppo.models.devices.UNTESTED_TORCH", limit)
        train(dataclasses.replace(config, run_dir=str(tmp_path / limit)))
        lines = (tmp_path / limit / "run.log").read_text().count(f"torch {torch.__version__} is newer than")
        assert lines == (limit == "2.0")
