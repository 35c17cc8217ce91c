"""Options of reset that change with the iteration (--env-schedule)."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import worker_processes
from public_helpers import csv_rows, slow_after, train_in

from shmppo import ConfigError, EnvError, TrainConfig, resume, train
from shmppo.evaluate import EvaluateConfig, as_text
from shmppo.policies.evaluation import evaluate
from shmppo.runs.decisions import Decisions
from shmppo.runs.failed_episode import replay
from shmppo.storage.checkpoint import load_selected_checkpoint
from shmppo.tools.verify import verify_run

BASE = TrainConfig(
    env="schedules:Leveled", env_schedule="schedules:levels", num_envs=4, rollout_steps=16, seq_len=8, minibatches=2,
    hidden_size=8, workers=0, quiet=True, total_steps=4 * 16 * 6, checkpoint_every=1,
)  # fmt: skip


def kill_a_worker(row: dict[str, float]) -> None:
    if row["iteration"] in (1, 3):  # each episode in progress has 4 steps, or 1
        worker_processes()[0].kill()


@pytest.mark.parametrize("stop", [3, 5])
def test_a_resume_keeps_the_options_of_iterations_in_which_no_episode_began(stop: int, tmp_path: Path) -> None:
    config = dataclasses.replace(
        BASE, env_schedule="schedules:rising", rollout_steps=4, seq_len=4, total_steps=4 * 4 * 9
    )
    whole = train_in(tmp_path / "whole", config)
    train_in(tmp_path / "run", config, stop_at_iteration=stop)
    assert resume(tmp_path / "run")["weights_sha256"] == whole["weights_sha256"]


def test_episodes_get_the_options_of_the_iteration_in_which_they_begin(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train_in(run_dir, BASE)
    lengths = [float(row["length_mean_100"]) for row in csv_rows(run_dir / "metrics.csv")]
    # Iterations have 16 steps. Episodes of 6 steps end at steps 6, 12, and 18, and episodes of 7 steps at 25 and 32.
    assert lengths[0] == 6
    assert lengths[1] == pytest.approx((6 * 3 + 7 * 2) / 5)
    log = (run_dir / "run.log").read_text()
    assert log.count("get the options") == 6
    assert "episodes that begin in iteration 2 or later get the options {'level': 2}" in log
    assert evaluate(run_dir, episodes=1).lengths == [5 + 6]


def test_a_failed_episode_is_replayed_with_its_options(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with pytest.raises(EnvError, match="too long"):
        train_in(run_dir, BASE, env_kwargs={"raises": True})
    episode = json.loads((run_dir / "failed_episode.json").read_text())
    assert episode["iteration"] >= 4
    with pytest.raises(EnvError, match=f"too long: {5 + episode['iteration']}"):
        replay(run_dir / "failed_episode.json")


REFUSED = {
    "schedules:missing": r"--env-schedule schedules:missing: module schedules has no missing; ",
    "schedules:raises": r"schedules:raises raised ValueError\('no level'\).* for iteration 1; it must return a dict",
    "schedules:number": r"--env-schedule schedules:number returned 1 for iteration 1; it must return a dict",
    "schedules:not_json": r"not_json raised TypeError.* JSON serializable.* for iteration 1; it must return a dict",
    "schedules:too_long": r"too_long returned .* for iteration 1; it must return a dict with at most 65536 bytes",
}


@pytest.mark.parametrize("schedule", REFUSED)
def test_a_bad_schedule_is_refused_in_one_sentence(schedule: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=REFUSED[schedule]):
        train_in(tmp_path / "run", BASE, env_schedule=schedule)


def test_a_reset_that_fails_is_replayed_with_the_options_of_its_iteration(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with pytest.raises(EnvError, match=r"reset\(seed=\d+, options=\{'level': 3\}\).* raised ValueError\('level 3'\)"):
        train_in(run_dir, BASE, env_kwargs={"highest": 2})
    episode = json.loads((run_dir / "failed_episode.json").read_text())
    assert (episode["iteration"], episode["failed_iteration"]) == (2, 3)
    with pytest.raises(EnvError, match="level 3"):
        replay(run_dir / "failed_episode.json")


CHANGES_OPTIONS: dict[str, dict[str, Any]] = {
    "one agent": {"env_kwargs": {"pops": True}},
    "several agents": {"env": "agent_environments:Leveled", "num_envs": 12},
}


@pytest.mark.parametrize("case", slow_after(1, CHANGES_OPTIONS, "4 s"))
def test_an_environment_may_change_its_options(case: str, tmp_path: Path) -> None:
    hashes = set()
    for workers in (0, 2):
        config = dataclasses.replace(BASE, env_schedule="schedules:shared", workers=workers, **CHANGES_OPTIONS[case])
        hashes.add(train_in(tmp_path / str(workers), config)["weights_sha256"])
    assert len(hashes) == 1


DECIDED = dataclasses.replace(
    BASE, env="schedules:Scored", env_schedule="schedules:by_success", learning_rate=0.01, total_steps=4 * 16 * 16,
    eval_every=2, eval_episodes=5, best_by="eval/info/is_success",
    stop_when=("env_steps>=100000", "info/is_success>=0.75"),
)  # fmt: skip


def test_decisions_from_metrics_are_the_same_after_a_kill(tmp_path: Path) -> None:
    """The curriculum reads the success rate, the best checkpoint follows that of evaluations, and it ends the run."""
    summaries = {}
    for name, workers in {"0": 0, "killed": 2}.items():
        config = dataclasses.replace(DECIDED, workers=workers, run_dir=str(tmp_path / name))
        summaries[name] = train(config, callback=kill_a_worker if name == "killed" else None)
    results = {
        (s["weights_sha256"], s["iterations"], s["stop_reason"], s["best_by"], s["best_value"], s["exact"])
        for s in summaries.values()
    }
    assert len(results) == 1, results
    ((_, iterations, reason, best_by, best, exact),) = results
    assert (reason, best_by, exact) == ("info/is_success>=0.75", "eval/info/is_success", True)
    successes = [float(row["info/is_success"]) for row in csv_rows(tmp_path / "0" / "metrics.csv")]
    assert [success >= 0.75 for success in successes] == [False] * (iterations - 1) + [True]
    saved = [load_selected_checkpoint(tmp_path / name, "best") for name in summaries]
    evaluated = {
        int(row["iteration"]): float(row["eval/info/is_success"]) for row in csv_rows(tmp_path / "0" / "eval.csv")
    }
    last_best = max(evaluated, key=lambda iteration: (evaluated[iteration], iteration))
    assert min(evaluated) < last_best, "the metric decides, not the last evaluation"
    assert {checkpoint["iteration"] for checkpoint in saved} == {last_best}
    assert best == saved[0]["metrics"]["eval/info/is_success"] == evaluated[last_best]
    result = evaluate(tmp_path / "0", checkpoint="best", episodes=5)
    assert np.mean(result.info["info/is_success"]) == best
    assert 'reset options of --env-schedule: {"level": ' in as_text(result, EvaluateConfig((tmp_path / "0",)))
    options = json.loads(load_selected_checkpoint(tmp_path / "0")["reset_options"])
    assert options[str(iterations)]["level"] >= 4
    verdict = verify_run(tmp_path / "killed", from_iteration=1, iterations=iterations)
    assert verdict.equal, verdict.text


def test_the_first_condition_that_holds_ends_a_run() -> None:
    length, kl = "length_mean_100>=5", "approx_kl<=0.1"
    decisions, nan = Decisions(dataclasses.replace(BASE, stop_when=(length, kl))), float("nan")
    expected = {(4, 0.2): None, (5, 0.2): length, (4, 0.1): kl, (5, 0.1): length, (nan, nan): None, (nan, 0): kl}
    for values, reason in expected.items():
        row = dict(zip(("length_mean_100", "approx_kl"), values, strict=True))
        assert decisions.reason_to_stop(row) == reason, row
    assert decisions.reason_to_stop({}) is None


def test_a_run_ends_without_progress() -> None:
    decisions, nan = Decisions(dataclasses.replace(BASE, stop_when=("return_mean_100:2",))), float("nan")
    reasons = []
    for value in (1.0, 3.0, nan, 2.0, 4.0, 4.0, nan, 3.5):
        row = {"iteration": 1, "return_mean_100": value}
        decisions.take(row)
        reasons.append(decisions.reason_to_stop(row))
    assert reasons == [*[None] * 7, "return_mean_100:2"]


@pytest.mark.long
def test_the_count_without_progress_survives_a_stop(tmp_path: Path) -> None:
    """The rewards of Counter are the same in every episode, so no evaluation is better than the first one."""
    config = dataclasses.replace(
        BASE, env="environments:Counter", env_schedule=None, eval_every=1, eval_episodes=2, workers=1,
        stop_when=("eval/return:3",), total_steps=16 * 16 * 16,
    )  # fmt: skip
    whole = train_in(tmp_path / "whole", config)
    assert (whole["iterations"], whole["stop_reason"]) == (4, "eval/return:3")
    train_in(tmp_path / "stopped", config, stop_at_iteration=3)
    summary = resume(tmp_path / "stopped", stop_at_iteration=8)
    assert [summary[key] for key in ("iterations", "stop_reason", "exact")] == [4, "eval/return:3", True]
    with pytest.raises(ConfigError, match=r"has ended, because eval/return:3 holds; to train longer"):
        resume(tmp_path / "stopped")
    longer = resume(tmp_path / "stopped", stop_when=("eval/return: 5 ",), best_by="eval/return")
    assert longer["iterations"] == 6, "the highest value is still known"
    other = resume(
        tmp_path / "stopped", stop_when=("eval/return:6",), eval_env_kwargs={"length": 5}, stop_at_iteration=8
    )
    assert other["iterations"] == 8, "evaluations of other episodes are not compared"


def test_the_return_decides_about_equal_values() -> None:
    decisions = Decisions(dataclasses.replace(BASE, eval_every=1, best_by="eval/length"))
    better = []
    for length, mean_return in ((5.0, 1.0), (5.0, 0.5), (5.0, 1.0), (4.0, 9.0), (6.0, 0.0)):
        decisions.take({"iteration": 1, "eval/length": length, "eval/return": mean_return})
        better.append(decisions.better)
        if decisions.better:
            decisions.save_best()
    assert better == [True, False, True, False, True]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"stop_when": ("return>5",)},
            r"--stop-when 'return>5' has another form; write METRIC>=VALUE or METRIC<=VALUE",
        ),
        (
            {"stop_when": ("eval/return:0",)},
            "--stop-when 'eval/return:0' has another form; .*, or METRIC:N with N values",
        ),
        ({"stop_when": ("env_steps>=x",)}, "--stop-when 'env_steps>=x' has another form; .* with a number"),
        ({"stop_when": ("eval/returns>=1",)}, r"eval/returns is not a metric .* \(did you mean eval/return\?\)"),
        ({"stop_when": ("wall_seconds>=1",)}, r"--stop-when wall_seconds is not a metric of .* no duration"),
        ({"stop_when": ("eval/is_success>=1",)}, r"eval/is_success is not .* \(did you mean eval/info/is_success\?\)"),
        ({"best_by": "info/reward_dst"}, r"--best-by info/reward_dst is not .*; for info/KEY, add --info-keys KEY$"),
        ({"best_by": "eval/return"}, r"--best-by eval/return needs evaluations; add --eval-every"),
    ],
)
def test_decisions_that_cannot_be_made_are_refused(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        train_in(tmp_path / "run", BASE, **changes)
    assert not worker_processes()
