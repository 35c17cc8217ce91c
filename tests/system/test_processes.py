"""Real processes: failing workers, signals, and what remains after a run."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from public_helpers import (
    NO_CHECK,
    SIX_ITERATIONS,
    csv_rows,
    slow_after,
    summary_of,
    train_in,
    wait_for_rows,
    worker_processes,
)  # fmt: skip
from rank_processes import IMPATIENT, start, wait_for_training

from shmppo import train

pytestmark = pytest.mark.usefixtures("environments_importable")
Run = Callable[..., "subprocess.CompletedProcess[str]"]
SMALL = ("--num-envs", 4, "--rollout-steps", 32, "--minibatches", 2, "--hidden-size", 16)


MARK = "SHMPPO_STARTED_BY_TEST"


@pytest.fixture(autouse=True)
def _mark_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mark all processes that a test starts, also those that outlive their parent."""
    monkeypatch.setenv(MARK, str(os.getpid()))


def marked_processes() -> list[int]:
    """Process ids of the processes that a test of this pytest process has started."""
    mark, found = f"{MARK}={os.getpid()}".encode(), []
    for pid in psutil.pids():
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:  # it has ended, or another user has started it
            continue
        if mark in environment.split(b"\0"):
            found.append(pid)
    return found


def remaining_processes() -> list[int]:
    """Processes of a test that do not end within 60 s. The fork server and the resource tracker end last."""
    deadline = time.monotonic() + 60
    while (found := marked_processes()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def shared_memory_used() -> int:
    """Bytes of all segments in /dev/shm, also of semaphores, that the processes of a test have mapped."""
    segments: dict[str, int] = {}
    for line in (line for pid in marked_processes() for line in mappings(pid)):
        if " /dev/shm/" in line:
            addresses, _, _, _, inode, *_ = line.split()
            low, high = addresses.split("-")
            segments[inode] = int(high, 16) - int(low, 16)
    return sum(segments.values())


def mappings(pid: int) -> list[str]:
    """The memory mappings of a process. One that has ended has none."""
    try:
        return Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return []


def shared_mappings(pid: int) -> int:
    """Bytes of torch's shared segments that a process has mapped. They have no names, so no directory lists them."""
    total = 0
    for line in mappings(pid):
        if "/dev/shm/torch_" in line:
            low, high = line.split()[0].split("-")
            total += int(high, 16) - int(low, 16)
    return total


FAILURES = {
    "raise": r"error: environment \d: step raised ValueError\('the simulation exploded'\) at ",
    "hang": r"error: environment \d: step raised TimeoutError\('no result in time; .* at .*faulty_environments.py:\d+",
    "exit": r"worker \d died: exit code 3",
    "block": r"worker \d \(pid \d+\) has made no progress for 2 s",
    "shape": r"error: environment \d: .*has shape \(3,\), but its space has shape \(2,\)",
}


@pytest.mark.long
@pytest.mark.parametrize("how", slow_after(2, FAILURES, "8 to 20 s per failure"))
def test_a_worker_that_fails_ends_the_run_within_seconds(how: str, run_command: Run, tmp_path: Path) -> None:
    result = run_command(
        "shmppo.train", "--env", f"faulty_environments:Faulty-{how}-v0", "--workers", 2, "--run-dir", tmp_path / "run",
        "--worker-timeout", 2 if how in ("hang", "block") else 60, *SMALL,
    )  # fmt: skip
    assert result.returncode == 1
    assert re.search(FAILURES[how], result.stderr), result.stderr
    log = (tmp_path / "run" / "run.log").read_text()
    assert bool(re.search(r'File "\S+faulty_environments.py", line \d+ in step\n', log)) is (how == "block")
    assert (tmp_path / "run" / "failed_episode.json").exists() is (how in ("raise", "hang", "shape"))
    assert not list((tmp_path / "cwd").iterdir()), "something was written outside the run directory"
    assert not remaining_processes()


def start_long_run(tmp_path: Path, *args: str, iterations: int = 3) -> psutil.Popen:
    """A run that would take minutes. It has finished at least `iterations` iterations."""
    run_dir = tmp_path / "run"
    command = [sys.executable, "-m", "shmppo.train", "--workers", "2", "--total-steps", "100000000", "--quiet"]
    command += NO_CHECK
    with open(tmp_path / "stderr", "w") as stderr:
        process = psutil.Popen(
            [*command, "--run-dir", str(run_dir), *map(str, SMALL), *args], cwd=tmp_path, stderr=stderr
        )
    wait_for_rows([run_dir], [process], iterations)
    return process


def is_worker(process: psutil.Process) -> bool:
    """Whether a child of the learner is a worker. The fork server maps no shared memory."""
    return shared_mappings(process.pid) > 0


def gone(learner: psutil.Popen) -> bool:
    """Whether no process of the run is left, not even its fork server."""
    _, alive = psutil.wait_procs(worker_processes(), timeout=60)
    return not alive


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_finishes_the_iteration_and_saves(number: int, tmp_path: Path) -> None:
    learner = start_long_run(tmp_path)
    learner.send_signal(number)
    assert learner.wait(timeout=60) == 0
    summary = summary_of(tmp_path / "run")
    assert len(csv_rows(tmp_path / "run" / "metrics.csv")) == summary["iterations"]
    assert summary["stop_reason"] == "signal"
    assert (tmp_path / "run" / "checkpoint.pt").is_file()
    assert gone(learner)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_processes_of_a_job_ends_the_run_with_code_0(number: int, tmp_path: Path) -> None:
    """As Ctrl-C in a terminal does it, and some cluster schedulers. SIGTERM also ends the workers."""
    learner = start_long_run(tmp_path)
    for process in [*learner.children(recursive=True), learner]:  # the learner last, because it ends the others
        process.send_signal(number)
    assert learner.wait(timeout=60) == 0
    assert summary_of(tmp_path / "run")["stop_reason"] == "signal"
    assert gone(learner)


@pytest.mark.long
def test_the_second_signal_ends_the_run_at_once(tmp_path: Path) -> None:
    learner = start_long_run(tmp_path, "--rollout-steps", "20000", "--seq-len", "16", "--num-envs", "4", iterations=1)
    learner.send_signal(signal.SIGINT)
    deadline = time.monotonic() + 60
    while "received signal 2; stopping" not in (tmp_path / "run" / "run.log").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    learner.send_signal(signal.SIGINT)
    assert learner.wait(timeout=60) == 130
    assert gone(learner)


@pytest.mark.long
@pytest.mark.parametrize("how", slow_after(2, ["stopped", "asks for actions", "runs"], "10 s"))
def test_nothing_is_left_when_the_learner_is_killed(how: str, tmp_path: Path) -> None:
    learner = start_long_run(
        tmp_path,
        *(("--device", "cpu:0", "--act-on", "device") if how == "asks for actions" else ()),
    )
    deadline = time.monotonic() + 200
    workers: list[psutil.Process] = []
    while len(workers) != 2:
        assert time.monotonic() < deadline, workers
        time.sleep(0.05)
        processes = learner.children(recursive=True)
        workers = [p for p in processes if is_worker(p)]
    if how == "stopped":  # then this process cannot detect that the learner is gone
        workers[0].suspend()
    learner.kill()
    learner.wait()
    _, alive = psutil.wait_procs(processes, timeout=60)
    for process in alive:
        process.kill()
    assert not alive
    assert not remaining_processes()
    assert not list(Path("/dev/shm").glob(f"torch_{learner.pid}_*"))


@pytest.mark.long
def test_shared_memory_in_use_is_the_total_of_the_layout_table_and_none_is_left(tmp_path: Path) -> None:
    learner = start_long_run(tmp_path, "--num-envs", "64", "--rollout-steps", "256")
    during = shared_memory_used()
    mapped = {shared_mappings(p.pid) for p in [learner, *learner.children(recursive=True)]} - {0}
    learner.send_signal(signal.SIGTERM)
    assert learner.wait(timeout=60) == 0
    total = summary_of(tmp_path / "run")["shared_memory_bytes"]
    page = 4096
    pages = -(-total // page) * page
    assert mapped == {pages}
    assert during == pages, "queues to workers have no locks, which would be in shared memory too"
    assert not remaining_processes()
    assert not list(Path("/dev/shm").glob(f"torch_{learner.pid}_*"))


@pytest.mark.slow(reason="40 s: it waits for a timeout of 30 s")
@pytest.mark.skipif(sys.platform != "linux", reason="/proc lists the shared memory of a process")
def test_a_stopped_rank_and_a_killed_torchrun_leave_nothing_behind(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    process = start(run_dir, "--total-steps", 10**8, "--workers", 1, program=(IMPATIENT, "30"))
    first, second = wait_for_training(process, run_dir)
    everyone = process.children(recursive=True)
    mapped = [line for one in everyone for line in mappings(one.pid)]
    files = {line.split(maxsplit=5)[5] for line in mapped if "/dev/shm/" in line}
    try:
        assert files
        assert not [file for file in files if "/sem." in file], "named semaphores stay if a process is killed"
        second.suspend()
        process.kill()
        psutil.wait_procs([first, process], timeout=120)
        assert not first.is_running()
        second.resume()
        assert not psutil.wait_procs(everyone, timeout=60)[1]
    finally:
        for one in (process, *everyone):
            with contextlib.suppress(psutil.Error):
                one.kill()
    process.communicate()
    assert not [file for file in files if Path(file.removesuffix(" (deleted)")).exists()]


def test_simulators_of_a_killed_worker_are_killed(tmp_path: Path) -> None:
    seconds = 86_421
    config = dataclasses.replace(
        SIX_ITERATIONS, env="environments:Simulated", env_kwargs={"seconds": seconds}, workers=2
    )

    def simulators() -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                found += [process] * (process.cmdline() == ["sleep", str(seconds)])
        return found

    def kill(row: dict[str, float], run: Any) -> None:
        if row["iteration"] == 2:
            workers = {one.ppid() for one in simulators()} - {os.getpid()}
            os.kill(min(workers), signal.SIGKILL)

    summary = train(config, callback=kill)
    assert (summary["worker_restarts"], simulators()) == (1, [])


def test_a_process_that_an_environment_forks_and_that_raises_does_not_end_the_run(tmp_path: Path) -> None:
    kwargs: dict[str, Any] = {"env": "environments:Forks", "workers": 1, "check_determinism": 0}
    assert train_in(tmp_path / "run", SIX_ITERATIONS, **kwargs)["iterations"] == 6
    assert "only the forked process raises" in (tmp_path / "run" / "run.log").read_text()


FORKS = """
import os, sys
from shmppo import TrainConfig, train

def weights(run_dir):
    config = TrainConfig(env="CartPole-v1", workers=1, num_envs=4, rollout_steps=32, minibatches=2, total_steps=256,
                         quiet=True, run_dir=os.path.join(sys.argv[1], run_dir))
    return train(config)["weights_sha256"]

if __name__ == "__main__":
    expected = weights("parent")
    pid = os.fork()
    if pid == 0:
        os._exit(0 if weights("child") == expected else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert weights("again") == expected
"""


@pytest.mark.long
def test_a_forked_process_trains_after_its_parent_has(tmp_path: Path) -> None:
    (tmp_path / "forks.py").write_text(FORKS)
    subprocess.run([sys.executable, tmp_path / "forks.py", tmp_path], timeout=100, check=True)
    assert not remaining_processes()
