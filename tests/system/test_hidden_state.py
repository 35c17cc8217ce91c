"""Runs of environments that are no functions of their seeds: the summary says that they are not exact."""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from public_helpers import SIX_ITERATIONS, python, slow_after, summary_of, train_in, wait_for_the_check

from shmppo import resume, train
from shmppo.loggers.summary import RunSummary
from shmppo.utils.program import source_digests

pytestmark = pytest.mark.usefixtures("background_check")
SMALL = dataclasses.replace(SIX_ITERATIONS, rollout_steps=16, total_steps=4 * 64)
DIFFERS = "the environment is not a function of its seed and its actions: observation[2] differs at step "
STRING_SET = f"{DIFFERS}1 of episode 0"


@pytest.mark.long
@pytest.mark.parametrize("workers", slow_after(1, [0, 2], "8 s"))
def test_a_run_with_hidden_state_is_not_exact_and_stays_so(
    workers: int, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    config = dataclasses.replace(SMALL, env="hidden_state:StringSet", workers=workers, quiet=False)
    summary = train_in(run_dir, config, callback=wait_for_the_check)
    assert (summary["exact"], summary["inexact_reasons"]) == (False, [STRING_SET])
    assert summary_of(run_dir)["inexact_reasons"] == [STRING_SET]
    assert (run_dir / "run.log").read_text().count(f"WARNING not exact: {STRING_SET}") == 1
    assert capfd.readouterr().out.count(f"warning: not exact: {STRING_SET}") == 1
    summary = resume(run_dir, total_steps=6 * 64, anneal_steps=4 * 64, quiet=True)
    assert summary["inexact_reasons"][0] == STRING_SET
    log = (run_dir / "run.log").read_text()
    assert log.count(STRING_SET) == 1, "it is not checked again"
    assert "was not checked" not in log


@pytest.mark.slow(reason="about 8 s")
def test_a_history_that_a_resume_does_not_restore_is_found(tmp_path: Path) -> None:
    """The observations that tell whether an episode was restored are equal. A later one differs."""
    config = dataclasses.replace(SMALL, env="hidden_state:LateHistory", run_dir=str(tmp_path / "run"))
    train(dataclasses.replace(config, stop_at_iteration=2))
    assert not resume(tmp_path / "run", callback=wait_for_the_check)["exact"]


@pytest.mark.slow(reason="15 s on two cores")
def test_the_environment_of_evaluations_is_checked_if_a_decision_reads_them(tmp_path: Path) -> None:
    config = dataclasses.replace(
        SMALL, env="hidden_state:ClockOf", eval_env_kwargs={"clock": True}, eval_every=1, eval_episodes=1,
        check_determinism=50,
    )  # fmt: skip
    exact = []
    for metric in ("return", "eval/return"):
        own = dataclasses.replace(config, best_by=metric, run_dir=str(tmp_path / metric.replace("/", "-")))
        exact.append(train(own, callback=wait_for_the_check)["exact"])
    assert exact == [True, False]


SCALED = """
import os
import time

from environments import Counter

SCALE = 1.0
STARTED, PROCESS = time.time(), os.getpid()  # which may differ
LISTED = [0.0]

class Scaled(Counter):
    def step(self, action):
        observation, reward, *rest = super().step(action)
        if self.t > 1e6:
            import module_that_it_imports
        return observation, reward * SCALE * self.t + LISTED[0], *rest

COUNT = 0

class Counted(Scaled):
    def __init__(self):
        super().__init__()
        global COUNT
        COUNT += 1
"""


@pytest.fixture
def user_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """A module with an environment `Scaled`, whose rewards are multiplied by `SCALE`."""
    (tmp_path / "module_of_a_user.py").write_text(SCALED)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "module_of_a_user", raising=False)
    return importlib.import_module("module_of_a_user")


def test_what_the_main_block_changes_and_workers_lack_makes_a_run_inexact(user_module: Any, tmp_path: Path) -> None:
    config = dataclasses.replace(SMALL, env="module_of_a_user:Scaled", check_determinism=0, total_steps=128)
    runs: dict[str, RunSummary] = {}
    for name, scale, workers in (("same", 1.0, 1), ("in this process", 2.0, 0), ("in workers", 2.0, 1)):
        user_module.SCALE = scale
        runs[name] = train_in(tmp_path / name, config, workers=workers)
    assert [summary["exact"] for summary in runs.values()] == [True, True, False]
    (reason,) = runs["in workers"]["inexact_reasons"]
    assert reason == "module_of_a_user.SCALE is 2.0 in the program that started the run, but 1.0 in workers"
    assert runs["in workers"]["weights_sha256"] == runs["same"]["weights_sha256"]


def test_what_environments_change_in_their_module_leaves_the_next_run_of_a_program_exact(
    user_module: Any, tmp_path: Path
) -> None:
    config = dataclasses.replace(SMALL, env="module_of_a_user:Counted", check_determinism=0, total_steps=128)
    assert [train_in(tmp_path / str(k), config, workers=1)["exact"] for k in range(3)] == [True] * 3
    assert user_module.COUNT >= 3


