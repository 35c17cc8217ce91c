"""Scaling: laws fitted by hand-made numbers, fixed work per worker is fixed, and the command measures real runs."""

from __future__ import annotations

import csv
import dataclasses
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shmppo.bench import measured_run as bench_run
from shmppo.bench.measured_run import MeasuredRun, measured_run
from shmppo.bench.scaling import COLUMNS, Scaling, _split, add_scaling, plan, serial_fraction, table, time_to_target
from shmppo.bench.throughput import Throughput, report, utilization
from shmppo.bench.topologies import bytes_moved
from shmppo.config.train_config import TrainConfig
from shmppo.envs.factory import inspect_task
from shmppo.errors import ConfigError, EnvError, run_command
from shmppo.plotting.scaling import PARTS
from shmppo.ppo.learner import arena_fields
from shmppo.utils.phase_timer import PHASES

Run = Callable[..., "subprocess.CompletedProcess[str]"]
SMALL = TrainConfig(num_envs=4, rollout_steps=32, seq_len=8, minibatches=2, hidden_size=16, workers=0, quiet=True)


def test_amdahls_fraction_is_found_again() -> None:
    workers = np.array([1.0, 2, 4, 8])
    assert serial_fraction(workers, 5 * (0.3 + 0.7 / workers)) == pytest.approx(0.3)
    assert serial_fraction(workers, np.full(4, 2.0)) == pytest.approx(1)
    assert serial_fraction(workers, 3 / workers) == pytest.approx(0)
    assert np.isnan(serial_fraction(np.ones(1), np.ones(1)))


def test_speed_up_and_efficiency_by_hand() -> None:
    rows: list[dict[str, Any]] = [
        {"mode": mode, "learning": "central", "workers": w, "steps_per_second": rate, "iteration_seconds": 100 / rate}
        | {"experience_steps_per_second": 2 * w * 0.9 ** (w - 1)}
        for mode, w, rate in (("strong", 2, 10.0), ("strong", 4, 15.0), ("weak", 2, 20.0), ("weak", 4, 40.0))
    ]
    add_scaling(rows, cores=4)
    strong, weak = rows[:2], rows[2:]
    assert [row["speedup"] for row in strong] == [1, 1.5]
    assert [row["efficiency"] for row in strong] == [1, 0.75]
    assert [row["efficiency"] for row in weak] == [1, 1]
    assert strong[1]["collect_efficiency"] == pytest.approx(0.81)
    assert strong[0]["serial_fraction"] == pytest.approx((1 / 1.5 - 0.5) / 0.5)
    assert "serial_fraction" not in weak[0]
    add_scaling(rows, cores=3)
    assert np.isnan(strong[0]["serial_fraction"]), "only one of them had its cores"


def test_weak_scaling_keeps_the_work_of_a_worker_and_of_a_minibatch() -> None:
    options = Scaling(num_envs=16, minibatches=8, workers=(1, 2, 8), learning=("central",))
    runs = plan(options)
    weak = [config for mode, _, config in runs if mode == "weak"]
    assert [config.num_envs for config in weak] == [2, 4, 16]
    assert {config.batch_steps // config.minibatches for config in weak} == {256}
    assert [config.num_envs for mode, _, config in runs if mode == "strong"] == [16, 16, 16]
    envs = [config for mode, _, config in runs if mode == "envs"]
    assert [config.num_envs for config in envs] == [1, 2, 4, 8, 16]
    assert {config.num_workers for config in envs} == {1}
    with pytest.raises(ConfigError, match="each worker needs an environment"):
        plan(dataclasses.replace(options, workers=(32,)))


def test_the_split_is_of_the_whole_iteration() -> None:
    seconds = {f"{phase}_seconds": np.full(5, 2.0**i) for i, phase in enumerate(PHASES)}
    parts = _split(MeasuredRun({}, seconds | {"sync_seconds": np.full(5, 0.5)}, {}))
    assert tuple(parts) == PARTS
    assert sum(parts.values()) == sum(2.0**i for i in range(len(PHASES)))
    wait, publish, reduce = (2.0 ** PHASES.index(phase) for phase in ("wait", "publish", "reduce"))
    assert parts["communication"] == publish + reduce + 0.5
    assert parts["waiting"] == wait - 0.5


@pytest.mark.parametrize(
    ("workers", "learning", "sampling", "rest"),
    [(4, "sharded", 1.5 / 2, (0.6 * 4 + 0.2) / (4 * 1)), (4, "central", 1.5 / 2, (0.6 + 0.2) / (4 * 1)),
     (2, "sharded", 1.5 / 2 / 2, (0.6 * 2 + 0.2) / (4 * 1)), (0, "central", 1.5 / 2 / 4, (0.6 + 0.2) / (4 * 1))],
)  # fmt: skip
def test_use_of_four_cores_by_hand(workers: int, learning: Any, sampling: float, rest: float) -> None:
    phases = dict.fromkeys(PHASES, 0.0) | {"environment": 1.0, "inference": 0.5, "wait": 0.6, "other": 0.1}
    phases |= {"gradient": 0.6, "optimizer": 0.15, "reduce": 0.05}  # 3 s, 2 of which until the rollout is whole
    config = TrainConfig(workers=workers, learning=learning, grad_shards=4)
    used = utilization(config, phases, collect_seconds=2.0, cores=4)
    assert used == pytest.approx({"sampling": sampling, "learning": rest})


def test_time_to_a_target_is_that_of_the_first_iteration_that_reaches_it() -> None:
    config = dataclasses.replace(SMALL, total_steps=6 * SMALL.batch_steps)
    seconds, curve = time_to_target(config, -1.0)
    known = np.flatnonzero(np.isfinite(curve["return_mean_100"]))[0]
    assert seconds == curve["wall_seconds"][known]
    assert np.isnan(time_to_target(config, 1e9)[0])


@pytest.mark.long
def test_the_command_measures_prints_and_writes(run_command: Run, tmp_path: Path) -> None:
    flags = (
        "--num-envs", 4, "--rollout-steps", 32, "--seq-len", 8, "--minibatches", 2, "--hidden-size", 16,
        "--grad-shards", 2, "--workers", 1, 2, "--iterations", 5, "--total-steps", 1024, "--target-return", 5,
    )  # fmt: skip
    done = run_command("shmppo.bench", "scaling", *flags, "--out", tmp_path / "new" / "scaling")
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "new" / "scaling.csv") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert len({row["weights_sha256"] for row in rows if row["mode"] == "strong"}) == 1
    for row in rows:
        rates = [float(row[f"{kind}steps_per_second"]) for kind in ("", "experience_", "learning_")]
        assert 1 / rates[0] == pytest.approx(1 / rates[1] + 1 / rates[2], rel=1e-4)
    with open(tmp_path / "new" / "scaling-curves.csv") as file:
        curves = {}
        for row in csv.DictReader(file):
            curves.setdefault((row["learning"], row["workers"]), []).append(row["return_mean_100"])
    assert len(curves) == 4
    assert len({tuple(curve) for curve in curves.values()}) == 1
    assert "the same curve for every W" in (tmp_path / "new" / "scaling.svg").read_text()
    assert "Amdahl's serial fraction" in done.stdout
    assert "target return in" in done.stdout
    refused = run_command("shmppo.bench", "scaling", "--workers", 0)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)


