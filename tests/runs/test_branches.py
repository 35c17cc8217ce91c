"""Branches: runs that continue another run in a new directory, with other options."""

from __future__ import annotations

import dataclasses
import shlex
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from cases import DISTURBANCES, LAST, Disturbance, assert_same_numbers, configuration, disturb
from public_helpers import SIX_ITERATIONS as BASE
from public_helpers import csv_rows, exit_code, python, refused, run_fixture, summary_of, train_in

from shmppo import resume, train
from shmppo.config.option import fields_with
from shmppo.config.resumable import BRANCHABLE, resumed_config
from shmppo.config.train_config import TrainConfig
from shmppo.loggers.metrics import HASHES, STATE_HASH
from shmppo.plotting.curves import group_runs, read_run
from shmppo.runs.train_state import state_digests
from shmppo.storage.checkpoint import kept_name, load_selected_checkpoint
from shmppo.storage.checkpoint_file import load_checkpoint
from shmppo.tools.export_policy import export_policy
from shmppo.tools.verify import compare_runs, verify_run
from shmppo.train import main

CHANGES: dict[str, Any] = {"learning_rate": 3e-3, "epochs": 3, "entropy_coef": 0.02}
BEGIN = 1
"""Iteration after which the branches of `parent` begin."""

whole = run_fixture(BASE, keep_every=2)
"""A run of 6 iterations that kept the checkpoints of 2, 4, and 6. The tests do not change it."""


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("parent") / "run"
    train(configuration("lstm", run_dir, workers=0, stop_at_iteration=BEGIN))
    return run_dir


@pytest.fixture(scope="module")
def undisturbed(parent: Path) -> Path:
    """A branch of `parent` with two workers."""
    run_dir = parent.parent / "branch"
    summary = disturb("lstm", Disturbance(2), run_dir, parent, **CHANGES)
    assert summary["exact"]
    assert (
        csv_rows(run_dir / "metrics.csv")[BEGIN]["learning_rate"]
        != csv_rows(parent / "metrics.csv")[0]["learning_rate"]
    )
    return run_dir


FAST = ("no worker", "several")


@pytest.mark.parametrize(
    "how",
    [
        how if how in FAST else pytest.param(how, marks=pytest.mark.long)
        for how, disturbance in DISTURBANCES.items()
        if disturbance.killed != BEGIN
    ],
)
def test_a_disturbance_changes_no_number_of_a_branch(how: str, parent: Path, undisturbed: Path, tmp_path: Path) -> None:
    summary = disturb("lstm", DISTURBANCES[how], tmp_path / "branch", parent, **CHANGES)
    assert summary["exact"], summary["inexact_reasons"]
    assert summary["weights_sha256"] == summary_of(undisturbed)["weights_sha256"]
    assert {name: summary["config"][name] for name in CHANGES} == CHANGES
    assert_same_numbers(tmp_path / "branch", undisturbed)


@pytest.mark.long
@pytest.mark.parametrize("case", ["self-play", "teacher", "schedule", "torch", "snapshots", "vector", "decisions"])
def test_a_disturbance_changes_no_number_of_branches_with_other_features(case: str, tmp_path: Path) -> None:
    parent, one, other = tmp_path / "parent", tmp_path / "one", tmp_path / "other"
    train(configuration(case, parent, workers=0, stop_at_iteration=BEGIN))
    disturb(case, Disturbance(2), one, parent, **CHANGES)
    summary = disturb(case, DISTURBANCES["several"], other, parent, **CHANGES)
    assert summary["exact"], summary["inexact_reasons"]
    assert_same_numbers(other, one)
    shutil.rmtree(parent)
    assert verify_run(other, from_iteration=BEGIN).equal


KILLED = f"""
import os, signal, sys
from ast import literal_eval
from shmppo import resume

def kill(row):
    if row["iteration"] == {LAST - 1}:
        os.kill(os.getpid(), signal.SIGKILL)

resume(sys.argv[1], new_run_dir=sys.argv[2], workers=1, callback=kill, **literal_eval(sys.argv[3]))
"""


@pytest.mark.long
def test_a_branch_whose_learner_is_killed_ends_with_the_same_weights(
    parent: Path, undisturbed: Path, tmp_path: Path
) -> None:
    killed = python("-c", KILLED, parent, tmp_path / "branch", repr(CHANGES))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(csv_rows(tmp_path / "branch" / "metrics.csv")) == LAST - 1
    resume(tmp_path / "branch", workers=2, stop_at_iteration=LAST)
    assert_same_numbers(tmp_path / "branch", undisturbed)


