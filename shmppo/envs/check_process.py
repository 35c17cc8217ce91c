"""The check that an environment is a function of its seed and its actions: starts two processes, compares their lines.

`determinism_check` says what the processes do.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from multiprocessing import spawn
from typing import IO, Any, NamedTuple, cast

from shmppo.config.train_config import TrainConfig
from shmppo.envs.determinism_check import UNROUNDED, Outcome, make_request
from shmppo.envs.spec import Task
from shmppo.utils import signals

LOWEST_PRIORITY = (
    "os.nice(19); hasattr(os, 'SCHED_IDLE') and os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)); "
)
"""Code of a process that then gets only time that no other process needs. On Linux, any other one interrupts it."""
_POLL_SECONDS = 0.02


class Finding(NamedTuple):
    """The result of a check."""

    steps: int
    """Number of steps that were the same."""
    difference: str | None = None
    """What differed first and where. None: nothing."""
    problem: str | None = None
    """Why not all steps were checked. None: all were, or there is a difference."""


class CheckProcesses:
    """The two processes of a check. Call `close` in any case."""

    def __init__(self, config: TrainConfig, task: Task, steps: int, *, background: bool) -> None:
        """Start the processes.

        Args:
            config: of the run. Its seed decides the seeds and actions of the check.
            task: description of the environment.
            steps: number of steps to compare.
            background: whether the processes get only time that no other process of the machine needs.

        Raises:
            OSError: if the system cannot start a process.
        """
        self._sides: list[_Side] = []
        self._steps = 0
        main = _main_script() if config.num_workers else {}  # without workers, nothing says it has a guard
        for alone in (True, False):
            request = pickle.dumps((main, make_request(config, task, steps, alone=alone)))
            self._sides.append(_Side(request, hash_seed=int(alone), background=background))

    def poll(self) -> Finding | None:
        """Compare what both processes have printed so far. Return the result, or None if it is not known yet."""
        codes = [side.read() for side in self._sides]
        first, second = (side.lines for side in self._sides)
        while first and second:
            outcome = Outcome(*json.loads(first.pop(0)))
            if finding := compare(outcome, Outcome(*json.loads(second.pop(0))), self._steps):
                return finding
            self._steps = outcome.steps
        failed = [code for code, side in zip(codes, self._sides, strict=True) if code and not side.lines]
        if failed:
            return Finding(self._steps, problem=f"a process of the check ended with exit code {failed[0]}")
        return Finding(self._steps) if codes == [0, 0] else None

    def wait(self) -> Finding:
        """Wait for the result, and return it."""
        while (finding := self.poll()) is None:
            time.sleep(_POLL_SECONDS)
        return finding

    def close(self) -> None:
        """Kill and reap the processes."""
        for side in self._sides:
            side.close()


class _Side:
    """One process, and the lines that it has printed and nobody has compared."""

    def __init__(self, request: bytes, *, hash_seed: int, background: bool) -> None:
        # The process first makes sure that it ends with its parent, and lowers its priority. Imports take time. It
        # has its own process group, so that `close` also kills what the environment has started. With its own session,
        # Linux (autogroup) would give it as much time as the run.
        end = (
            f"runpy.run_path({signals.__file__!r})['kill_with_parent'](); os.getppid() == {os.getpid()} or os._exit(1)"
        )
        lower = LOWEST_PRIORITY if background else ""
        run = "from shmppo.envs.determinism_check import main; main()"
        code = f"import os; os.setpgrp(); import runpy, sys; {end}; {lower}sys.path[:] = {sys.path!r}; {run}"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONHASHSEED": str(hash_seed)},
        )
        self.lines: list[bytes] = []
        self._rest = b""
        with contextlib.suppress(BrokenPipeError), cast(IO[bytes], self._process.stdin) as stdin:
            stdin.write(request)
        os.set_blocking(cast(IO[bytes], self._process.stdout).fileno(), False)

    def read(self) -> int | None:
        """Read what the process has printed. Return its exit code, or None if it had not ended before."""
        code = self._process.poll()
        if code is not None or not self.lines:  # a process that is ahead waits when the pipe is full
            *new, self._rest = (self._rest + (cast(IO[bytes], self._process.stdout).read() or b"")).split(b"\n")
            self.lines += new
        return code

    def close(self) -> None:
        """Kill the process, unless it has ended, and what its environment has started."""
        with contextlib.suppress(ProcessLookupError):  # nothing is left, or the group does not exist yet
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        cast(IO[bytes], self._process.stdout).close()


def compare(first: Outcome, second: Outcome, steps: int) -> Finding | None:
    """Compare the outcomes of both processes at one place. Return None if they are the same and others follow.

    steps: number of steps that were the same before.
    """
    if problem := first.problem or second.problem:
        return Finding(steps, problem=problem)
    if bool(first.raised) != bool(second.raised):
        return Finding(steps, f"what the environment raises differs {first.place}")
    if first.raised:
        return Finding(steps, problem=first.raised)
    names = [
        name + _index(first.values.get(name), second.values.get(name))
        for name in dict.fromkeys([*first.values, *second.values])
        if first.values.get(name) != second.values.get(name)
    ]
    names = [name for name in names if name != UNROUNDED] or names
    return Finding(steps, f"{', '.join(names)} differ{'s' * (len(names) == 1)} {first.place}") if names else None


def _index(first: Any, second: Any) -> str:
    """Return the index of the first number that differs in two printed vectors, such as "[3]". "" for other values."""
    numbers = list(zip(str(first).split(), str(second).split(), strict=False))
    return f"[{next(k for k, (a, b) in enumerate(numbers) if a != b)}]" if len(numbers) > 1 else ""


def _main_script() -> dict[str, Any]:
    """Return the file and the arguments of the main script, as workers get them. It may register the environment."""
    data = spawn.get_preparation_data("")
    return {key: value for key, value in data.items() if key.startswith("init_main") or key == "sys_argv"}
