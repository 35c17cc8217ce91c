"""Which files of the package execute a line in one iteration, in the learner and in the workers.

`python tests/iteration_trace.py` prints them, from collecting a rollout to writing the row of metrics of the second
iteration, with two workers and sharded learning.
"""

from __future__ import annotations

import ast
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import gymnasium

import shmppo

PACKAGE = str(Path(shmppo.__file__).parent)
TRACED_ITERATION = 1
OUT = "ITERATION_TRACE_OUT"
"""Environment variable: the directory to which workers write their files."""


class Tracer:
    """Records the files of the package in which lines are executed while it is active."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.active = False
        self.collects = 0
        self.installed = False

    def start(self) -> None:
        """Trace the calls of this thread from now on, and the frames that are open already."""
        self.active = True
        sys.settrace(self._call)
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            frame.f_trace = self._call(frame, "call", None)
            frame = frame.f_back

    def stop(self) -> None:
        self.active = False
        sys.settrace(None)

    def _call(self, frame: FrameType, event: str, _: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(PACKAGE) else None

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        if self.active and event == "line":
            self.files.add(frame.f_code.co_filename)
        return self._line


TRACER = Tracer()


def trace_worker() -> None:
    """In a worker: trace from the second Collect command to the third."""
    from shmppo.lockstep.mailbox import WorkerMailbox
    from shmppo.lockstep.pool import Collect

    receive = WorkerMailbox.receive

    def traced(mailbox: WorkerMailbox) -> Any:
        command = receive(mailbox)
        TRACER.collects += isinstance(command, Collect)
        if command is not None and TRACER.collects == TRACED_ITERATION + 1:
            TRACER.start()
        else:
            TRACER.stop()
        return command

    WorkerMailbox.receive = traced  # type: ignore[method-assign]


class TracedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Writes the recorded files when it is closed."""

    def close(self) -> None:
        Path(os.environ[OUT], f"{os.getpid()}.json").write_text(json.dumps(sorted(TRACER.files)))
        super().close()


def make() -> gymnasium.Env[Any, Any]:
    """The environment of the traced run. In a worker, the first call installs the tracer."""
    import multiprocessing

    if multiprocessing.parent_process() is not None and not TRACER.installed:
        TRACER.installed = True
        trace_worker()
    return TracedEnv(gymnasium.make("CartPole-v1"))


def traced_files() -> set[str]:
    """Train three iterations with two workers, and trace the second."""
    from shmppo import TrainConfig, train
    from shmppo.lockstep.learner import Learner
    from shmppo.storage.run_directory import MetricsFile

    publish, write = Learner.publish_statistics, MetricsFile.write

    def traced_publish(learner: Learner, iteration: int) -> None:
        publish(learner, iteration)
        if iteration == TRACED_ITERATION:
            TRACER.start()

    def traced_write(metrics: MetricsFile, row: dict[str, float], hashes: Mapping[str, str]) -> None:
        write(metrics, row, hashes)
        TRACER.stop()

    Learner.publish_statistics = traced_publish  # type: ignore[method-assign]
    MetricsFile.write = traced_write  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as directory:
        os.environ[OUT] = directory
        train(
            TrainConfig(
                env="iteration_trace:make", hide_obs=(1, 3), workers=2, num_envs=8, rollout_steps=128, epochs=2,
                minibatches=2, grad_shards=2, total_steps=8 * 128 * 3, quiet=True, run_dir=f"{directory}/run",
            )
        )  # fmt: skip
        return TRACER.files.union(*(json.loads(path.read_text()) for path in Path(directory).glob("*.json")))


def code_lines(path: str) -> int:
    """Lines of a file that are neither blank nor in a docstring."""
    text = Path(path).read_text()
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return sum(1 for i, line in enumerate(text.splitlines(), 1) if line.strip() and i not in docstrings)


if __name__ == "__main__":
    # Workers import this file under its name, and the learner must share their module.
    import iteration_trace

    lines = {path: code_lines(path) for path in iteration_trace.traced_files()}
    for path, count in sorted(lines.items()):
        print(f"{count:5}  {Path(path).relative_to(Path(PACKAGE).parent)}")
    print(f"{sum(lines.values()):5}  in {len(lines)} files")
