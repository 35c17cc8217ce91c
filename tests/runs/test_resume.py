"""Resume from any checkpoint of a run, in a new directory if it is not the newest; and which changes are allowed.

Also runs that ended early after their last iteration, and episodes that cannot be replayed because they are too long.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from public_helpers import SIX_ITERATIONS as BASE
from public_helpers import contents, csv_rows, refused, summary_of, train_in, untimed_rows
from rank_processes import directories, finish, output_of, start

from shmppo import load_policy, resume, train
from shmppo.config.flags import parse_resume, parse_start
from shmppo.config.resumable import RESUMABLE
from shmppo.config.run_options import ReportOptions
from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError, ShmppoError
from shmppo.lockstep.learner import Learner
from shmppo.loggers.metrics import EVALUATION_GLOSSARY, HASHES
from shmppo.loggers.trackers import Row
from shmppo.models.actor_critic import weights_sha256
from shmppo.runs.evaluation import Evaluations
from shmppo.runs.outputs import Outputs
from shmppo.storage.checkpoint import BEST, kept_name, load_selected_checkpoint
from shmppo.storage.run_directory import MetricsFile
from shmppo.tools.run_process import RunProcess


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run of 6 iterations that kept those of 2, 4, 5, and 6. The tests do not change it."""
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    train_in(run_dir, BASE, checkpoint_every=1, keep_every=2, kl_profile_every=2)
    evaluations = MetricsFile(run_dir / "eval.csv", tuple(EVALUATION_GLOSSARY))
    for iteration in (2, 4):
        evaluations.write(dict.fromkeys(EVALUATION_GLOSSARY, 20.5) | {"iteration": iteration})
    return run_dir


def copy_of(run_dir: Path, target: Path) -> Path:
    return Path(shutil.copytree(run_dir, target))


