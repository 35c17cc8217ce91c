"""Code of the experiments in figures/: updates on subsets, resumed runs, and interleaved runs."""

from __future__ import annotations

import dataclasses
import json
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from public_helpers import SIX_ITERATIONS

from figures.common import evaluated_runs
from figures.common.interleaved import spread, started
from figures.common.provenance import record_provenance
from figures.common.tables import read_rows
from figures.kl import subsets
from figures.search.measure import FOLDER, TASKS
from shmppo import TrainConfig, preset, resume, train
from shmppo.config.checks import flags_with_values
from shmppo.config.flags import parse_start
from shmppo.envs.inspection import inspect_task
from shmppo.models.actor_critic import build_model, move_parameters, weights_sha256
from shmppo.storage.checkpoint import load_selected_checkpoint

TRAIN = (
    "-m", "shmppo.train", "--env", "CartPole-v1", "--hidden-size", 8, "--num-envs", 4, "--rollout-steps", 32,
    "--minibatches", 2, "--total-steps", 1280,
)  # fmt: skip
SMALL = dataclasses.replace(SIX_ITERATIONS, env="Pendulum-v1", core="none", rollout_steps=16, stop_at_iteration=2)


@pytest.fixture
def config(tmp_path: Path) -> TrainConfig:
    """The configuration of a run that has finished two iterations."""
    config = dataclasses.replace(SMALL, run_dir=str(tmp_path / "run"))
    train(config)
    return config


def test_update_on_all_environments_is_the_next_update_of_the_run(config: TrainConfig, tmp_path: Path) -> None:
    task = inspect_task(config)
    rollout, state = subsets.collect_rollout(config, task, tmp_path / "run")
    before = {name: tensor.clone() for name, tensor in state["model"].items()}
    weights, steps = subsets.update_on(config, task, rollout, np.arange(4), state, 2)
    assert steps == 4
    assert all(torch.equal(state["model"][name], before[name]) for name in before), "the checkpoint was changed"
    model = build_model(config, task.observation, task.distribution)
    move_parameters(model, weights, keep=False)
    expected = resume(tmp_path / "run", stop_at_iteration=3)["weights_sha256"]
    assert weights_sha256(model.state_dict().values()) == expected


def test_updates_on_more_environments_are_closer_to_the_update_on_all(config: TrainConfig, tmp_path: Path) -> None:
    rows = list(subsets.measure(config, tmp_path / "run", 2))
    assert len(rows) == 2 * subsets.ORDERS * 3
    assert all(float(row["kl_to_all"]) > 0 for row in rows)
    assert {row["optimizer_steps"] for row in rows if row["minibatches"] == "same number"} == {4}
    assert [row["optimizer_steps"] for row in rows if row["minibatches"] == "same size"][:3] == [2, 2, 4]
    one, all_ = ([float(row["kl_to_all"]) for row in rows if row["environments"] == n] for n in (1, 4))
    assert np.median(one) > np.median(all_)
    assert load_selected_checkpoint(tmp_path / "run")["iteration"] == 2


@pytest.mark.slow(reason="about 30 s")
def test_an_interrupted_run_of_a_table_is_resumed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(evaluated_runs, "RUNS", tmp_path / "runs")
    with pytest.raises(SystemExit, match="was stopped; run the same command again"):
        evaluated_runs.add_run(tmp_path / "stopped.csv", {"task": "cartpole"}, 1, (*TRAIN, "--stop-at-iteration", 3))
    assert not (tmp_path / "stopped.csv").exists()
    hashes = []
    for name in ("stopped", "straight"):
        table = tmp_path / f"{name}.csv"
        evaluated_runs.add_run(table, {"task": "cartpole"}, 1, TRAIN)
        evaluated_runs.add_run(table, {"task": "cartpole"}, 1, TRAIN)
        (row,) = read_rows(table)
        assert (row["env_steps"], row["episodes"]) == ("1280", "20")
        hashes.append(row["weights_sha256"])
        assert len(read_rows(tmp_path / "curves" / "cartpole-s1.csv")) == 10
    assert hashes[0] == hashes[1]
    assert not list((tmp_path / "runs").glob("*/*")), "directories of finished runs are removed"


def test_the_recorded_command_is_that_of_the_running_script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recorded = {"figures.popgym.plot": "plot", "pytest.__main__": "measure", None: "measure"}
    monkeypatch.setattr(sys, "argv", ["the script", "RUN", "--seed", "2"])
    (tmp_path / "popgym").mkdir()
    for running, module in recorded.items():
        monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec(running, None) if running else None)
        record_provenance(tmp_path / "popgym" / "popgym.csv")
        content = json.loads((tmp_path / "popgym" / "popgym.json").read_text())
        assert content["command"] == f"python -m figures.popgym.{module} RUN --seed 2"


@pytest.mark.parametrize("task", [task for task in TASKS if TASKS[task].preset])
def test_a_preset_from_a_search_is_its_best_configuration_rounded(task: str) -> None:
    """Rounding to two significant digits changes a number by at most 5 %."""
    found = parse_start(["--config", str(FOLDER / task / "best.json")])[0].fields()
    for name, value in preset(TASKS[task].preset).fields().items():
        assert value == (pytest.approx(found[name], rel=0.05) if isinstance(value, float) else found[name]), name


@pytest.mark.slow(reason="about 20 s")
def test_interleaved_runs_work_only_in_their_slices_and_end() -> None:
    fields = {
        "env": "CartPole-v1", "num_envs": 4, "rollout_steps": 16, "minibatches": 2, "hidden_size": 8,
        "encoder_sizes": (8,), "workers": 2, "total_steps": 100_000_000, "worker_timeout": 600,
    }  # fmt: skip
    command = flags_with_values(fields)
    with started({"one": [command], "two": [command, command]}) as groups:
        before = {name: len(group.columns()["iteration"]) for name, group in groups.items()}
        assert groups["two"].run_slice(1.0) > 0
        after = {name: len(group.columns()["iteration"]) for name, group in groups.items()}
        assert after["two"] > before["two"] + 1
        assert after["one"] == before["one"]
        run_dirs = [str(path) for group in groups.values() for path in group.run_dirs]
    processes = [" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]
    assert not [command for command in processes if any(path in command for path in run_dirs)]


def test_ratios_are_those_of_the_slices_of_a_round() -> None:
    rates = [{"new": 3.0, "old": 2.0}, {"new": 1.0, "old": 2.0}, {"new": 8.0, "old": 4.0}]
    assert spread(rates, "new", "old") == {"ratio": 1.5, "lowest": 0.5, "highest": 2.0}
