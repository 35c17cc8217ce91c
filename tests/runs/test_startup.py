"""The train command finds common mistakes early, starts its fork server, shows that, and leaves no process."""

from __future__ import annotations

import multiprocessing
from multiprocessing import forkserver
from pathlib import Path

import psutil
import pytest
from helpers import make_run_directory
from public_helpers import python

from shmppo.config.train_config import TrainConfig
from shmppo.lockstep.fork_server import kill_fork_server
from shmppo.runs.startup import check_early, early_fork_server


def server_pid() -> int | None:
    pid: int | None = vars(forkserver)["_forkserver"]._forkserver_pid
    return pid


@pytest.fixture(autouse=True)
def _no_fork_server() -> None:
    kill_fork_server()  # of earlier tests


def test_the_fork_server_starts_early_and_ends_at_once() -> None:
    with early_fork_server(TrainConfig(workers=1)):
        pid = server_pid()
        assert pid is not None
        assert psutil.Process(pid).is_running()
    assert not psutil.pid_exists(pid)
    assert server_pid() is None
    kill_fork_server()  # twice is safe


def test_common_mistakes_are_found_before_torch_is_imported(tmp_path: Path) -> None:
    config = TrainConfig(run_dir=str(tmp_path / "run"))
    make_run_directory(config)
    (tmp_path / "run" / "checkpoint-000001.pt").touch()
    code = """if True:
        import sys
        from shmppo.train import main
        for arguments in (["--env", "CartPol-v1"], ["--env", "json:Maze"], ["--run-dir", sys.argv[1]]):
            sys.argv[1:] = ["--workers", "0", *arguments]
            print(main(), "torch" in sys.modules)
    """
    result = python("-c", code, config.run_dir)
    assert result.stdout.splitlines() == ["2 False"] * 3, result.stderr
    errors = result.stderr.splitlines()
    assert [error.split(";")[0] for error in errors] == [
        "error: --env CartPol-v1 is not registered (Environment `CartPol` doesn't exist. Did you mean: `CartPole`?)",
        "error: --env json:Maze is not registered (Environment `Maze` doesn't exist)",
        f"error: --run-dir {config.run_dir} holds a run already",
    ]


@pytest.mark.parametrize("who", ["rank", "worker"])
def test_ranks_and_workers_leave_the_checks_to_the_trainer(who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if who == "rank":
        monkeypatch.setenv("RANK", "0")
    elif who == "worker":
        monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    check_early(TrainConfig(env="Nothing-v3", env_backend="gymnasium"))


def test_without_workers_there_is_no_fork_server() -> None:
    with early_fork_server(TrainConfig(workers=0)):
        assert server_pid() is None
