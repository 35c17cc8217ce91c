"""Resume from any checkpoint of a run, in a new directory if it is not the newest; and which changes are allowed."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import summary_of
from public_helpers import SIX_ITERATIONS as BASE
from public_helpers import contents, untimed_rows
from rank_processes import directories, finish, output_of, start

from shmppo import resume, train
from shmppo.config.flags import parse_resume, parse_start
from shmppo.config.resumable import RESUMABLE
from shmppo.config.run_options import ReportOptions
from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError, ShmppoError
from shmppo.loggers.metrics import EVALUATION_GLOSSARY
from shmppo.models.actor_critic import weights_sha256
from shmppo.storage.checkpoint import BEST, kept_name, load_selected_checkpoint
from shmppo.storage.run_directory import MetricsFile


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run of 6 iterations that kept those of 2, 4, 5, and 6. The tests do not change it."""
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    config = dataclasses.replace(BASE, checkpoint_every=1, keep_every=2, kl_profile_every=2, run_dir=str(run_dir))
    train(config)
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
    assert sorted(path.name for path in (fork / "kl").iterdir()) == sorted(p.name for p in (whole / "kl").iterdir())
    assert [row["iteration"] for row in untimed_rows(fork / "eval.csv")] == ["2", "4"][: iteration // 2]
    origin = json.loads((fork / "config.json").read_text())["resumed_from"]
    state = load_selected_checkpoint(whole, iteration)
    weights = weights_sha256(state["learner"]["model"].values())
    assert origin == {"path": str(whole), "iteration": iteration, "weights_sha256": weights}


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
    train(dataclasses.replace(BASE, stop_at_iteration=2, run_dir=str(run_dir)))
    before = contents(run_dir)
    assert resume(run_dir, new_run_dir=fork, stop_at_iteration=3)["iterations"] == 3
    assert contents(run_dir) == before
    with pytest.raises(ConfigError, match="holds a run already"):
        resume(run_dir, new_run_dir=fork)


def test_a_checkpoint_of_another_run_is_refused(whole: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    train(dataclasses.replace(BASE, seed=2, gamma=0.9, stop_at_iteration=1, run_dir=str(other)))
    with pytest.raises(ConfigError, match=r"belongs to another run than .*: they differ in --seed, --gamma; name a"):
        resume(whole, checkpoint=other / "checkpoint.pt")


def test_the_configuration_file_has_the_options_of_the_resume(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train(dataclasses.replace(BASE, total_steps=4 * 32 * 2, lr_schedule="constant", run_dir=str(run_dir)))
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
    with pytest.raises(ConfigError, match=r"^--gamma and --seed belong to the run .* --gamma 0\.5 --seed 7$"):
        resume(whole, gamma=0.5, seed=7, workers=2)
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
    train(dataclasses.replace(config, stop_at_iteration=stop, run_dir=str(tmp_path / "run")))
    summary = resume(tmp_path / "run", **changes)
    assert summary["exact"]
    fields = {"anneal_steps": 4 * 32 * 3, **changes}
    straight = train(dataclasses.replace(config, **fields, run_dir=str(tmp_path / "straight")))
    assert summary["weights_sha256"] == straight["weights_sha256"]


def test_a_change_that_alters_only_the_last_finished_iteration_makes_the_run_inexact(
    whole: Path, tmp_path: Path
) -> None:
    """The learning rate of iteration 1 does not depend on the annealing horizon, but that of iteration 2 does."""
    changes = {"anneal_steps": 4 * 32 * 9, "stop_at_iteration": 3}
    summary = resume(whole, checkpoint=2, new_run_dir=tmp_path / "fork", **changes)
    reason = "resumed at iteration 2 with --anneal-steps 1152, but the iterations before it had 768"
    assert summary["inexact_reasons"] == [reason]


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
    with pytest.raises(ConfigError, match=r"--learning-rate belongs to the run .* --learning-rate 0\.1$"):
        parse_resume(["--resume", "a", "--learning-rate", "0.1"])


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
    config = dataclasses.replace(
        BASE,
        env="faulty_environments:FaultyInEvaluation",
        eval_every=7,
        eval_env_kwargs={"fails": True},
        run_dir=str(tmp_path / "run"),
    )
    with pytest.raises(ShmppoError, match="the evaluation of iteration 6 failed"):
        train(config)
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
