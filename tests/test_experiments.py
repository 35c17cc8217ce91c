"""The experiments' own code: an update on all columns is the run's update, and the grids keep their batch."""

from __future__ import annotations

import dataclasses
import importlib
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from shmppo.config.train_config import TrainConfig
from shmppo.envs.factory import inspect_task
from shmppo.models.actor_critic import build_model, move_parameters, weights_sha256
from shmppo.runs.checkpoint import load_newest_checkpoint
from shmppo.runs.trainer import resume, train

FIGURES = Path(__file__).parent.parent / "figures"
SMALL = TrainConfig(
    env="Pendulum-v1", core="none", encoder_sizes=(16,), num_envs=4, rollout_steps=16, minibatches=2, epochs=2,
    workers=0, quiet=True, stop_at_iteration=2,
)  # fmt: skip


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a measuring script by name."""
    monkeypatch.syspath_prepend(str(FIGURES))
    return importlib.import_module


def test_an_update_on_all_columns_is_the_next_update_of_the_run(script: Any, tmp_path: Path) -> None:
    measuring = script("measure_assumption4")
    config = dataclasses.replace(SMALL, run_dir=str(tmp_path / "run"))
    train(config)
    task = inspect_task(config)
    arena, state = measuring.collected(config, task, tmp_path / "run")
    before = {name: tensor.clone() for name, tensor in state["model"].items()}
    weights, steps = measuring.updated(config, task, arena, np.arange(4), state, 2)
    assert steps == 4
    assert all(torch.equal(state["model"][name], before[name]) for name in before), "the checkpoint was written to"
    model = build_model(config, task.observation, task.distribution)
    move_parameters(model, weights, keep=False)
    expected = resume(tmp_path / "run", stop_at_iteration=3)["weights_sha256"]
    assert weights_sha256(model.state_dict().values()) == expected


def test_subsets_come_nearer_with_more_environments(script: Any, tmp_path: Path) -> None:
    measuring = script("measure_assumption4")
    config = dataclasses.replace(SMALL, run_dir=str(tmp_path / "run"))
    train(config)
    rows = list(measuring.measure(config, tmp_path / "run", 2))
    assert len(rows) == 2 * measuring.STARTS * 3
    assert all(float(row["kl_to_all"]) > 0 for row in rows)
    assert {row["optimizer_steps"] for row in rows if row["minibatches"] == "same number"} == {4}
    assert [row["optimizer_steps"] for row in rows if row["minibatches"] == "same size"][:3] == [2, 2, 4]
    few, all_ = ([float(r["kl_to_all"]) for r in rows if r["environments"] == n] for n in (1, 4))
    assert np.median(few) > np.median(all_)
    assert load_newest_checkpoint(tmp_path / "run")["iteration"] == 2


@pytest.mark.parametrize("scale", [1, 5])
def test_the_grid_keeps_its_batch_and_the_papers_sizes(script: Any, scale: int) -> None:
    measuring = script("measure_kl_sweeps")
    runs = {key: TrainConfig(core="none", **fields) for key, fields in measuring.grid(scale).items()}
    assert {config.batch_steps for config in runs.values()} == {50_000 // scale}
    sizes = [c.batch_steps // c.minibatches for (sweep, _), c in runs.items() if sweep == "minibatch"]
    assert sizes == [50, 100, 1000]
    shapes = [(c.num_envs * scale, c.rollout_steps) for (sweep, _), c in runs.items() if sweep == "shape"]
    assert shapes == [(1000, 50), (500, 100), (100, 500)]


@pytest.mark.long
def test_contenders_work_in_their_turn_only_and_none_is_left(script: Any, tmp_path: Path) -> None:
    turns = script("turns")
    command = shlex.split(
        "--env CartPole-v1 --num-envs 4 --rollout-steps 16 --minibatches 2 --hidden-size 8 --encoder-sizes 8 "
        "--workers 2 --total-steps 100000000 --worker-timeout 600"
    )
    with turns.started({"one": [command], "two": [command, command]}, tmp_path) as running:
        rows = {name: len(contender.columns()["iteration"]) for name, contender in running.items()}
        assert running["two"].turn(1.0) > 0
        now = {name: len(contender.columns()["iteration"]) for name, contender in running.items()}
        assert now["two"] > rows["two"] + 1
        assert now["one"] == rows["one"]
    left = [p.pid for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or [])]
    assert not left