def test_a_table_without_strong_runs_is_printed_too() -> None:
    row = dict.fromkeys(COLUMNS, 1.0) | {"mode": "weak", "learning": "sharded"}
    assert "Amdahl" not in table([row])


def test_bytes_moved_by_hand() -> None:
    """16 environments × 32 steps in 2 minibatches of 2 shards, 1 epoch, 2 processes; P weights of 4 bytes each."""
    config = TrainConfig(num_envs=16, rollout_steps=32, minibatches=2, epochs=1, grad_shards=2, workers=2)
    fields = {field.name: field.bytes for field in arena_fields(config, inspect_task(config))}
    weights = fields["weights"]
    central = bytes_moved(config, "central", 2)
    assert central > 2 * weights + fields["obs"] + fields["actions"] + fields["sequence_state"], (
        "rollout there, weights back"
    )
    # Per minibatch one shard's gradient comes from the other process, and the weights go to it.
    assert bytes_moved(config, "sharded", 2) == central - 2 * weights + 2 * (1 + 1) * weights
    # Per minibatch the ring sends each half of the gradient once to be added and once when it is: 2 ranks × 2 halves.
    assert bytes_moved(config, "decentralized", 2) == 2 * 2 * weights


@pytest.mark.slow
def test_topologies_are_measured_on_the_same_batch(run_command: Run) -> None:
    result = run_command(
        "shmppo.bench", "topologies", "--num-envs", 8, "--rollout-steps", 64, "--minibatches", 2, "--iterations", 5,
        "--processes", 2, "--hidden-size", 16, "--json",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    rows = {row["topology"]: row for row in json.loads(result.stdout)}
    assert list(rows) == ["one process", "central", "sharded", "decentralized"]
    assert rows["decentralized"]["allreduce_seconds"] > 0
    assert rows["sharded"]["allreduce_seconds"] == 0


def test_a_run_that_a_signal_ends_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_run, "train", lambda config: {"iterations": 4})
    with pytest.raises(KeyboardInterrupt):
        measured_run(SMALL, 5)


def test_errors_are_one_line_with_their_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(error: BaseException) -> int:
        def command() -> None:
            raise error

        return run_command(command, "interrupted")

    assert [fail(ConfigError("a")), fail(EnvError(3, "b")), fail(KeyboardInterrupt())] == [2, 1, 130]
    assert capsys.readouterr().err.splitlines()[:2] == ["error: a", "error: environment 3: b"]


def test_an_environment_that_cannot_be_stepped_barely_costs_the_roofline_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = dataclasses.replace(SMALL, env="environments:RefusesSeeds-v0")
    result = report(Throughput(config, iterations=4, json=True))
    printed = capsys.readouterr()
    assert json.loads(printed.out)["steps_per_second"] == result["steps_per_second"] > 0
    assert "no roofline: the bare environment could not be stepped (NotImplementedError" in printed.err
