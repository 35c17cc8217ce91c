"""The processes of a check of determinism: a new interpreter, which starts another one with another hash seed.

    run → first process ⇄ second process

The second process sends its outcomes to the first one, which compares and sends a `Finding` to the run. Both processes
have a low priority. Each one ends when its standard input is closed, which also happens if the process before it is
killed. This module imports nothing that takes long, so that a new process soon watches its standard input.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from multiprocessing import spawn
from typing import IO, TYPE_CHECKING, Any, cast

from shmppo.utils.signals import kill_with_parent

if TYPE_CHECKING:
    from shmppo.config.train_config import TrainConfig
    from shmppo.envs.determinism_check import Finding, Outcome
    from shmppo.envs.spec import Task

NAME = "determinism check"
NICENESS = 15  # lower priority than training
HASH_SEEDS = {"first": "0", "second": "1"}
"""PYTHONHASHSEED of each process."""
CLOSE_SECONDS = 1.0
"""Time after which a process is killed that does not end by itself."""
_SIZE_BYTES = 8


class CheckProcess:
    """The first process of a check. Close it, also if it has ended."""

    def __init__(self, config: TrainConfig, task: Task, steps: int, *, niceness: int = NICENESS) -> None:
        """Start the process.

        Args:
            config: of the run. Its seed decides the seeds and actions of the check.
            task: description of the environment.
            steps: number of steps to compare.
            niceness: what is added to the niceness of this process.

        Raises:
            Exception: if the system cannot start a process, or if the request cannot be pickled.
        """
        from shmppo.envs.determinism_check import make_request

        if task.backend != "vector":  # only UserVectorEnv needs the distribution, whose import of torch takes seconds
            task = _without_distribution(task)
        request = pickle.dumps(make_request(config, task, steps))
        message = pickle.dumps((_preparation(import_main=config.num_workers > 0), request))
        self._process = _start("first", message, niceness)

    def poll(self) -> Finding | None:
        """Return the result, or None if the process has not ended."""
        if self._process.poll() is None:
            return None
        return self._finding()

    def wait(self) -> Finding:
        """Wait until the process has ended, and return the result."""
        self._process.wait()
        return self._finding()

    def _finding(self) -> Finding:
        """Read what the process has sent before it ended. A process of the environment may still have the pipe open."""
        from shmppo.envs.determinism_check import Finding

        output = cast(IO[bytes], self._process.stdout)
        os.set_blocking(output.fileno(), False)
        try:
            return Finding(**json.loads(output.read() or b""))
        except ValueError:
            return Finding(0, problem=f"its process ended with exit code {self._process.returncode}")

    def close(self) -> None:
        """End the process, and wait up to CLOSE_SECONDS before it is killed."""
        _end(self._process)


def _without_distribution(task: Task) -> Task:
    import dataclasses

    return dataclasses.replace(task, distribution=cast(Any, None))


def _preparation(*, import_main: bool) -> dict[str, Any]:
    """Return what `multiprocessing.spawn.prepare` needs to import the modules that this process can import.

    Args:
        import_main: whether to import the main script, which may register environments. Workers import it, too. A run
            without workers may have a script that cannot be imported.
    """
    if not import_main:
        return {"sys_path": sys.path, "sys_argv": sys.argv}
    data = spawn.get_preparation_data(NAME)
    del data["authkey"]  # it cannot be pickled here, and the process opens no connections
    return data


def _start(role: str, message: bytes, niceness: int = 0) -> subprocess.Popen[bytes]:
    """Start a process, and send it a message. It lowers its priority before it imports anything else."""
    code = (
        f"import os, sys; os.nice({niceness}); sys.path[:] = {sys.path!r}; "
        f"from shmppo.envs.check_process import main; main({role!r})"
    )
    process = subprocess.Popen(
        [os.fsdecode(spawn.get_executable()), "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONHASHSEED": HASH_SEEDS[role]},
    )
    with contextlib.suppress(BrokenPipeError):  # it has ended already; its exit code is reported later
        stdin = cast(IO[bytes], process.stdin)
        stdin.write(len(message).to_bytes(_SIZE_BYTES, "little") + message)
        stdin.flush()
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close the pipes of a process, and reap it."""
    with contextlib.suppress(BrokenPipeError):
        cast(IO[bytes], process.stdin).close()
    try:
        process.wait(CLOSE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    cast(IO[bytes], process.stdout).close()


class _SecondProcessError(Exception):
    """The second process has failed. The text says how."""


class _Second:
    """The second process, as the first one sees it. Iterate to get its outcomes."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    def outcomes(self, message: bytes) -> Iterator[Outcome]:
        """Start the process, and yield its outcomes. Raises _SecondProcessError if it fails."""
        self.process = _start("second", message)
        output = cast(IO[bytes], self.process.stdout)
        while True:
            try:
                received = pickle.load(output)
            except EOFError:
                code = self.process.wait()
                raise _SecondProcessError(f"its second process ended with exit code {code}") from None
            if received is None:
                return
            if isinstance(received, str):
                raise _SecondProcessError(received)
            yield received

    def kill(self) -> None:
        """Kill and reap the process, if it was started."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def main(role: str) -> None:
    """The main function of both processes. Standard input holds the message. role: "first" or "second"."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    kill_with_parent()
    with os.fdopen(os.dup(1), "wb") as results:
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 1)  # what the environment prints
        message = _read_message()
        second = _Second()
        threading.Thread(target=_exit_when_input_closes, args=(second,), daemon=True).start()
        preparation, request = pickle.loads(message)
        _prepare(preparation)
        if role == "first":
            try:
                finding = _compare(request, second.outcomes(message))
            finally:
                second.kill()
            results.write(json.dumps(finding._asdict()).encode())
        else:
            _send_outcomes(request, results)


def _read_message() -> bytes:
    """Read the message from standard input, without a buffer that another thread could hold."""
    with os.fdopen(0, "rb", buffering=0, closefd=False) as stdin:
        size, message = int.from_bytes(stdin.read(_SIZE_BYTES) or b"", "little"), b""
        while len(message) < size:
            part = stdin.read(size - len(message))
            if not part:
                os._exit(1)
            message += part
    return message


def _exit_when_input_closes(second: _Second) -> None:
    """Exit immediately when the run or the first process has closed the pipe or has ended, also during a step."""
    while os.read(0, 1):
        pass
    second.kill()
    os._exit(1)


def _prepare(data: dict[str, Any]) -> None:
    """Make the modules of the run importable, and import its main script if `data` says so."""
    process: Any = multiprocessing.current_process()
    process._inheriting = True  # a script without a guard then refuses to train
    try:
        spawn.prepare(data)
    finally:
        del process._inheriting


def _compare(request: bytes, others: Iterator[Outcome]) -> Finding:
    """Compare the outcomes of both processes. Whatever the environment raises becomes a problem."""
    from shmppo.envs.determinism_check import Finding, compare
    from shmppo.utils.user_code import FAILURES, describe_error

    try:
        return compare(pickle.loads(request), others)
    except _SecondProcessError as error:
        return Finding(0, problem=str(error))
    except FAILURES as error:
        return Finding(0, problem=describe_error(error))


def _send_outcomes(request: bytes, results: IO[bytes]) -> None:
    """Send the outcomes of the second process, then None; or the text of what was raised."""
    from shmppo.envs.determinism_check import outcomes_beside_another
    from shmppo.utils.user_code import FAILURES, describe_error

    try:
        for outcome in outcomes_beside_another(pickle.loads(request)):
            pickle.dump(outcome, results)
            results.flush()
        pickle.dump(None, results)
    except BrokenPipeError:
        os._exit(1)  # the first process has found a difference and does not need the rest
    except FAILURES as error:
        pickle.dump(describe_error(error), results)
