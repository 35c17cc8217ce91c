"""Two runs never write to one directory."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from public_helpers import SIX_ITERATIONS, refused, slow_after, summary_of, wait_for_rows

from shmppo import ConfigError, resume, train

CONFIG = dataclasses.replace(SIX_ITERATIONS, total_steps=4 * 32 * 2)
ENDLESS = ("--num-envs", "4", "--rollout-steps", "32", "--minibatches", "2", "--total-steps", "100000000", "--quiet")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[psutil.Popen]:
    """A run that trains in `tmp_path / "run"`."""
    command = [sys.executable, "-m", "shmppo.train", *ENDLESS, "--workers", "1", "--run-dir", str(tmp_path / "run")]
    process = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for_rows([tmp_path / "run"], [process], 2)
        yield process
    finally:
        with contextlib.suppress(psutil.Error):
            process.kill()


@pytest.mark.long
@pytest.mark.parametrize("kill", slow_after(1, [True, False], "10 s"))
def test_a_run_that_still_trains_is_not_resumed(running: psutil.Popen, kill: bool, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    before = (run_dir / "metrics.csv").read_text()
    message = rf"^{run_dir} is in use by the run with the process id {running.pid}; stop that run, or name another"
    try:
        with refused(message):
            resume(run_dir, callback=lambda _: True)
    finally:
        running.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        running.wait(200)
    rows = (run_dir / "metrics.csv").read_text()
    assert rows.startswith(before)
    iterations = rows.count("\n") - 1
    assert resume(run_dir, stop_at_iteration=iterations + 1)["iterations"] == iterations + 1


@pytest.mark.slow(reason="about 10 s")
def test_runs_that_start_in_the_same_second_get_directories_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "sitecustomize.py").write_text("import time\ntime.strftime = lambda *_: 'now'\n")
    monkeypatch.setenv("PYTHONPATH", str(modules), prepend=os.pathsep)
    command = [sys.executable, "-m", "shmppo.train", *ENDLESS, "--workers", "0", "--stop-at-iteration", "1"]
    runs = [subprocess.Popen(command, cwd=tmp_path) for _ in range(3)]
    assert [run.wait(200) for run in runs] == [0, 0, 0]
    directories = sorted((tmp_path / "runs").iterdir())
    assert len(directories) == 3
    assert len({summary_of(path)["weights_sha256"] for path in directories}) == 1


def test_a_directory_is_unlocked_after_an_error(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, run_dir=str(tmp_path / "run"))
    with pytest.raises(ConfigError, match="none does not exist"):
        train(dataclasses.replace(config, init_from=str(tmp_path / "none")))
    train(dataclasses.replace(config, stop_at_iteration=1))
    resume(tmp_path / "run")
    with pytest.raises(
        ConfigError, match=r"holds a run already; name another directory, .*, or delete it as --overwrite does$"
    ):
        train(config)
    (tmp_path / "run" / "run.lock").unlink()
    (tmp_path / "run" / "run.lock").mkdir()
    with pytest.raises(ConfigError, match=r"run cannot be written: Is a directory; .* name another directory"):
        resume(tmp_path / "run", total_steps=4 * 32 * 3, anneal_steps=4 * 32 * 3)
