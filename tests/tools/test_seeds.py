"""`train --seeds`: ordinary runs in directories of their own, side by side, stopped and continued together."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from conftest import summary_of
from public_helpers import NO_CHECK, csv_rows, exit_code, slow_after, train_in, wait_for_rows
from rich.console import Console

from shmppo.config.flags import parse_start
from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError, ShmppoError
from shmppo.storage.run_directory import MetricsFile, locked
from shmppo.tools.run_process import RunProcess
from shmppo.tools.seeds import summary_table, train_seeds
from shmppo.train import main
from shmppo.utils.files import write_json

SMALL = TrainConfig(
    env="CartPole-v1", num_envs=4, rollout_steps=32, minibatches=2, hidden_size=8, encoder_sizes=(8,), total_steps=1024,
    check_determinism=0,
)  # fmt: skip
FLAGS = "--env CartPole-v1 --num-envs 4 --rollout-steps 32 --minibatches 2 --hidden-size 8 --encoder-sizes 8"


def command(*flags: str, steps: int = 1024) -> list[str]:
    words = [*shlex.split(FLAGS), "--total-steps", str(steps), "--run-dir", "run", *NO_CHECK]
    return [sys.executable, "-m", "shmppo.train", *words, *flags]


def weights(directory: Path, seeds: Sequence[int]) -> list[str]:
    return [summary_of(directory / f"run-s{seed}")["weights_sha256"] for seed in seeds]


@pytest.mark.long
@pytest.mark.parametrize("jobs", slow_after(1, [2, 1], "15 s"))
def test_each_seed_is_an_ordinary_run_and_a_table_shows_them(
    jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = command("--seeds", "1", "2", "--jobs", str(jobs), "--eval-every", "8")[3:]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    assert exit_code(main, words) == 0
    output = capsys.readouterr().out
    alone = [train_in(tmp_path / f"alone{seed}", SMALL, seed=seed, quiet=True, workers=0) for seed in (1, 2)]
    assert weights(tmp_path, (1, 2)) == [summary["weights_sha256"] for summary in alone]
    assert output.endswith("\n")
    rows = [line.split() for line in output.splitlines() if line.split()]
    assert rows.pop(0) == ["run-sSEED"]
    assert rows[0] == ["seed", "iterations", "steps", "return", "eval/return", "weights"]
    for row, summary, seed in zip(rows[1:3], alone, (1, 2), strict=True):
        assert row[:3] == [str(seed), "8/8", "1,024"]
        assert float(row[3]) == pytest.approx(summary["return_mean_100"], rel=1e-2)
        evaluation = summary_of(tmp_path / f"run-s{seed}")["evaluation"]
        assert float(row[4]) == pytest.approx(evaluation["eval/return"], rel=1e-2)
        assert summary["weights_sha256"].startswith(row[5])
    assert float(rows[3][1]) == pytest.approx(sum(summary["return_mean_100"] for summary in alone) / 2, rel=1e-2)


def test_the_row_of_means_has_only_finished_runs(tmp_path: Path) -> None:
    runs = []
    for seed, last in ((1, None), (2, 2)):
        config = replace(SMALL, seed=seed, quiet=True, workers=0)
        train_in(tmp_path / f"run-s{seed}", config, stop_at_iteration=last)
        runs.append(RunProcess(config, tmp_path / f"run-s{seed}"))
    console = Console(width=200)
    with console.capture() as printed:
        console.print(summary_table(runs))
    *_, first, second, mean = [line.split() for line in printed.get().splitlines() if line.strip()]
    assert (first[1], second[1], mean[:3]) == ("8/8", "2/8", ["mean", "of", "1"])
    assert mean[3] == first[3] != second[3]


@pytest.mark.slow(reason="5 s")
def test_runs_side_by_side_use_cores_of_their_own_and_a_signal_stops_all_of_them(tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("needs two cores")
    words = command("--seeds", "5", "6", "7", "--jobs", "2", steps=200_000)
    process = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_for_rows([tmp_path / f"run-s{seed}" for seed in (5, 6)], [process], 2)
        children = psutil.Process(process.pid).children()
        used = [set(child.cpu_affinity()) for child in children]
        assert len(used) == 2
        assert not used[0] & used[1]
        assert not (tmp_path / "run-s7").exists()
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1] == "interrupted; continue the runs with the same command"
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    stopped = [summary_of(tmp_path / f"run-s{seed}") for seed in (5, 6)]
    assert [summary["stop_reason"] for summary in stopped] == ["signal", "signal"]


@pytest.mark.slow(reason="16 s")
def test_finished_runs_are_not_continued_and_a_longer_total_is_taken_over(tmp_path: Path) -> None:
    config = replace(SMALL, quiet=True, run_dir=str(tmp_path / "run"), stop_when=("iteration>=2",))
    for _ in range(2):
        train_seeds(config, (1,), 1)
        assert summary_of(tmp_path / "run-s1")["iterations"] == 2
    longer = replace(config, stop_when=(), total_steps=1280)
    train_seeds(replace(longer, stop_at_iteration=4), (1,), 1)
    train_seeds(longer, (1,), 1)
    assert summary_of(tmp_path / "run-s1")["iterations"] == 10


@pytest.mark.slow(reason="19 s")
def test_a_run_without_a_checkpoint_begins_anew_unless_it_is_still_running(tmp_path: Path) -> None:
    config, run_dir = replace(SMALL, quiet=True, total_steps=256, run_dir=str(tmp_path / "run")), tmp_path / "run-s1"
    run_dir.mkdir()
    write_json(run_dir / "config.json", {"config": replace(config, seed=1).to_json()})
    MetricsFile(run_dir / "metrics.csv", ("iteration",)).write({"iteration": 7})
    with locked(run_dir), pytest.raises(ShmppoError, match="is in use by the run with the process id"):
        train_seeds(config, (1,), 1)
    train_seeds(config, (1,), 1)
    assert [row["iteration"] for row in csv_rows(run_dir / "metrics.csv")] == ["1", "2"]


@pytest.mark.slow(reason="8 s")
def test_a_run_that_was_killed_in_its_last_evaluation_gets_it_when_it_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no workers, as --workers says, so the environment kills the run."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    config = replace(
        SMALL, env="faulty_environments:FaultyInEvaluation", quiet=True, workers=0, eval_every=9, checkpoint_every=4,
        eval_env_kwargs={"token": str(tmp_path / "token")}, run_dir=str(tmp_path / "run"),
    )  # fmt: skip
    with pytest.raises(ShmppoError, match="it was killed by SIGKILL"):
        train_seeds(config, (1,), 1, trust=("faulty_environments",))
    assert not (tmp_path / "run-s1" / "summary.json").exists()
    train_seeds(config, (1,), 1, trust=("faulty_environments",))
    assert summary_of(tmp_path / "run-s1")["iterations"] == 8
    assert summary_of(tmp_path / "run-s1")["evaluation"]["iteration"] == 8


@pytest.mark.slow(reason="17 s")
def test_trust_reaches_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    teacher = train_in(tmp_path / "its", SMALL, network="networks:leaky", quiet=True, workers=0, total_steps=128)
    config = replace(SMALL, quiet=True, teacher=teacher["run_dir"], total_steps=128, run_dir=str(tmp_path / "run"))
    with pytest.raises(ShmppoError, match="add --trust networks"):
        train_seeds(config, (1,), 1)
    train_seeds(config, (1,), 1, trust=("networks",))
    train_seeds(replace(config, total_steps=256), (1,), 1, trust=("networks",))
    assert summary_of(tmp_path / "run-s1")["iterations"] == 2


@pytest.mark.long
def test_a_run_that_fails_is_named_and_the_others_are_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.chdir(tmp_path)
    config = replace(
        SMALL, env="faulty_environments:FaultyStream-v0", num_envs=5, workers=0, run_dir=str(tmp_path / "run")
    )
    with pytest.raises(ShmppoError, match=r"^1 of 2 runs failed: .*run-s1: .*the simulation exploded") as raised:
        train_seeds(config, (1, 2), 2)
    assert "\n" not in str(raised.value)
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()[:1] in {"1", "2"}]
    assert [row[-1] == "failed" for row in rows] == [True, False]
    assert [row[1] for row in rows[1:]] == ["7/7"]
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be written: .*; make space there, or name another directory"):
        train_seeds(replace(config, run_dir=str(tmp_path / "file" / "run")), (1,), 1)


def test_wrong_values_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="--seeds needs --run-dir"):
        train_seeds(SMALL, (1, 2), 1)
    config = replace(SMALL, run_dir=str(tmp_path / "run"))
    with pytest.raises(ConfigError, match="--jobs is 0; it must be at least 1"):
        train_seeds(config, (1, 2), 0)
    with pytest.raises(ConfigError, match="--jobs needs --seeds; add it"):
        parse_start(["--jobs", "2"])
    with pytest.raises(ConfigError, match="--seeds has no values; name the seeds"):
        parse_start(["--seeds"])
    with pytest.raises(ConfigError, match="--seed cannot be combined with --seeds; leave one of them out"):
        parse_start(["--seeds", "1", "2", "--seed", "9"])
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ConfigError, match="--seeds cannot be combined with torchrun"):
        train_seeds(config, (1, 2), 1)
