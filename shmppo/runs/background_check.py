"""The check of the environment in the background of a run (--check-determinism)."""

from __future__ import annotations

import logging

from shmppo.config.train_config import TrainConfig
from shmppo.envs.determinism_check import CheckNote, CheckProcesses
from shmppo.envs.spec import EnvSpec
from shmppo.runs.train_state import TrainState

IRREPRODUCIBLE = "the environment is not a function of its seed and its actions:"

log = logging.getLogger(__name__)


class BackgroundCheck:
    """Checks beside a run that the environment is a function of its seed and its actions.

    If decisions read metrics of evaluations, the environment is also checked with the arguments of evaluations.
    If it is not, the run becomes inexact. If the check fails, or if the run ends before it, the log says so.

    Attributes:
        verdict: "none" without a check, "not finished" as long as it runs or if it could not be finished, "passed", or
            "failed". It begins as "passed" if the check has passed before, in this run or in another one.
    """

    def __init__(self, config: TrainConfig, task: EnvSpec, state: TrainState) -> None:
        """Prepare the check. `state` gets the reason if the environment is not reproducible."""
        self._config, self._task, self._state = config, task, state
        self._processes: CheckProcesses | None = None
        self._due: list[TrainConfig] = []
        self.verdict = "none"

    def start(self) -> None:
        """Start the check, unless it is off, this is another rank, the environment is known, or it is not used."""
        config, reasons = self._config, self._state.inexact_reasons
        if self._task.inexact_reason is not None or any(text.startswith(IRREPRODUCIBLE) for text in reasons):
            self.verdict = "failed"
            return
        if not config.check_determinism or config.rank > 0 or config.recording() is not None:
            return
        self._due = [config]
        if config.eval_every is not None and config.eval_env_kwargs and self._state.decisions.need_evaluations:
            self._due.append(config.with_env_kwargs(config.eval_env_kwargs))
        self._notes = [CheckNote(due) for due in self._due]
        self._state.checked |= all(note.steps >= config.check_determinism for note in self._notes)
        self.verdict = "passed" if self._state.checked else "not finished"
        self._start_next()

    def _start_next(self) -> None:
        """Start the processes that check the environment of training or, after it, that of evaluations."""
        config = self._due.pop(0)
        try:
            self._processes = CheckProcesses(config, self._task, config.check_determinism, background=True)
        except Exception as error:  # whatever prevents the check must not prevent the run
            self._not_checked(repr(error))

    def poll(self) -> str | None:
        """Return the reason if the check has just found that the environment is not reproducible, else None."""
        if self._processes is None or (finding := self._processes.poll()) is None:
            return None
        self._processes.close()
        self._processes = None
        self._notes.pop(0).remember(finding)
        if finding.difference is not None:
            reason, self.verdict = f"{IRREPRODUCIBLE} {finding.difference}", "failed"
            self._state.mark_inexact(reason)
            return reason
        if finding.problem is not None:
            self._not_checked(f"{finding.problem} after {finding.steps} checked steps")
            return None
        if self._due:
            self._start_next()
        else:
            self.verdict, self._state.checked = "passed", True
            log.info("the environment gave the same bits in %d checked steps", finding.steps)
        return None

    def close(self) -> None:
        """End the check."""
        if self._processes is not None:
            self._not_checked("the run ended before the check")
            self._processes.close()

    def _not_checked(self, problem: str) -> None:
        if self.verdict != "passed":  # before a resume
            log.warning("the environment was not checked for reproducibility: %s", problem)