@pytest.mark.parametrize("changed", ["module_of_a_user", "module_that_it_imports"])
def test_code_that_changes_between_a_stop_and_a_resume_makes_the_run_inexact(
    changed: str, user_module: ModuleType, tmp_path: Path
) -> None:
    run_dir, file = tmp_path / "run", tmp_path / f"{changed}.py"
    (tmp_path / "module_that_it_imports.py").write_text("")
    config = dataclasses.replace(SMALL, env="module_of_a_user:Scaled", check_determinism=0, run_dir=str(run_dir))
    train(dataclasses.replace(config, stop_at_iteration=1))
    assert resume(run_dir, stop_at_iteration=2, trust="module_of_a_user")["exact"]
    file.write_text(f"{SCALED}# changed")
    summary = resume(run_dir, stop_at_iteration=3, trust="module_of_a_user")
    assert summary["inexact_reasons"] == [f"the code of {changed} has changed since the run was stopped"]


@pytest.mark.long
def test_a_run_may_be_resumed_by_another_command(tmp_path: Path) -> None:
    """As `python -m shmppo train` and the command `shmppo` of a virtual environment in the current directory."""
    (tmp_path / "other.py").write_text(
        "import sys\nfrom shmppo.cli import main\nif __name__ == '__main__':\n    sys.exit(main())"
    )
    flags = ["--num-envs", "2", "--minibatches", "1", "--workers", "1", "--quiet", "--check-determinism", "0"]
    for command in (
        ["-m", "shmppo", "train", *flags, "--run-dir", "run", "--stop-at-iteration", "1"],
        ["other.py", "train", "--resume", "run", "--stop-at-iteration", "2"],
    ):
        assert python(*command, cwd=tmp_path).returncode == 0
    assert summary_of(tmp_path / "run")["inexact_reasons"] == []


SCRIPT = """
import sys
import environments
from shmppo import TrainConfig, resume, train
class Own(environments.Counter):
    pass
if __name__ == "__main__":
    options = {"workers": 1, "quiet": True, "check_determinism": 0}
    if sys.argv[1] == "train":
        train(TrainConfig("__main__:Own", num_envs=2, minibatches=1, run_dir="run", stop_at_iteration=1, **options))
    else:
        resume("run", trust="__main__", stop_at_iteration=int(sys.argv[1]))
"""


@pytest.mark.long
def test_a_script_whose_environment_has_changed_makes_the_run_inexact(tmp_path: Path) -> None:
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    reasons = []
    for step, text in (("train", SCRIPT), ("2", SCRIPT), ("3", f"{SCRIPT}# changed")):
        (tmp_path / "script.py").write_text(text)
        assert python("script.py", step, cwd=tmp_path, env=paths).returncode == 0
        reasons.append(summary_of(tmp_path / "run")["inexact_reasons"])
    assert reasons == [[], [], ["the code of __main__ has changed since the run was stopped"]]


def test_the_code_of_a_program_is_found_in_the_root_directory(user_module: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir("/")
    assert user_module.__name__ in source_digests(["environments"])


def test_a_schedule_that_is_random_makes_a_run_inexact(tmp_path: Path) -> None:
    config = dataclasses.replace(SMALL, env="schedules:Leveled", check_determinism=0)
    for schedule, exact in (("levels", True), ("random_level", False)):
        summary = train_in(tmp_path / schedule, config, env_schedule=f"schedules:{schedule}")
        assert summary["exact"] is exact


@pytest.mark.parametrize("name", ["Bfloat16Buffer", "SparseBuffer"])
def test_a_constant_buffer_may_be_of_any_type(name: str, tmp_path: Path) -> None:
    assert train_in(tmp_path / "run", SMALL, core="none", check_determinism=0, network=f"networks:{name}")["exact"]


@pytest.mark.parametrize("name", ["Counts", "RunningMean", "Draws", "DrawsWhileLearning"])
def test_a_network_with_a_state_of_its_own_makes_a_run_inexact(name: str, tmp_path: Path) -> None:
    summary = train_in(tmp_path / "run", SMALL, core="none", check_determinism=0, network=f"networks:{name}")
    reasons = {
        "Counts": "changes calls, of",
        "RunningMean": "changes mean, of",
        "Draws": "draws from np.random",
        "DrawsWhileLearning": "changes the state of torch, of",
    }
    assert reasons[name] in "; ".join(summary["inexact_reasons"])


def test_changed_lists_are_not_detected(user_module: Any, tmp_path: Path) -> None:
    """The limits that docs/guides/reproducibility.md names."""
    config = dataclasses.replace(SMALL, env="module_of_a_user:Scaled", check_determinism=0, total_steps=128)
    user_module.LISTED[0] = 2.0
    runs = [train_in(tmp_path / str(w), config, workers=w) for w in (0, 1)]
    assert [summary["exact"] for summary in runs] == [True, True]
    assert runs[0]["weights_sha256"] != runs[1]["weights_sha256"]
    config = dataclasses.replace(SMALL, core="none", check_determinism=0, network="networks:Lists")
    assert train_in(tmp_path / "network", config)["exact"]