@pytest.mark.long
def test_a_branch_and_its_branch_can_be_verified_after_their_parents_were_deleted(whole: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    parent = Path(shutil.copytree(whole, tmp_path / "parent"))
    middle = resume(parent, checkpoint=2, new_run_dir=first, stop_at_iteration=4, checkpoint_every=1, **CHANGES)
    own, copied = (load_checkpoint(run_dir / kept_name(2)) for run_dir in (parent, first))
    digests = state_digests(own)
    changed = {name: state_digests(copied)[name] for name in ("schedule", STATE_HASH)}
    assert state_digests(copied) == digests | changed
    shutil.rmtree(parent)
    assert verify_run(first, from_iteration=2).text.startswith(f"{first}: iterations 3 to 4 gave the same results")
    end = resume(first, new_run_dir=second, gamma=0.9, checkpoint_every=1)
    shutil.rmtree(first)
    assert verify_run(second, from_iteration=4).text.startswith(f"{second}: iterations 5 to 6 gave the same results")
    assert verify_run(second).equal
    record = end["branched_from"]
    assert (record["path"], record["iteration"], record["changes"]) == (str(first), 4, {"gamma": 0.9})
    assert record["weights_sha256"] == middle["weights_sha256"]
    assert record["branched_from"] == middle["branched_from"]
    assert (middle["branched_from"]["path"], middle["branched_from"]["changes"]) == (str(parent), CHANGES)
    assert end["exact"]


def test_iterations_of_the_parent_are_not_verified_with_the_options_of_the_branch(whole: Path, tmp_path: Path) -> None:
    branch, other = tmp_path / "branch", tmp_path / "other"
    resume(whole, checkpoint=4, new_run_dir=branch, checkpoint_every=1, **CHANGES)
    train_in(other, BASE, seed=2, stop_at_iteration=1)
    owned = f"has(?: finished)? 6 iterations, of which 4 belong to {whole}"
    with refused(f"^--from-iteration is 3, but {branch} {owned}; use 4 … 5$"):
        verify_run(branch, from_iteration=3)
    with refused(f"^{branch} {owned}, and no checkpoint of its own before iteration 1; name a run that has one$"):
        compare_runs((branch, other))
    with refused(f"^{tmp_path}/policy {owned}, and no checkpoint of its own before iteration 6; name a run"):
        verify_run(export_policy(branch, out=tmp_path / "policy"))
    lines = compare_runs((whole, branch)).text.splitlines()
    assert lines[0].startswith(f"{whole} and {branch} differ first in iteration 5: weights_hash")
    assert lines[2].startswith("first field: schedule at the start")


def test_a_branch_that_has_trained_nothing_is_undamaged(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shmppo.runs.launch.train_iterations", lambda session: None)
    summary = resume(whole, checkpoint=4, new_run_dir=tmp_path / "branch", **CHANGES)
    assert (summary["iterations"], summary["branched_from"]["weights_sha256"]) == (4, summary["weights_sha256"])
    assert "all checkpoints are undamaged" in verify_run(tmp_path / "branch").text


def row_after(branch: Path) -> dict[str, float]:
    """The row of the first iteration of a branch that begins at iteration 4."""
    return {name: float(text) for name, text in csv_rows(branch / "metrics.csv")[4].items() if name not in HASHES}


def test_values_that_training_has_adapted_are_replaced_only_if_their_option_is_given(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    adapted = {"lr_schedule": "kl-adaptive", "objective": "penalty", "desired_kl": 1e-4}
    train_in(run_dir, BASE, stop_at_iteration=4, **adapted)
    state = load_selected_checkpoint(run_dir)["learner"]["schedule"]
    assert state["adapted_rate"] != BASE.learning_rate
    assert state["penalty_coef"] != 1
    for given, (rate, coefficient) in {
        ("gamma",): (state["adapted_rate"], state["penalty_coef"]),
        ("learning_rate",): (BASE.learning_rate, state["penalty_coef"]),
        ("learning_rate", "objective"): (BASE.learning_rate, 1),
    }.items():
        values = {"gamma": 0.9, "learning_rate": BASE.learning_rate, "objective": "penalty"}
        branch = tmp_path / "-".join(given)
        resume(run_dir, new_run_dir=branch, stop_at_iteration=5, **{name: values[name] for name in given})
        row = row_after(branch)
        assert (row["learning_rate"], row["penalty_coef"]) == pytest.approx((rate, coefficient), rel=1e-8)
    resume(run_dir, learning_rate=BASE.learning_rate, stop_at_iteration=5)
    assert row_after(run_dir)["learning_rate"] == pytest.approx(state["adapted_rate"], rel=1e-8), "in its directory"


def test_schedules_use_the_iteration_of_the_whole_run(whole: Path, tmp_path: Path) -> None:
    branch = tmp_path / "branch"
    changes = {"learning_rate": 3e-3, "entropy_coef": 0.6, "anneal_entropy": True}
    assert resume(whole, checkpoint=4, new_run_dir=branch, **changes)["exact"]
    row = row_after(branch)
    assert (row["learning_rate"], row["entropy_coef"]) == pytest.approx((3e-3 / 3, 0.2), rel=1e-8)


def test_another_annealing_horizon_keeps_a_branch_exact(whole: Path, tmp_path: Path) -> None:
    summary = resume(whole, checkpoint=4, new_run_dir=tmp_path / "branch", anneal_steps=4 * 32 * 9)
    assert (summary["exact"], summary["branched_from"]["changes"]) == (True, {"anneal_steps": 4 * 32 * 9})


def test_the_message_of_a_resume_contains_the_command_that_branches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    train_in(run_dir, BASE, stop_at_iteration=1)
    flags = ["--learning-rate", "0.01", "--epochs", "1", "--stop-at-iteration", "2"]
    assert exit_code(main, ["--resume", run_dir, *flags]) == 2
    message = capsys.readouterr().err.strip()
    text = "--epochs and --learning-rate cannot change in the directory of a run; continue in a new one: "
    assert message.startswith(f"error: {text}")
    command = shlex.split(message.partition("new one: ")[2])
    assert exit_code(main, command[command.index("--resume") :]) == 0
    branch = summary_of(Path(f"{run_dir}-branch"))
    assert (branch["iterations"], branch["branched_from"]["changes"]) == (2, {"epochs": 1, "learning_rate": 0.01})


def test_a_plot_draws_a_branch_from_the_curve_of_its_parent(whole: Path, tmp_path: Path) -> None:
    resume(whole, checkpoint=4, new_run_dir=tmp_path / "branch", learning_rate=3e-3)
    runs = [read_run(whole), read_run(tmp_path / "branch")]
    assert list(group_runs(runs)) == ["learning_rate 0.001", "learning_rate 0.003"]
    (x, y), (own_x, own_y) = (run.curve("approx_kl", "env_steps") or ((), ()) for run in runs)
    assert (list(x[:4]), list(y[:4])) == (list(own_x[:4]), list(own_y[:4]))
    assert len(own_y) == len(y)
    assert y[5] != own_y[5]


def test_a_branch_has_the_environments_of_its_parent() -> None:
    """Recorded episodes would replace them."""
    clone = TrainConfig(objective="clone", demonstrations="episodes.npz")
    for stored, fields in ((BASE, clone.fields()), (clone, BASE.fields())):
        changes = {name: fields[name] for name in ("objective", "demonstrations")}
        with refused("^--objective cannot change when a run is resumed.* --demonstrations [^ ]+$"):
            resumed_config(stored, changes, Path("run"), branch=True)


OTHER_VALUES: dict[str, Any] = {
    "log_std_min": 0.0, "epochs": 1, "minibatches": 1, "gamma": 0.9, "gae_lambda": 0.8,
    "truncation_is_termination": True, "advantage_norm": "global", "normalize_obs": False, "clip_reward": 0.5,
    "normalize_reward": False, "grad_shards": 3, "objective": "penalty", "ratio": "per-dimension", "clip": 1e-3,
    "desired_kl": 0.1, "target_kl": 1e-9, "value_clip": True, "value_coef": 1.0, "entropy_coef": 0.1,
    "anneal_entropy": True, "critic_warmup_steps": 4 * 32 * 5, "learning_rate": 0.01, "lr_schedule": "constant",
    "adam_eps": 1e-3, "max_grad_norm": 1e-3, "autocast": "bf16", "opponent_every": 3, "preempt_fraction": 0.5,
    "teacher_coef": 0.5, "teacher_steps": 1000,
}  # fmt: skip
"""Another value of each option that only a branch may change."""
WITHOUT_EFFECT = {
    "anneal_entropy", "desired_kl", "opponent_every", "preempt_fraction", "ratio", "teacher_coef", "teacher_steps",
    "truncation_is_termination", "value_clip",
}  # fmt: skip
"""Options that change no weights in the test below, because the run has one action, no worker, no end of an episode, or
not the option that they need."""
CONTINUOUS = dataclasses.replace(
    BASE, env="Pendulum-v1", hide_obs=(2,), separate_critic="all", stop_at_iteration=2, kernel="torch"
)
pendulum = run_fixture(CONTINUOUS)


@pytest.fixture(scope="module")
def unchanged(pendulum: Path) -> str:
    """The hash of a branch without changes, one iteration after its beginning."""
    weights: str = resume(pendulum, new_run_dir=pendulum.parent / "branch", stop_at_iteration=3)["weights_sha256"]
    return weights


def test_each_option_of_a_branch_has_another_value_here() -> None:
    assert sorted(OTHER_VALUES) == sorted(fields_with(TrainConfig, branchable=True))
    assert set(OTHER_VALUES) <= set(BRANCHABLE)


@pytest.mark.long
@pytest.mark.parametrize("name", OTHER_VALUES)
def test_each_option_of_a_branch_changes_its_weights_and_leaves_it_exact(
    name: str, pendulum: Path, unchanged: str, tmp_path: Path
) -> None:
    branch = resume(pendulum, new_run_dir=tmp_path / "branch", stop_at_iteration=3, **{name: OTHER_VALUES[name]})
    assert branch["exact"] == (name != "preempt_fraction"), branch["inexact_reasons"]
    assert branch["branched_from"]["changes"] == {name: OTHER_VALUES[name]}
    assert (branch["weights_sha256"] == unchanged) == (name in WITHOUT_EFFECT)
