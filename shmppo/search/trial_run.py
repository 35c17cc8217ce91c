"""One training run of a trial up to a rung, in a process of its own."""

from __future__ import annotations

import csv
import math
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from shmppo.config.checks import require
from shmppo.config.differences import differences
from shmppo.config.resumable import different_fields
from shmppo.config.train_config import TrainConfig, from_json, load_config
from shmppo.config.trust import modules_of, trust_flags
from shmppo.utils.files import write_json
from shmppo.utils.signals import kill_with_parent


@dataclass(frozen=True)
class RunResult:
    """The result of a run at a rung."""

    value: float
    """The objective. NaN after a failure."""
    failure: str = ""
    """Why the run has failed; "" if it has not."""
    weights_hash: str = ""


class TrialRun:
    """A run of a trial with one seed. It is started once per rung.

    Attributes:
        trial: number of the trial.
        seed: of the run.
        iterations: number of iterations at the rung.
        cores: that the run uses; [] if it is not running.
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
        self.cores: list[int] = []
        self._config, self._run_dir, self._objective = config, run_dir, objective
        self._process: subprocess.Popen[bytes] | None = None
        self._asked_to_stop = False
        if (run_dir / "config.json").is_file():
            own = from_json(config.to_json())  # config.json has defaults in place of None
            different = " and ".join(different_fields(load_config(run_dir), own))
            require(
                not different, f"{run_dir} has a run of a search with another {different}; name another --search-dir"
            )

    def start(self, cores: list[int]) -> None:
        """Start the run on these cores, or continue it from its newest checkpoint."""
        self.cores = cores
        self._run_dir.parent.mkdir(parents=True, exist_ok=True)
        workers = min(len(cores), self._config.num_envs) if len(cores) > 1 else 0
        command = [sys.executable, "-m", "shmppo.train", *self._source(), "--workers", str(workers)]
        command += ["--stop-at-iteration", str(self.iterations), "--quiet"]
        parent = os.getpid()

        def prepare() -> None:
            """Let the run use only its cores, and end with this process."""
            os.sched_setaffinity(0, cores)
            kill_with_parent()
            if os.getppid() != parent:  # it has ended before
                os._exit(1)

        with open(self._output, "ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                preexec_fn=prepare,
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

    def result(self) -> RunResult | None:
        """Return the result at the rung; None if the run has to be started or continued for it."""
        code = None if self._process is None else self._process.poll()
        if code and not self._asked_to_stop:
            return RunResult(math.nan, self._reason(code))
        rows = self._rows()
        if len(rows) < self.iterations:
            return None
        rows = rows[: self.iterations]
        returns = [value for row in rows if math.isfinite(value := float(row["return_mean_100"]))]
        if not returns:
            return RunResult(math.nan, f"no episode has ended in {int(rows[-1]['env_steps']):,} steps")
        value = returns[-1] if self._objective == "last" else fmean(returns)
        return RunResult(value, weights_hash=rows[-1]["weights_hash"])

    @property
    def finished_iterations(self) -> int:
        """Iterations that metrics.csv contains."""
        return len(self._rows())

    @property
    def steps(self) -> int:
        """Environment steps of the run so far."""
        return self.finished_iterations * self._config.batch_steps

    @property
    def _output(self) -> Path:
        """The file with the text that the run prints."""
        return self._run_dir.with_suffix(".txt")

    def _source(self) -> list[str]:
        """Return the flags that start a new run, or continue the run."""
        if list(self._run_dir.glob("checkpoint*.pt")):
            return ["--resume", str(self._run_dir), *trust_flags(modules_of(self._config.to_json())).split()]
        shutil.rmtree(self._run_dir, ignore_errors=True)  # it was killed before its first checkpoint
        file = self._run_dir.with_suffix(".json")
        write_json(file, differences(self._config))
        return ["--config", str(file), "--run-dir", str(self._run_dir)]

    def _rows(self) -> list[dict[str, str]]:
        """Return the complete rows of metrics.csv."""
        try:
            with open(self._run_dir / "metrics.csv", newline="") as file:
                return [row for row in csv.DictReader(file) if None not in row.values()]
        except FileNotFoundError:
            return []

    def _reason(self, code: int) -> str:
        """Return why the process failed: its error message, or its signal. code: its exit code."""
        if code < 0:
            return f"it was killed by {signal.Signals(-code).name}"
        lines = self._output.read_text(errors="replace").splitlines()
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        return errors[-1] if errors else f"it ended with exit code {code}"
