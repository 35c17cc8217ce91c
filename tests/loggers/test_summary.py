"""The summary: a short text form in Python, and commands that can be pasted."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from shmppo.config.train_config import TrainConfig
from shmppo.loggers.summary import RunSummary, summary_text
from shmppo.utils.phase_timer import PHASES


def summary_of(run_dir: Path, **changes: Any) -> RunSummary:
    content = {
        "run_dir": str(run_dir), "return_mean_100": -0.4123, "env_steps": 2048, "wall_seconds": 61.0, "episodes": 250,
        "info": {}, "evaluation": {},
        "steps_per_second": 33.6, "phase_seconds": dict.fromkeys(PHASES, 1.0), "peak_memory_bytes": 2**28,
        "shared_memory_bytes": 2**20, "weights_sha256": "0123456789abcdef0", "exact": True, "inexact_reasons": [],
        "failed_episodes": 0, "iterations": 35,
        "worker_restarts": 0, "stop_reason": "callback", "best_by": "return_mean_100",
        "best_value": 0.25, "best_checkpoint": "checkpoint-best.pt",
    }  # fmt: skip
    return RunSummary(content | changes)


@pytest.fixture(autouse=True)
def _in_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def lines_of(summary: RunSummary, config: TrainConfig | None = None) -> dict[str, str]:
    text = summary_text(config or TrainConfig(workers=1), summary, Path(summary["run_dir"]))
    return {line[:15].strip(): line[15:] for line in text.splitlines() if line[:15].strip()}


def commands_of(summary: RunSummary, config: TrainConfig | None = None) -> list[str]:
    """The commands at the end of the text."""
    text = summary_text(config or TrainConfig(workers=1), summary, Path(summary["run_dir"]))
    lines = text.partition("\nnext\n")[2].splitlines()
    assert all(re.match(r"  \S", line) for line in lines)
    return [line.strip() for line in lines]


def test_a_summary_is_a_dictionary_with_a_short_text_form(tmp_path: Path) -> None:
    summary = summary_of(tmp_path / "runs" / "a")
    assert json.loads(json.dumps(summary)) == dict(summary)
    assert repr(summary) == "<RunSummary runs/a: return -0.412, 2,048 steps in 0:01:01>"
    nothing = summary_of(tmp_path, return_mean_100=None)
    assert "return unknown" in repr(nothing)


def test_the_text_names_the_result_the_time_and_the_best_checkpoint(tmp_path: Path) -> None:
    lines = lines_of(summary_of(tmp_path / "runs" / "a"))
    assert lines["run"] == "runs/a"
    assert lines["return"] == "-0.412 (mean of the last 100 episodes)"
    assert lines["best saved"] == "return_mean_100 0.250 in runs/a/checkpoint-best.pt"
    assert lines["steps"].startswith("2,048 in 0:01:01")
    assert "best saved" not in lines_of(summary_of(tmp_path, best_value=None))
    assert not {"skipped", "note"} & set(lines)


def test_only_a_long_run_without_the_end_of_an_episode_advises_to_truncate_episodes(tmp_path: Path) -> None:
    config = TrainConfig(workers=1, num_envs=16)
    summaries = [summary_of(tmp_path, return_mean_100=None, env_steps=16 * steps) for steps in (999, 1000)]
    assert [lines_of(one, config)["return"] for one in summaries] == [
        "no episode has ended in 999 steps per environment; train longer",
        "no episode has ended in 1,000 steps per environment; if episodes",
    ]


def test_a_run_without_a_finished_check_names_the_command_that_finishes_it(tmp_path: Path) -> None:
    config = TrainConfig(env="my:Env", env_kwargs={"size": 9}, wrappers=("a:B(c=1)",), hide_obs=(1,), workers=1)
    unchecked, checked = summary_of(tmp_path, exact=None), summary_of(tmp_path)
    assert lines_of(unchecked)["exact"] == "not checked yet; check-env finishes the check of the environment"
    assert "exact" not in lines_of(checked)
    (command,) = [one for one in commands_of(unchecked, config) if "check_env" in one]
    assert shlex.split(command)[3:] == ["my:Env", "--env-kwargs", "size=9", "--wrappers", "a:B(c=1)"]
    assert not any("check_env" in one for one in commands_of(checked, config))


def test_a_longer_run_with_another_schedule_is_a_branch(tmp_path: Path) -> None:
    """The same run would become inexact."""
    finished = summary_of(tmp_path, iterations=98, env_steps=200_704)
    *_, directory, total, steps, anneal, last = shlex.split(commands_of(finished)[-1])
    assert directory.endswith("-longer")
    assert (total, steps, anneal, last) == ("--total-steps", "401408", "--anneal-steps", "401408")
    constant = TrainConfig(workers=1, lr_schedule="constant")
    assert "--run-dir" not in commands_of(finished, constant)[-1]


@pytest.mark.parametrize(("seconds", "explained"), [(2.0, False), (4.0, True)])
def test_much_waiting_is_explained(seconds: float, explained: bool, tmp_path: Path) -> None:
    phases = dict.fromkeys(PHASES, 1.0) | {"wait": seconds}
    lines = lines_of(summary_of(tmp_path, phase_seconds=phases))
    assert lines.get("wait", "").startswith("for the slowest process; if other programs use the cores") is explained


@pytest.mark.parametrize(
    ("training", "returned", "std", "changes", "hint"),
    [
        (0.56, 0.0, 0.0, {}, True), (0.56, 0.3, 0.0, {}, False), (0.56, 0.0, 1.0, {}, False),
        (0.56, 0.9, 0.0, {}, False), (-100.0, -250.0, 30.0, {}, True), (None, 0.0, 0.0, {}, False),
        (0.56, float("nan"), 0.0, {}, False), (0.56, 0.0, 0.0, {"iteration": 34.0}, False),
        (0.56, 0.0, 0.0, {"eval/episodes": 4.0}, False),
    ],
)  # fmt: skip
def test_a_policy_that_must_sample_its_actions_gets_a_hint(
    training: float | None, returned: float, std: float, changes: dict[str, float], hint: bool, tmp_path: Path
) -> None:
    row = {"iteration": 35.0, "eval/return": returned, "eval/return_std": std, "eval/episodes": 10.0} | changes
    lines = lines_of(summary_of(tmp_path, return_mean_100=training, evaluation=row))
    assert ("hint" in lines) is hint
    if hint:
        assert lines["hint"].startswith("evaluations return far less than training: they take the most")


def test_the_text_has_the_means_of_info_and_names_missing_keys(tmp_path: Path) -> None:
    info = {"info/is_success": 0.25, "info/a/b": -12.5, "info/c": None, "info/d": None}
    lines = lines_of(summary_of(tmp_path, info=info))
    assert (lines["info"], lines["missing"]) == (
        "is_success 0.250, a/b -12.50",
        "c, d: not in the info of the last 100 episodes",
    )
    lines = lines_of(summary_of(tmp_path, info=dict.fromkeys(info), episodes=0))
    assert not {"info", "missing"} & lines.keys()


@pytest.mark.parametrize(
    ("typed", "program"),
    [
        (["/venv/bin/python", "-m", "shmppo.train"], ["/venv/bin/python", "-m", "shmppo.evaluate"]),
        (["python3", "-m", "shmppo.train"], ["python3", "-m", "shmppo.evaluate"]),
        (["pytest"], ["python", "-m", "shmppo.evaluate"]),
    ],
)
def test_the_next_commands_can_be_pasted(
    typed: list[str], program: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "orig_argv", typed)
    commands = commands_of(summary_of(tmp_path / "my runs" / "a"))
    assert shlex.split(commands[0]) == [*program, "my runs/a"]
    assert [shlex.split(command)[2] for command in commands[1:]] == ["shmppo.plot", "shmppo.train"]
