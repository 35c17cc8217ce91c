"""The Python API: imports, scripts, sessions without a file, callbacks, loggers, and loaded policies."""

from __future__ import annotations

import dataclasses
import os
import signal
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from public_helpers import SIX_ITERATIONS, python, summary_of, train_in

from shmppo import ConfigError, load_policy, plot_runs, read_metrics, resume, train
from shmppo.envs.vector_env import FIRST_INDEX
from shmppo.policies.evaluation import evaluate
from shmppo.utils.rng import episode_seed

SMALL = dataclasses.replace(SIX_ITERATIONS, hide_obs=(1, 3), workers=1)


def test_importing_the_package_and_its_command_imports_no_large_library() -> None:
    result = python("-c", "import shmppo.cli, sys; print(*sys.modules)")
    assert not {"torch", "gymnasium", "numpy", "mujoco"} & set(result.stdout.split())


SCRIPT = """
import sys
from shmppo import TrainConfig, train

def main():
    config = TrainConfig(num_envs=4, rollout_steps=8, minibatches=1, workers=2, total_steps=64, run_dir=sys.argv[1])
    print(train(config)["iterations"])
"""
GUARD = '\nif __name__ == "__main__":\n    main()\n'


@pytest.mark.slow(reason="about 12 s")
def test_a_script_with_the_guard_trains_and_one_without_gets_an_error(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(SCRIPT + GUARD)
    (tmp_path / "bad.py").write_text(SCRIPT + "\nmain()\n")
    result = python(tmp_path / "good.py", tmp_path / "good")
    assert result.stdout.splitlines()[-1] == "2", result.stderr
    result = python(tmp_path / "bad.py", tmp_path / "bad")
    assert result.returncode == 1
    assert 'put the call under `if __name__ == "__main__":`' in result.stderr


def test_a_dictionary_is_refused_with_the_class_to_use() -> None:
    with pytest.raises(ConfigError, match=r"train got \{'env': 'Pendulum-v1'\}; pass a TrainConfig"):
        train({"env": "Pendulum-v1"})  # type: ignore[arg-type]


def test_the_callback_sees_every_row_and_can_stop_the_run(tmp_path: Path) -> None:
    whole = train_in(tmp_path / "whole", SMALL)
    rows: list[dict[str, float]] = []

    def callback(row: dict[str, float]) -> bool:
        rows.append(dict(row))
        row.clear()  # the callback may change its row
        return len(rows) == 3

    summary = train_in(tmp_path / "run", SMALL, callback=callback)
    assert [row["iteration"] for row in rows] == [1, 2, 3]
    assert (summary["iterations"], summary["stop_reason"]) == (3, "callback")
    rest = resume(tmp_path / "run", callback=lambda row: rows.append(row))  # type: ignore[func-returns-value]
    assert [row["env_steps"] for row in rows] == [128 * i for i in range(1, 7)]
    assert rest["weights_sha256"] == whole["weights_sha256"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_loop_over_seeds_and_the_run_is_saved(number: int, tmp_path: Path) -> None:
    whole = train_in(tmp_path / "whole", SMALL)
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)

    def callback(row: dict[str, float]) -> None:
        if row["iteration"] == 2:
            os.kill(os.getpid(), number)

    def train_seeds() -> None:
        for seed in (1, 2):
            train_in(tmp_path / f"run-{seed}", SMALL, seed=seed, callback=callback)

    with pytest.raises(KeyboardInterrupt, match=r"run-1 was stopped after iteration [23] and saved"):
        train_seeds()
    assert not (tmp_path / "run-2").exists()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    summary = summary_of(tmp_path / "run-1")
    assert (summary["stop_reason"], summary["error"]) == ("signal", None)
    rest = resume(tmp_path / "run-1")
    assert (rest["stop_reason"], rest["weights_sha256"]) == ("finished", whole["weights_sha256"])


class RecordingLogger:
    """A logger that stores its calls. It raises in the method `fails_in`."""

    def __init__(self, fails_in: str = "") -> None:
        self.fails_in = fails_in
        self.calls: list[tuple[str, Any]] = []

    def _record(self, method: str, value: Any) -> None:
        if method == self.fails_in:
            raise RuntimeError("no connection")
        self.calls.append((method, value))

    def start(self, run_dir: Path, config: Any, iteration: int) -> None:
        self._record("start", (run_dir.name, config["env"], iteration))

    def log(self, row: dict[str, float]) -> None:
        self._record("log", row["iteration"])

    def finish(self, summary: Any) -> None:
        self._record("finish", summary and summary["iterations"])


def test_loggers_are_called_for_the_whole_run_and_a_failing_one_is_removed(tmp_path: Path) -> None:
    config = dataclasses.replace(SMALL, run_dir=str(tmp_path / "run"), stop_at_iteration=2)
    loggers = [RecordingLogger(), RecordingLogger("start"), RecordingLogger("log"), RecordingLogger("finish")]
    alone = train_in(tmp_path / "alone", config)
    assert train(config, loggers=loggers)["weights_sha256"] == alone["weights_sha256"]
    started, logged = ("start", ("run", "CartPole-v1", 0)), [("log", 1), ("log", 2)]
    assert loggers[0].calls == [started, *logged, ("finish", 2)]
    assert [logger.calls for logger in loggers[1:]] == [[], [started], [started, *logged]]
    text = (tmp_path / "run" / "run.log").read_text()
    assert text.count("RecordingLogger failed and gets no more rows: RuntimeError('no connection')") == 3


def test_an_exception_of_the_callback_ends_the_run_and_reaches_the_caller_and_the_loggers(tmp_path: Path) -> None:
    def callback(row: dict[str, float]) -> None:
        raise LookupError("pruned")

    logger = RecordingLogger()
    with pytest.raises(LookupError, match="pruned"):
        train_in(tmp_path / "run", SMALL, callback=callback, loggers=[logger])
    assert [method for method, _ in logger.calls] == ["start", "log", "finish"]
    assert logger.calls[-1] == ("finish", None)


def test_the_metrics_of_a_run_are_read_as_arrays(tmp_path: Path) -> None:
    rows: list[dict[str, float]] = []
    train_in(tmp_path / "run", SMALL, eval_every=2, eval_episodes=2, callback=rows.append)
    metrics = read_metrics(tmp_path / "run")
    for name, column in metrics.items():
        np.testing.assert_allclose(column, [row[name] for row in rows], rtol=1e-6, err_msg=name)
    assert read_metrics(str(tmp_path / "run"), "eval")["iteration"].tolist() == metrics["iteration"][1::2].tolist()
    with pytest.raises(ConfigError, match=r"nowhere.metrics.csv"):
        read_metrics(tmp_path / "nowhere")
    page = plot_runs(tmp_path / "run", out=tmp_path / "curves.html", metrics=["approx_kl", "eval/return"])
    assert page.read_text().startswith("<!DOCTYPE html>")
    for arguments, message in (({"metrics": "return_meen"}, "return_meen"), ({"x": "time"}, "use steps or seconds")):
        with pytest.raises(ConfigError, match=message):
            plot_runs(tmp_path / "run", out=page, **arguments)
    with pytest.raises(ConfigError, match="no run directory"):
        plot_runs()


def test_a_loaded_policy_gets_the_return_of_the_evaluation(tmp_path: Path) -> None:
    for name, change in {"discrete": {}, "box": {"env": "Pendulum-v1", "hide_obs": (2,), "core": "gru"}}.items():
        config = dataclasses.replace(SMALL, run_dir=str(tmp_path / name), **change)  # type: ignore[arg-type]
        train(config)
        policy = load_policy(tmp_path / name)
        env = gymnasium.make(config.env_id)
        obs, _ = env.reset(seed=episode_seed(1, FIRST_INDEX, 0))
        state, total, ended = policy.initial_state(), 0.0, False
        while not ended:
            action, state = policy.act(obs, state)
            assert env.action_space.contains(action)
            obs, reward, terminated, truncated, _ = env.step(action)
            total, ended = total + float(reward), terminated or truncated
        env.close()
        assert total == pytest.approx(evaluate(tmp_path / name, episodes=1, seed=1).returns[0], rel=1e-4)