@pytest.mark.parametrize(("iteration", "workers"), [(2, 0), (4, 2)])
def test_an_older_checkpoint_continues_in_a_new_directory_as_the_same_run(
    iteration: int, workers: int, whole: Path, tmp_path: Path
) -> None:
    before, fork = contents(whole), tmp_path / "fork"
    summary = resume(whole, checkpoint=iteration, new_run_dir=fork, workers=workers)
    assert contents(whole) == before
    assert (summary["run_dir"], summary["exact"]) == (str(fork), True)
    assert summary["weights_sha256"] == summary_of(whole)["weights_sha256"]
    rows = untimed_rows(fork / "metrics.csv")
    assert [row["iteration"] for row in rows] == ["1", "2", "3", "4", "5", "6"]
    assert rows == [
        row | {"slowest_worker": rows[i]["slowest_worker"]} for i, row in enumerate(untimed_rows(whole / "metrics.csv"))
    ]
    assert untimed_rows(fork / "kl.csv") == untimed_rows(whole / "kl.csv")
    assert [row["iteration"] for row in untimed_rows(fork / "kl.csv")] == ["1", "3", "5"]
    assert sorted(path.name for path in (fork / "kl").iterdir()) == sorted(p.name for p in (whole / "kl").iterdir())
    assert [row["iteration"] for row in untimed_rows(fork / "eval.csv")] == ["2", "4"][: iteration // 2]
    state = load_selected_checkpoint(whole, iteration)
    weights = weights_sha256(state["learner"]["model"].values())
    origin = {"path": str(whole), "iteration": iteration, "weights_sha256": weights, "changes": {}}
    assert summary["branched_from"] == origin | {"branched_from": None}
    assert json.loads((fork / "config.json").read_text())["branched_from"] == summary["branched_from"]


def test_the_default_directory_is_named_after_run_and_iteration(whole: Path, tmp_path: Path) -> None:
    run_dir = copy_of(whole, tmp_path / "run")
    paths = [resume(run_dir, checkpoint=which, stop_at_iteration=5)["run_dir"] for which in (4, "4")]
    assert paths == [f"{run_dir}-from-000004", f"{run_dir}-from-000004-2"]


def test_a_chosen_checkpoint_needs_no_other_one(whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run_dir = copy_of(whole, tmp_path / "run")
    for path in run_dir.glob("checkpoint*.pt"):
        path.write_bytes(b"torn")
    shutil.copyfile(whole / kept_name(2), run_dir / BEST)
    assert resume(run_dir, checkpoint="best", stop_at_iteration=3)["run_dir"] == f"{run_dir}-from-000002"
    assert capfd.readouterr().err == ""


def test_the_newest_checkpoint_can_also_continue_in_a_new_directory(tmp_path: Path) -> None:
    run_dir, fork = tmp_path / "run", tmp_path / "fork"
    train_in(run_dir, BASE, stop_at_iteration=2)
    before = contents(run_dir)
    assert resume(run_dir, new_run_dir=fork, stop_at_iteration=3)["iterations"] == 3
    assert contents(run_dir) == before
    with pytest.raises(ConfigError, match="holds a run already"):
        resume(run_dir, new_run_dir=fork)


def test_a_checkpoint_of_another_run_is_refused(whole: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    train_in(other, BASE, seed=2, gamma=0.9, stop_at_iteration=1)
    with pytest.raises(ConfigError, match=r"belongs to another run than .*: they differ in --seed, --gamma; name a"):
        resume(whole, checkpoint=other / "checkpoint.pt")


def test_the_configuration_file_has_the_options_of_the_resume(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train_in(run_dir, BASE, total_steps=4 * 32 * 2, lr_schedule="constant")
    before = json.loads((run_dir / "config.json").read_text())
    whole = resume(run_dir, total_steps=4 * 32 * 4)
    again, _ = parse_start(["--config", str(run_dir / "config.json"), "--run-dir", str(tmp_path / "again")])
    assert train(again)["weights_sha256"] == whole["weights_sha256"]
    after = json.loads((run_dir / "config.json").read_text())
    assert after == before | {"config": whole["config"]}
    (run_dir / "config.json").write_text("{")
    assert resume(run_dir, total_steps=4 * 32 * 5)["iterations"] == 5


def test_a_stop_before_the_checkpoint_is_refused_with_the_flag_to_change(whole: Path) -> None:
    with pytest.raises(ConfigError, match="4 iterations, 3 were asked for; to train longer, raise --stop-at"):
        resume(whole, checkpoint=4, stop_at_iteration=3)


def test_several_refused_changes_are_named_together(whole: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--gamma and --seed cannot change .* --gamma 0\.5 --seed 7 --workers 2$"):
        resume(whole, gamma=0.5, seed=7, workers=2)
    with pytest.raises(ConfigError, match=r"^--seed cannot change .* --gamma 0\.5 --seed 7$"):
        resume(whole, checkpoint=2, gamma=0.5, seed=7)
    with pytest.raises(ConfigError, match=r"there is no field gama \(did you mean gamma\?\)"):
        resume(whole, gama=0.5)


def test_every_changeable_field_exists_and_every_report_is_changeable() -> None:
    names = {field.name for field in dataclasses.fields(TrainConfig)}
    assert set(RESUMABLE) <= names
    assert len(set(RESUMABLE)) == len(RESUMABLE)
    assert {field.name for field in dataclasses.fields(ReportOptions)} <= set(RESUMABLE)


EXACT: dict[str, tuple[dict[str, Any], int, dict[str, Any]]] = {
    "more steps": ({"lr_schedule": "constant"}, 2, {"total_steps": 4 * 32 * 4}),
    "annealing without a schedule": ({"lr_schedule": "constant"}, 2, {"anneal_steps": 4 * 32 * 9}),
    "annealing after one iteration": ({}, 1, {"anneal_steps": 4 * 32 * 9}),
    "fewer steps": ({}, 1, {"total_steps": 4 * 32 * 2}),
}
"""Options of the run, iterations before the stop, and changes: a new run with the changes has the same weights."""


@pytest.mark.parametrize("case", EXACT)
def test_a_change_that_alters_no_schedule_keeps_the_run_exact(case: str, tmp_path: Path) -> None:
    options, stop, changes = EXACT[case]
    config = dataclasses.replace(BASE, total_steps=4 * 32 * 3, **options)
    train_in(tmp_path / "run", config, stop_at_iteration=stop)
    summary = resume(tmp_path / "run", **changes)
    assert summary["exact"]
    fields = {"anneal_steps": 4 * 32 * 3, **changes}
    straight = train_in(tmp_path / "straight", config, **fields)
    assert summary["weights_sha256"] == straight["weights_sha256"]


def test_a_change_that_alters_only_the_last_finished_iteration_makes_the_run_inexact(tmp_path: Path) -> None:
    """The learning rate of iteration 1 does not depend on the annealing horizon, but that of iteration 2 does."""
    run_dir = tmp_path / "run"
    train_in(run_dir, BASE, stop_at_iteration=2)
    summary = resume(run_dir, anneal_steps=4 * 32 * 9, stop_at_iteration=3)
    reason = "resumed at iteration 2 with --anneal-steps 1152, but the iterations before it had 768"
    assert (summary["exact"], summary["inexact_reasons"]) == (False, [reason])
    assert summary_of(run_dir)["inexact_reasons"] == [reason]
    assert load_policy(run_dir).iteration == 3
    assert resume(run_dir, stop_at_iteration=4)["inexact_reasons"] == [reason], "for good"
    branch = resume(run_dir, new_run_dir=tmp_path / "branch", gamma=0.9, stop_at_iteration=5)
    assert (branch["exact"], branch["inexact_reasons"]) == (False, [reason]), "for branches, too"
    assert f"not exact: {reason}" in (run_dir / "run.log").read_text()


RESUMED = {"checkpoint": "last", "new_run_dir": None, "trust": (), "quiet": False}


def test_the_command_line_gives_only_the_flags_that_are_on_it() -> None:
    assert parse_resume(["--resume", "a"]) == (Path("a").absolute(), RESUMED)
    assert parse_resume(["--resume=~/a"])[0] == Path.home() / "a"  # a shell does not replace this ~
    arguments = "--resume a --checkpoint 4 --run-dir b --total_steps 5 --track tensorboard --no-quiet --keep-every None"
    arguments += " --trust c --trust d.e"
    assert parse_resume(arguments.split())[1] == {
        "checkpoint": "4", "new_run_dir": Path("b"), "total_steps": 5, "track": ("tensorboard",), "quiet": False,
        "keep_every": None, "trust": ("c", "d.e"),
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"^--seed cannot change .* --run-dir b --gamma 0\.1 --seed=2$"):
        parse_resume(["--resume", "a", "--run-dir", "b", "--gamma", "0.1", "--seed=2"])


def test_ranks_that_torchrun_restarts_stop_where_the_command_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = dataclasses.replace(BASE, run_dir=str(tmp_path / "run"))
    train(dataclasses.replace(config, stop_at_iteration=1))
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert train(dataclasses.replace(config, stop_at_iteration=2))["iterations"] == 2
    with pytest.raises(ConfigError, match=f"^{tmp_path}/run has a run with another --gamma; name another directory$"):
        train(dataclasses.replace(config, gamma=0.5))


def test_a_run_whose_last_evaluation_fails_can_be_resumed(tmp_path: Path) -> None:
    faulty = {"env": "faulty_environments:FaultyInEvaluation", "eval_env_kwargs": {"fails": True}}
    with pytest.raises(ShmppoError, match="the evaluation of iteration 6 failed"):
        train_in(tmp_path / "run", BASE, eval_every=7, **faulty)
    assert resume(tmp_path / "run", eval_env_kwargs={"fails": False})["evaluation"]["iteration"] == 6


@pytest.mark.slow(reason="about 40 s")
@pytest.mark.usefixtures("environments_importable")
def test_two_ranks_resume_an_older_checkpoint(tmp_path: Path) -> None:
    run_dir, fork = tmp_path / "run", tmp_path / "fork"
    finish(start(run_dir, "--total-steps", 128 * 4, "--keep-every", 2))
    finish(start(run_dir, "--resume", run_dir, "--checkpoint", 2, "--run-dir", fork))
    for old, new in zip(directories(run_dir), directories(fork), strict=True):
        assert summary_of(new)["weights_sha256"] == summary_of(old)["weights_sha256"]
        assert [row["iteration"] for row in untimed_rows(new / "metrics.csv")] == ["1", "2", "3", "4"]
    third = start(run_dir, "--resume", run_dir, "--checkpoint", run_dir / "checkpoint.pt")
    output = output_of(third)
    assert third.returncode != 0
    assert "is one file, but each of the 2 ranks needs its own; name last, best, or an iteration" in output


FIXED: dict[str, Any] = {
    "num_envs": 8, "env": "Pendulum-v1", "separate_critic": "all", "hide_obs": (1, 3), "init_from": "runs/a",
    "rollout_steps": 16, "optimizer": "sgd", "kernel": "torch",
}  # fmt: skip
"""Options that no resume may change."""


@pytest.mark.parametrize("name", FIXED)
def test_a_change_of_the_weights_is_refused_with_the_command_for_a_new_run(name: str, whole: Path) -> None:
    flag = f"--{name.replace('_', '-')}"
    before = contents(whole)
    for where in ({}, {"checkpoint": 2}):
        with refused(f"^{flag} cannot change when .*train --init-from {whole} {flag}"):
            resume(whole, **where, **{name: FIXED[name]})
    assert contents(whole) == before


@pytest.mark.parametrize("ends_by", ["length", "condition"])
@pytest.mark.parametrize("when", ["before the evaluation", "before the summary", "after the summary"])
def test_a_run_that_ends_early_after_its_last_iteration_can_be_finished(
    when: str, ends_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its evaluations depend on the options of its last iteration."""
    config = dataclasses.replace(
        BASE, env="schedules:Leveled", env_schedule="schedules:levels", eval_every=4, eval_episodes=2,
        run_dir=str(tmp_path / "run"),
    )  # fmt: skip
    if ends_by == "condition":
        config = dataclasses.replace(config, total_steps=2 * BASE.total_steps, stop_when=("iteration>=6",))
    whole = train_in(tmp_path / "whole", config)
    write, evaluate = Outputs.write_summary, Evaluations.evaluate

    def stop(at: str) -> None:
        if when == at:
            raise KeyboardInterrupt

    def written(outputs: Outputs, summary: dict[str, Any]) -> None:
        if summary["error"] is None:
            stop("before the summary")
        write(outputs, summary)
        if summary["error"] is None:
            stop("after the summary")

    def evaluated(evaluations: Evaluations, learner: Learner, *arguments: Any) -> Row:
        if arguments[-1] == 6:
            stop("before the evaluation")
        return evaluate(evaluations, learner, *arguments)

    monkeypatch.setattr(Outputs, "write_summary", written)
    monkeypatch.setattr(Evaluations, "evaluate", evaluated)
    with pytest.raises(KeyboardInterrupt):
        train(config, callback=lambda row, run: run.save("own"))
    monkeypatch.undo()
    assert not RunProcess(config, tmp_path / "run").finished
    before = contents(tmp_path / "run")
    with pytest.raises(ConfigError, match="has finished 6 iterations, 3 were asked for"):
        resume(tmp_path / "run", stop_at_iteration=3, trust="schedules")
    assert contents(tmp_path / "run") == before
    summary = resume(tmp_path / "run", trust="schedules")
    assert (summary["error"], summary["stop_reason"]) == (None, whole["stop_reason"])
    assert summary["iterations"] == 6
    assert (summary["weights_sha256"], summary["best_value"]) == (whole["weights_sha256"], whole["best_value"])
    for name in ("metrics.csv", "eval.csv"):
        assert untimed_rows(tmp_path / "run" / name) == untimed_rows(tmp_path / "whole" / name)
    text = (
        "has finished 6 iterations, 6 were .* above 768"
        if ends_by == "length"
        else "has ended, because iteration>=6 holds"
    )
    with pytest.raises(ConfigError, match=text):
        resume(tmp_path / "run", trust="schedules")


def test_a_pause_leaves_no_evaluation_that_an_undisturbed_run_lacks(tmp_path: Path) -> None:
    config = dataclasses.replace(BASE, eval_every=2, eval_episodes=2)
    train_in(tmp_path / "whole", config)
    train_in(tmp_path / "run", config, stop_at_iteration=3)
    assert len(untimed_rows(tmp_path / "run" / "eval.csv")) == 2, "of iteration 2 and of the pause"
    resume(tmp_path / "run", stop_at_iteration=4)
    resume(tmp_path / "run", stop_at_iteration=None)
    assert untimed_rows(tmp_path / "run" / "eval.csv") == untimed_rows(tmp_path / "whole" / "eval.csv")


SHORT = dataclasses.replace(BASE, rollout_steps=5, seq_len=5, total_steps=4 * 5 * 4)


def last_row(run_dir: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> dict[str, float]:
    """Stop and resume a run of 4 iterations, lose the episodes in progress, and return its last row of metrics.csv."""
    monkeypatch.setattr("shmppo.runs.train_state.REPLAY_LIMIT", 1)
    assert train_in(run_dir, SHORT, **changes)["exact"]
    assert load_selected_checkpoint(run_dir)["actions"]["actions"].numel() == 0
    reasons = resume(run_dir)["inexact_reasons"]
    assert reasons[0] == "environment 0: its episode could not be replayed and was restarted"
    return {name: float(text) for name, text in csv_rows(run_dir / "metrics.csv")[-1].items() if name not in HASHES}


def test_a_lost_episode_does_not_count_for_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each episode of `Counter` has 7 steps with a reward of 1."""
    row = last_row(tmp_path / "run", monkeypatch, env="environments:Counter", stop_at_iteration=1)
    assert (row["return_mean_100"], row["length_mean_100"]) == (7, 7)


def test_the_info_of_a_lost_episode_does_not_count_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ("reward/distance:sum", "reward/control:sum")
    row = last_row(tmp_path / "run", monkeypatch, env="environments:Reach", info_keys=keys, stop_at_iteration=2)
    assert row["info/reward/distance"] + row["info/reward/control"] == pytest.approx(row["return_mean_100"])


def test_an_episode_that_replaces_a_lost_one_can_be_restored_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = dataclasses.replace(SHORT, env="schedules:Leveled", env_schedule="schedules:levels", rollout_steps=4)
    with monkeypatch.context() as patch:
        patch.setattr("shmppo.runs.train_state.REPLAY_LIMIT", 3)
        train_in(tmp_path / "run", config, seq_len=4, stop_at_iteration=1)
    assert not resume(tmp_path / "run", stop_at_iteration=2)["exact"]
    assert load_selected_checkpoint(tmp_path / "run")["actions"]["numbers"].tolist() == [1] * 4
    resume(tmp_path / "run", stop_at_iteration=3)
    # Episodes of 7 steps that began in iteration 2 end in iteration 3. The next ones have one step.
    actions = load_selected_checkpoint(tmp_path / "run")["actions"]
    assert (actions["numbers"].tolist(), actions["lengths"].tolist()) == ([2] * 4, [1] * 4)
