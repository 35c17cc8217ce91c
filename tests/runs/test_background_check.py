"""The check of the environment in the background of a run (--check-determinism)."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from helpers import clone_of_recording
from public_helpers import checking, wait_for_the_check, worker_processes

from shmppo import TrainConfig, resume, train
from shmppo.envs.check_process import CheckProcesses
from shmppo.envs.inspection import inspect_task

pytestmark = pytest.mark.usefixtures("background_check")
SMALL = TrainConfig(
    env="CartPole-v1", num_envs=4, rollout_steps=16, seq_len=8, minibatches=2, hidden_size=8, workers=0,
    total_steps=4 * 64, quiet=True,
)  # fmt: skip


def both_started(learner: psutil.Process) -> list[psutil.Process]:
    """The two processes of the check, or [] before both have asked the kernel to be killed with their parents.

    They close stdout after that.
    """
    found = []
    for process in checking(learner):
        with contextlib.suppress(OSError, psutil.Error):
            if os.readlink(f"/proc/{process.pid}/fd/1") == os.devnull:
                found.append(process)
    return found if len(found) == 2 else []


def log_of(run_dir: Path) -> str:
    return (run_dir / "run.log").read_text()


def test_a_run_that_ends_before_the_check_says_so_in_its_log(tmp_path: Path) -> None:
    summary = train(dataclasses.replace(SMALL, check_determinism=10**8, run_dir=str(tmp_path / "run")))
    assert (summary["exact"], summary["environment_check"]) == (None, "not finished")
    assert "not checked for reproducibility: the run ended before the check" in log_of(tmp_path / "run")
    assert not checking()


def test_a_check_that_has_passed_counts_after_a_resume(tmp_path: Path) -> None:
    config = dataclasses.replace(SMALL, check_determinism=50, stop_at_iteration=2, run_dir=str(tmp_path / "run"))
    assert train(config, callback=wait_for_the_check)["environment_check"] == "passed"
    summary = resume(tmp_path / "run", check_determinism=10**8)
    assert (summary["exact"], summary["environment_check"]) == (True, "passed")


def test_an_environment_that_is_not_stepped_is_not_checked(tmp_path: Path) -> None:
    config = clone_of_recording(SMALL, tmp_path / "a.npz")
    summary = train(dataclasses.replace(config, run_dir=str(tmp_path / "run")))
    assert (summary["exact"], summary["environment_check"]) == (True, "none")


@pytest.mark.long
def test_the_check_does_not_change_the_weights(tmp_path: Path) -> None:
    hashes = set()
    for steps in (0, 10, 200):
        run_dir = tmp_path / str(steps)
        config = dataclasses.replace(SMALL, check_determinism=steps, run_dir=str(run_dir))
        summary = train(config, callback=wait_for_the_check)
        assert summary["exact"]
        assert summary["environment_check"] == ("passed" if steps else "none")
        hashes.add(summary["weights_sha256"])
        assert (f"the same bits in {steps} checked steps" in log_of(run_dir)) == (steps > 0)
    assert len(hashes) == 1


PROBLEMS = {
    "raise": r"step raised ValueError('not here')",
    "exit": "a process of the check ended with exit code 3",
    "print": None,
}


@pytest.mark.long
@pytest.mark.parametrize("how", PROBLEMS)
def test_a_check_that_fails_does_not_harm_the_run(how: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    config = dataclasses.replace(SMALL, env="hidden_state:FailsElsewhere", run_dir=str(run_dir))
    config = dataclasses.replace(config, env_kwargs={"how": how, "owner": os.getpid()})
    summary = train(config, callback=wait_for_the_check)
    problem = PROBLEMS[how]
    assert (summary["exact"], summary["iterations"]) == (None if problem else True, 4)
    assert problem is None or problem in log_of(run_dir)
    assert ("not checked" in log_of(run_dir)) == (problem is not None)


@pytest.mark.long
def test_a_check_that_hangs_ends_with_the_run(tmp_path: Path) -> None:
    config = dataclasses.replace(SMALL, env="hidden_state:FailsElsewhere", run_dir=str(tmp_path / "run"))
    config = dataclasses.replace(config, env_kwargs={"how": "hang", "owner": os.getpid()})
    deadline = time.monotonic() + 200

    def both_run(row: dict[str, float]) -> bool:
        while len(checking()) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return False

    assert train(config, callback=both_run)["exact"] is None
    assert not worker_processes()
    assert "the run ended before the check" in log_of(tmp_path / "run")


def test_the_check_ends_with_the_processes_that_its_environments_have_started() -> None:
    env_kwargs = {"how": "simulator", "owner": os.getpid()}
    config = dataclasses.replace(SMALL, env="hidden_state:FailsElsewhere", env_kwargs=env_kwargs)
    deadline = time.monotonic() + 200
    with contextlib.closing(CheckProcesses(config, inspect_task(config), 10, background=False)):
        while len(found := [p for one in checking() for p in one.children() if p.name() == "sleep"]) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        # Linux (autogroup) gives each session the same time, whatever the priorities of its processes.
        assert {os.getsid(one.pid) for one in checking()} == {os.getsid(0)}
    _, alive = psutil.wait_procs(found, timeout=20)
    assert not alive


def test_a_check_that_cannot_start_does_not_harm_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(check: CheckProcesses, *arguments: object, **options: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(CheckProcesses, "__init__", fail)
    assert train(dataclasses.replace(SMALL, run_dir=str(tmp_path / "run")))["exact"] is None
    assert "not checked for reproducibility: OSError('no more processes')" in log_of(tmp_path / "run")


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.usefixtures("environments_importable")
def test_the_check_ends_when_the_run_is_killed(number: int, stopped: bool, tmp_path: Path) -> None:
    """Also a check that is stopped. The environment sleeps, because the check uses only idle time."""
    command = [
        sys.executable, "-m", "shmppo.train", "--env", "environments:Sleeping", "--env-kwargs", "seconds=0.002",
        "--num-envs", "4", "--rollout-steps", "32", "--minibatches", "2", "--total-steps", "100000000",
        "--check-determinism", "100000000", "--run-dir", str(tmp_path / "run"), "--quiet", "--workers", "0",
    ]  # fmt: skip
    learner = psutil.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 200
    while not (processes := both_started(learner)):
        assert learner.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    if stopped:
        for process in processes:
            process.suspend()
    learner.send_signal(number)
    assert learner.wait(100) == (0 if number == signal.SIGTERM else -number)
    _, alive = psutil.wait_procs(processes, timeout=20)
    assert not alive


@pytest.mark.long
def test_an_environment_of_the_main_script_is_checked_with_workers_only(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, time, gymnasium\n"
        "from shmppo import TrainConfig, train\n"
        f"sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parent.parent)!r}]\n"
        "print('imported', flush=True)\n"
        "gymnasium.register('OfScript-v0', entry_point='hidden_state:ProcessId')\n"
        "if __name__ == '__main__':\n"
        "    from test_background_check import SMALL, wait_for_the_check\n"
        "    import dataclasses\n"
        "    for workers in (0, 1):\n"
        "        config = dataclasses.replace(SMALL, env='OfScript-v0', workers=workers, run_dir=f'run-{workers}')\n"
        "        print(train(config, callback=wait_for_the_check)['exact'])\n"
    )
    result = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False
    )
    assert result.returncode == 0, result.stderr
    assert [line for line in result.stdout.split() if line != "imported"] == ["None", "False"]
    assert "OfScript-v0 is not registered" in log_of(tmp_path / "run-0")


SLOW_TO_IMPORT = """
import os, time
import gymnasium

if os.environ.get("PYTHONHASHSEED") in ("0", "1"):  # in the processes of the check
    time.sleep(120)

class Slow(gymnasium.Wrapper):
    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))
"""
KILLED_AT_ONCE = """
import os, signal
from shmppo.config.train_config import TrainConfig
from shmppo.envs.check_process import CheckProcesses
from shmppo.envs.inspection import inspect_task

config = TrainConfig(env="slow_to_import:Slow", workers=0)
CheckProcesses(config, inspect_task(config), 10, background=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_check_ends_with_a_run_that_is_killed_while_the_check_starts(tmp_path: Path) -> None:
    (tmp_path / "slow_to_import.py").write_text(SLOW_TO_IMPORT)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    result = subprocess.run([sys.executable, "-c", KILLED_AT_ONCE], cwd=tmp_path, env=environment, check=False)
    assert result.returncode == -signal.SIGKILL

    def left() -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.cwd() == str(tmp_path) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    deadline = time.monotonic() + 60
    while left():
        assert time.monotonic() < deadline, [process.cmdline() for process in left()]
        time.sleep(0.1)
