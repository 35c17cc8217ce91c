"""One training run of a trial up to a rung, in a process of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shmppo.config.checks import require
from shmppo.config.differences import differences
from shmppo.config.resumable import different_fields
from shmppo.config.schemas import SUMMARY_FILE, read_object
from shmppo.config.train_config import TrainConfig, from_json, load_config
from shmppo.errors import ConfigError
from shmppo.plotting.curves import read_columns
from shmppo.utils.files import write_json

EXPLODED = 1e6
"""A value loss this many times larger than in the first iteration is an explosion."""


@dataclass(frozen=True)
class RunResult:
    """The result of a run at a rung."""

    value: float
    """The objective. NaN after a failure."""
    failure: str = ""
    """Why the run counts as failed; "" if it does not."""
    weights_sha256: str = ""


class TrialRun:
    """A run of a trial with one seed. It is started once per rung.

    Attributes:
        trial: number of the trial.
        seed: of the run.
        iterations: number of iterations at the rung.
        cores: that the run uses; () if it is not running.
    """

    def __init__(self, trial: int, config: TrainConfig, iterations: int, run_dir: Path, *, objective: str) -> None:
        """Describe the run.

        Args:
            trial: number of the trial.
            config: of the run, with its seed.
            iterations: number of iterations after which it pauses.
            run_dir: its directory.
            objective: value of --objective.

        Raises:
            ConfigError: if the directory has a run with another configuration.
        """
        self.trial, self.seed, self.iterations = trial, config.seed, iterations
        self.cores: tuple[int, ...] = ()
        self._config, self._run_dir, self._objective = config, run_dir, objective
        self._process: subprocess.Popen[bytes] | None = None
        self._refuse_other_run()
        self._asked = False  # to stop

    def start(self, cores: tuple[int, ...]) -> None:
        """Start the run, or continue it from its newest checkpoint. cores: those that it may use."""
        self.cores = cores
        self._run_dir.parent.mkdir(parents=True, exist_ok=True)
        workers = min(len(cores), self._config.num_envs) if len(cores) > 1 else 0
        command = [sys.executable, "-m", "shmppo.search.trial_process", str(os.getpid()), ",".join(map(str, cores))]
        command += self._source()
        command += ["--workers", str(workers), "--stop-at-iteration", str(self.iterations), "--quiet"]
        with open(self._output, "ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )

    def ended(self) -> bool:
        """Return whether the process of the run has ended."""
        return self._process is not None and self._process.poll() is not None

    def stop(self) -> None:
        """Ask the run to stop after its current iteration, with a checkpoint. A second call does nothing."""
        if self._process is not None and not self._asked:
            self._asked = True
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the run now. It continues from its last checkpoint later."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def result(self) -> RunResult | None:
        """Return the result at the rung; None if the run has to be started or continued for it."""
        code = None if self._process is None else self._process.poll()
        if code not in (None, 0) and not self._asked:  # a run that is asked before it handles signals ends at once
            return RunResult(float("nan"), self._reason(int(code or 0)))
        summary = self._summary()
        if summary is None or summary["iterations"] < self.iterations:
            return None
        value, failure = self._judge()
        return RunResult(value, failure, summary["weights_sha256"])

    @property
    def finished_iterations(self) -> int:
        """Iterations that metrics.csv contains."""
        try:
            return int(read_columns(self._run_dir / "metrics.csv")["iteration"][-1])
        except (OSError, ConfigError, KeyError):
            return 0

    @property
    def steps(self) -> int:
        """Environment steps of the run so far."""
        return self.finished_iterations * self._config.batch_steps

    @property
    def _output(self) -> Path:
        """The file with the text that the run prints."""
        return self._run_dir.with_suffix(".txt")

    def _refuse_other_run(self) -> None:
        if (self._run_dir / "config.json").is_file():
            own = from_json(self._config.to_json())  # config.json has defaults in place of None
            different = different_fields(load_config(self._run_dir), own)
            require(
                not different,
                f"{self._run_dir} has a run of another study with another {' and '.join(different)}; name another "
                "--search-dir",
            )

    def _source(self) -> list[str]:
        """Return the flags that start a new run, or continue the run."""
        if self.finished_iterations >= self.iterations:
            # It was killed between its last checkpoint and its summary. The checkpoint before it leads to both.
            (self._run_dir / "checkpoint.pt").unlink(missing_ok=True)
        if list(self._run_dir.glob("checkpoint*.pt")):
            return ["--resume", str(self._run_dir)]
        shutil.rmtree(self._run_dir, ignore_errors=True)  # it was killed before its first checkpoint
        file = self._run_dir.with_suffix(".json")
        write_json(file, differences(self._config))
        return ["--config", str(file), "--run-dir", str(self._run_dir)]

    def _summary(self) -> dict[str, Any] | None:
        path = self._run_dir / "summary.json"
        return read_object(path, SUMMARY_FILE, "remove this directory") if path.is_file() else None

    def _judge(self) -> tuple[float, str]:
        """Return the objective, and why the run counts as failed."""
        columns = read_columns(self._run_dir / "metrics.csv")
        before = columns["iteration"] <= self.iterations
        returns, losses = columns["return_mean_100"][before], columns["value_loss"][before]
        known = returns[np.isfinite(returns)]
        if not len(known):
            return float("nan"), f"no episode has ended in {self.steps:,} steps"
        if not losses[-1] <= EXPLODED * max(losses[0], 1.0):
            return float("nan"), f"the value loss has grown from {losses[0]:.3g} to {losses[-1]:.3g}"
        return float(known[-1] if self._objective == "last" else known.mean()), ""

    def _reason(self, code: int) -> str:
        """Return why the process failed: its error message, or its signal. code: its exit code."""
        if code < 0:
            return f"it was killed by {signal.Signals(-code).name}"
        lines = self._output.read_text(errors="replace").splitlines() if self._output.exists() else []
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        return errors[-1] if errors else f"it ended with exit code {code}"
