"""Processes that cannot train, or cannot start workers, say so in one sentence."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import select
import signal
from pathlib import Path
from typing import Any

import pytest
from public_helpers import long_after, raises

from shmppo import ConfigError, TrainConfig, resume, train

BASE = TrainConfig(
    env="environments:Counter-v0", num_envs=2, rollout_steps=8, minibatches=1, epochs=1, hidden_size=8,
    encoder_sizes=(8,), workers=0, quiet=True, total_steps=2 * 8, seq_len=8,
)  # fmt: skip


def result_of(config: TrainConfig) -> str:
    try:
        return f"{train(config)['iterations']} iteration"
    except Exception as error:
        return str(error)


def test_a_process_that_was_forked_after_training_is_refused(tmp_path: Path) -> None:
    """Torch would wait forever for threads that the fork has not copied."""
    large = {"num_envs": 64, "rollout_steps": 256}  # so that torch uses several threads to clear the shared memory
    train(dataclasses.replace(BASE, run_dir=str(tmp_path / "first"), total_steps=64 * 256, **large))
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            texts = [result_of(dataclasses.replace(BASE, run_dir=str(tmp_path / "second"), **large))]
            try:
                resume(tmp_path / "first", total_steps=10**6)
            except ConfigError as error:
                texts.append(str(error))
            os.write(write_end, "\n".join(texts).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as file:
        ended = bool(select.select([file], [], [], 100)[0])  # it writes, or the end of the process closes the pipe
        if not ended:
            os.kill(child, signal.SIGKILL)
        texts = file.read().splitlines()
    os.waitpid(child, 0)
    assert ended, "the forked process hangs"
    expected = "`train` or `resume` was called in the parent process before it forked this one"
    assert [text.partition(", and ")[0] for text in texts] == [expected, expected]
    assert not (tmp_path / "second").exists()


def test_a_daemonic_process_trains_without_workers_and_refuses_to_start_some(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    state: Any = multiprocessing.current_process()
    monkeypatch.setitem(state._config, "daemon", True)
    assert multiprocessing.current_process().daemon
    changes: list[dict[str, Any]] = [{"workers": 0}, {"workers": 1}, {"eval_every": 1}]
    results = [
        result_of(dataclasses.replace(BASE, run_dir=str(tmp_path / str(i)), **change))
        for i, change in enumerate(changes)
    ]
    refusal = "this process is daemonic, so it may not start workers or evaluations"
    assert [text.partition("; ")[0] for text in results] == ["1 iteration", refusal, refusal]
    assert os.listdir(tmp_path) == ["0"]


@pytest.mark.parametrize("workers", long_after(1, [0, 2]))
def test_an_interrupt_that_an_environment_raises_is_a_failure_of_the_environment(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only signals stop a run as Ctrl-C does."""
    monkeypatch.setattr("shmppo.sampling.worker_pool.MAX_RESTARTS", 0)
    config = dataclasses.replace(
        BASE, env="environments:FailsSometimes-interrupt-v0", num_envs=4, workers=workers,
        rollout_steps=64, total_steps=4 * 64, run_dir=str(tmp_path / "run"),
    )  # fmt: skip
    with raises("WorkerError" if workers else "EnvError", r"environment \d: step raised KeyboardInterrupt\(\) at "):
        train(config)
    assert (tmp_path / "run" / "failed_episode.json").is_file()
