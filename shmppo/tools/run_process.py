"""Training runs in processes of their own, several of them at the same time on the cores of this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from shmppo.config.checks import flags_with_values
from shmppo.config.option import fields_with
from shmppo.config.resumable import RESUMABLE, refuse_other_run
from shmppo.config.train_config import TrainConfig
from shmppo.config.trust import Trusted, trust_flags, trust_of
from shmppo.storage.run_directory import CONFIG, has_finished, holds_run
from shmppo.utils.files import complete_rows, open_file, read_file, refuse_links
from shmppo.utils.machine import own_cores
from shmppo.utils.signals import kill_with_parent

POLL_SECONDS = 0.1


class RunProcess:
    """A run that is started, or continued from its newest checkpoint, with `python -m shmppo.train`.

    Attributes:
        run_dir: its directory. What the process prints goes to its file output.txt.
        cores: that the run uses; [] if it has not been started.
    """

    def __init__(self, config: TrainConfig, run_dir: Path) -> None:
        """Describe the run.

        Raises:
            ConfigError: if the directory has a run with another configuration.
        """
        self.config, self.run_dir = config.with_absolute_paths(), run_dir
        self.cores: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._output_start, self._asked_to_stop = 0, False
        refuse_links(run_dir)
        if (run_dir / CONFIG).is_file():
            refuse_other_run(run_dir, self.config)

    def start(self, cores: list[int], *flags: str) -> None:
        """Start the run on these cores, or continue it from its newest checkpoint, with further flags."""
        self.cores = cores
        source = self._source()
        self.run_dir.mkdir(parents=True, exist_ok=True)
        workers = self.config.workers
        if workers is None:
            workers = min(len(cores), self.config.num_envs) if len(cores) > 1 else 0
        learning = self.config.learning if workers else "auto"  # sharded needs workers; the weights are the same
        own = ["--workers", str(workers), "--learning", learning, "--quiet"]
        words = [sys.executable, "-m", "shmppo.train", *source, *own, *flags]
        path = os.pathsep.join([sys.path[0], os.environ.get("PYTHONPATH", "")])  # it imports what a script here imports

        parent = os.getpid()

        def prepare() -> None:
            """Let the run use only its cores, and end with this process."""
            if hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(0, cores)
            kill_with_parent()
            if os.getppid() != parent:  # it ended before the call above
                os._exit(1)

        with open_file(self.run_dir / "output.txt", "ab") as output:
            self._output_start = output.tell()
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                preexec_fn=prepare, env=os.environ | {"PYTHONPATH": path},
            )  # fmt: skip

    def ended(self) -> bool:
        """Return whether the process of the run has ended."""
        return self._process is not None and self._process.poll() is not None

    def stop(self) -> None:
        """Ask the run to stop after its current iteration, with a checkpoint. A second call does nothing."""
        if self._process is not None and not self._asked_to_stop:
            self._asked_to_stop = True
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the run now. It continues from its last checkpoint later."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def failure(self) -> str:
        """Why the process has failed: its error message, or its signal. "" if it has not failed."""
        code = None if self._process is None else self._process.poll()
        if not code or self._asked_to_stop:
            return ""
        if code < 0:
            return f"it was killed by {signal.Signals(-code).name}"
        output = read_file(self.run_dir / "output.txt")[self._output_start :]
        lines = output.decode(errors="replace").splitlines()
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        return errors[-1] if errors else f"it ended with exit code {code}"

    @property
    def finished(self) -> bool:
        """Whether the run has ended without an error after its last iteration, or with a condition of --stop-when."""
        return has_finished(self.run_dir, self.config.last_iteration, self.config.stop_when)

    @property
    def steps(self) -> int:
        """Environment steps of the run so far."""
        return int(float((self.rows() or [{"env_steps": "0"}])[-1]["env_steps"]))

    def rows(self, table: str = "metrics.csv") -> list[dict[str, str]]:
        """Return the complete rows of metrics.csv or eval.csv."""
        path = self.run_dir / table
        return complete_rows(path) if path.exists() else []

    def _source(self) -> list[str]:
        """Return the flags that start a new run, or continue the run."""
        if holds_run(self.run_dir):
            own = TrainConfig(**self.config.to_json())  # as in the checkpoint, with defaults in place of None
            kept = [name for name in RESUMABLE if name not in ("workers", "quiet")]
            flags = flags_with_values({name: getattr(own, name) for name in kept})
            return ["--resume", str(self.run_dir), *trust_of(self.run_dir).split(), *flags]
        fields = self.config.fields() | {"run_dir": str(self.run_dir)}
        unset = (*fields_with(TrainConfig, derived=True), "ranks", "rank")
        # All of them, because with --init-from the defaults are the options of that run.
        return flags_with_values({name: fields[name] for name in fields if name not in unset})


Run = TypeVar("Run", bound=RunProcess)


class RunPool(Generic[Run]):
    """Runs that train at the same time. Each has cores of its own. running: those with a process."""

    def __init__(self, jobs: int | None, trust: Trusted = ()) -> None:
        """Create a pool without runs.

        Args:
            jobs: most runs at the same time. None, or more than there are cores: one per core.
            trust: modules of which a run may import code, although only another run names it.
        """
        self._flags = trust_flags(trust).split()
        self.running: list[Run] = []
        self._free_cores = own_cores()
        self._jobs = min(jobs or len(self._free_cores), len(self._free_cores))

    def start(self, waiting: deque[Run]) -> None:
        """Start runs while there are cores. The last ones share the cores that no other run needs."""
        while waiting and self._free_cores and len(self.running) < self._jobs:
            share = max(1, len(self._free_cores) // min(len(waiting), self._jobs - len(self.running)))
            cores, self._free_cores = self._free_cores[:share], self._free_cores[share:]
            self.running.append(waiting.popleft())
            self.running[-1].start(cores, *self._flags)

    def wait(self, *, stopping: bool) -> list[Run]:
        """Wait a moment. Returns the runs that have ended. stopping: ask the runs to stop before."""
        if stopping:
            for run in self.running:
                run.stop()
        time.sleep(POLL_SECONDS)
        ended = [run for run in self.running if run.ended()]
        for run in ended:
            self.running.remove(run)
            self._free_cores += run.cores
        return ended

    def train(self, waiting: deque[Run], stopping: Callable[[], bool]) -> None:
        """Train runs to their end. When `stopping()` is true, let those with a process save a checkpoint and stop."""
        try:
            while self.running or (waiting and not stopping()):
                if not stopping():
                    self.start(waiting)
                self.wait(stopping=stopping())
        finally:
            self.kill()

    def kill(self) -> None:
        """End all runs now."""
        for run in self.running:
            run.kill()
