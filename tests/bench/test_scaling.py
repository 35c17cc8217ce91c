"""The scaling benchmark: fitted laws, the runs of each mode, and the command."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from public_helpers import csv_rows

from shmppo.bench.measured_run import PARTS, MeasuredRun
from shmppo.bench.scaling import COLUMNS, Scaling, add_scaling, plan, serial_fraction
from shmppo.errors import ConfigError
from shmppo.utils.phase_timer import PHASES

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_the_serial_fraction_of_amdahls_law_is_fitted() -> None:
    workers = np.array([1.0, 2, 4, 8])
    assert serial_fraction(workers, 5 * (0.3 + 0.7 / workers)) == pytest.approx(0.3)
    assert serial_fraction(workers, np.full(4, 2.0)) == pytest.approx(1)
    assert serial_fraction(workers, 3 / workers) == pytest.approx(0)
    assert np.isnan(serial_fraction(np.ones(1), np.ones(1)))


def test_speedup_and_efficiency_by_hand() -> None:
    rows: list[dict[str, Any]] = [
        {"mode": mode, "learning": "central", "workers": w, "steps_per_second": rate, "iteration_seconds": 100 / rate}
        | {"experience_steps_per_second": 2 * w * 0.9 ** (w - 1), "limit_steps_per_second": 5.0 * w}
        for mode, w, rate in (("strong", 2, 10.0), ("strong", 4, 15.0), ("weak", 2, 20.0), ("weak", 4, 40.0))
    ]
    add_scaling(rows, cores=4)
    strong, weak = rows[:2], rows[2:]
    assert [row["speedup"] for row in strong] == [1, 1.5]
    assert [row["efficiency"] for row in strong] == [1, 0.75]
    assert [row["efficiency"] for row in weak] == [1, 1]
    assert [row["of_limit"] for row in strong] == [1, 0.75]
    assert "of_limit" not in weak[0]
    assert strong[1]["collect_efficiency"] == pytest.approx(0.81)
    assert strong[0]["serial_fraction"] == pytest.approx((1 / 1.5 - 0.5) / 0.5)
    assert "serial_fraction" not in weak[0]
    add_scaling(rows, cores=3)
    assert np.isnan(strong[0]["serial_fraction"]), "only one run had a core for each worker"


def test_weak_scaling_keeps_the_environments_per_worker_and_the_steps_per_minibatch() -> None:
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


def test_the_parts_of_an_iteration_add_up_to_all_phases() -> None:
    seconds = {f"{phase}_seconds": np.full(5, 2.0**i) for i, phase in enumerate(PHASES)}
    parts = MeasuredRun({}, seconds | {"sync_seconds": np.full(5, 0.5)}).parts()
    assert tuple(parts) == PARTS
    assert sum(parts.values()) == sum(2.0**i for i in range(len(PHASES)))
    wait, publish, reduce = (2.0 ** PHASES.index(phase) for phase in ("wait", "publish", "reduce"))
    assert parts["communication"] == publish + reduce + 0.5
    assert parts["waiting"] == wait - 0.5


@pytest.mark.slow(reason="about 60 s")
def test_the_scaling_command_measures_prints_and_writes(run_command: Run, tmp_path: Path) -> None:
    flags = (
        "--num-envs", 4, "--rollout-steps", 32, "--seq-len", 8, "--minibatches", 2, "--hidden-size", 16,
        "--grad-shards", 2, "--workers", 1, 2, "--iterations", 5,
    )  # fmt: skip
    done = run_command("shmppo.bench", "scaling", *flags, "--out", tmp_path / "new" / "scaling.csv")
    assert done.returncode == 0, done.stderr
    rows = csv_rows(tmp_path / "new" / "scaling.csv")
    assert tuple(rows[0]) == COLUMNS
    assert len({row["weights_sha256"] for row in rows if row["mode"] == "strong"}) == 1
    for row in rows:
        rates = [float(row[f"{kind}steps_per_second"]) for kind in ("", "experience_", "learning_")]
        assert 1 / rates[0] == pytest.approx(1 / rates[1] + 1 / rates[2], rel=1e-4)
    for row in rows:
        of_limit = float(row["steps_per_second"]) / float(row["limit_steps_per_second"] or "nan")
        assert (row["mode"] == "strong") == (float(row["of_limit"] or "nan") == pytest.approx(of_limit, rel=1e-4))
    assert "Amdahl's serial fraction" in done.stdout
    refused = run_command("shmppo.bench", "scaling", "--workers", 0)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
