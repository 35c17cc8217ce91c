"""Successive halving with continued trials.

All trials of a bracket train up to the first rung. Then the pruner chooses which of them continue, from their
checkpoints, to the next rung. As a continued run has the same weights as one without a pause, a trial that finishes
equals a run that was started with its options. So a pause wastes no steps.

Runs that train at the same time share the cores. If there are more cores than runs, a run gets workers. They do not
change its result.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from optuna.exceptions import StorageInternalError
from optuna.trial import TrialState

from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.errors import ConfigError, ShmppoError
from shmppo.plotting.curves import interquartile_mean
from shmppo.runs.startup import check_early
from shmppo.search.cores import Cores
from shmppo.search.options import SearchOptions
from shmppo.search.report import report, write_table
from shmppo.search.space import Space, load_space, trial_config
from shmppo.search.study import Bracket, SearchStudy
from shmppo.search.trial_run import RunResult, TrialRun
from shmppo.search.view import SearchView
from shmppo.utils.files import user_path
from shmppo.utils.signals import StopRequest

POLL_SECONDS = 0.1


def search(options: SearchOptions, base: TrainConfig) -> None:
    """Search, or continue a search, and write its report.

    Args:
        options: of the search.
        base: configuration that the trials change.

    Raises:
        ConfigError: if the search cannot start.
        ShmppoError: if no trial has finished, if the database fails, or if a file cannot be written.
        KeyboardInterrupt: if a signal has stopped the search. Its runs have saved checkpoints.
    """
    space = load_space(options.space)
    directory = user_path(options.search_dir, "--search-dir").absolute()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "search.lock").touch()
    except OSError as error:
        raise ConfigError(
            f"--search-dir {directory} cannot be written: {error.strerror}; name another directory"
        ) from error
    check_early(base)
    inspect_task(base)  # an environment that does not work would use up all trials
    try:
        _search(options, base, space, directory)
    except (OSError, StorageInternalError) as error:
        reason = " ".join(str(error.__cause__ or error).split("[SQL")[0].split())
        raise ShmppoError(f"the search cannot continue: {reason}; repair this, and repeat the command") from error


def _search(options: SearchOptions, base: TrainConfig, space: Space, directory: Path) -> None:
    study = SearchStudy(options, base, space, directory)
    scheduler = Scheduler(options, base, study, directory)
    with SearchView(options, study) as view, scheduler.stop.by_signals():
        scheduler.run(view)
    write_table(study.trials(), directory / "trials.csv")
    if scheduler.stop.signal is not None:
        raise KeyboardInterrupt
    report(options, base, study, directory)


def keep_best(values: dict[int, float], eta: int) -> list[int]:
    """Return the trials that continue under successive halving: the best 1 / eta of them, but at least one.

    Args:
        values: objective by the number of the trial. Of equal trials, the earlier one is better.
        eta: see --eta.
    """
    ranking = sorted(values, key=lambda number: (-values[number], number))
    return ranking[: max(1, len(ranking) // eta)]


class Scheduler:
    """Trains the trials of a study, bracket by bracket."""

    def __init__(self, options: SearchOptions, base: TrainConfig, study: SearchStudy, directory: Path) -> None:
        """See `search`."""
        self.stop = StopRequest()
        self._options, self._base, self._study = options, base, study
        self._trials_directory = directory / "trials"
        self._cores = Cores()
        self._jobs = min(options.jobs or len(self._cores.usable), len(self._cores.usable))
        self._deadline = time.monotonic() + 60 * (options.minutes or float("inf"))

    def run(self, view: SearchView) -> None:
        """Train brackets until the budget is used, the time is over, or a signal arrives."""
        while not self._stopping():
            bracket = self._study.next_bracket()
            if bracket is None:
                return
            try:
                self._train_bracket(bracket, view)
            finally:
                bracket.release()

    def _stopping(self) -> bool:
        return self.stop.made or time.monotonic() >= self._deadline

    def _train_bracket(self, bracket: Bracket, view: SearchView) -> None:
        made = {number: self._config(number) for number in bracket.trials}
        configs = {number: config for number, config in made.items() if config is not None}
        for rung in range(self._options.rung_count):
            alive = {n: c for n, c in configs.items() if not self._study.trial(n).state.is_finished()}
            self._train_rung(alive, rung, view)
            if self._stopping() and self._lacks_values(alive, rung):
                return
            self._decide(configs, rung)

    def _config(self, number: int) -> TrainConfig | None:
        """Return the configuration of a trial. If it cannot run, the trial fails, and the result is None."""
        fields = self._study.fields(number)
        if fields is None:
            return None
        try:
            config = trial_config(self._base, fields)
        except ConfigError as error:
            self._study.tell(number, TrialState.FAIL, reason=str(error))
            return None
        # One trial is enough to check the environment.
        return config if number == 0 else dataclasses.replace(config, check_determinism=0)

    def _lacks_values(self, alive: dict[int, TrainConfig], rung: int) -> bool:
        """Whether a trial has not come to the rung."""
        trials = [self._study.trial(number) for number in alive]
        return any(not trial.state.is_finished() and rung not in trial.intermediate_values for trial in trials)

    def _decide(self, configs: dict[int, TrainConfig], rung: int) -> None:
        """End the trials of a bracket that do not continue after a rung.

        A continued search decides again about rungs before its own. The result is the same, because the values of ended
        trials count, too.
        """
        trials = {number: self._study.trial(number) for number in configs}
        values = {
            n: trial.intermediate_values[rung] for n, trial in trials.items() if rung in trial.intermediate_values
        }
        alive = [number for number in values if not trials[number].state.is_finished()]
        if rung == self._options.rung_count - 1:
            for number in alive:
                self._study.tell(number, TrialState.COMPLETE, values[number])
        else:
            kept = keep_best(values, self._options.eta)
            if self._study.pruner is not None:
                kept = [n for n in alive if not self._study.pruner.prune(self._study.optuna, trials[n])]
            for number in alive:
                if number not in kept and trials[number].last_step == rung:
                    self._study.tell(number, TrialState.PRUNED)

    def _train_rung(self, alive: dict[int, TrainConfig], rung: int, view: SearchView) -> None:
        """Train the trials up to a rung, several at a time. Returns early if the search is to stop."""
        runs = [run for number, config in alive.items() for run in self._runs(number, config, rung)]
        results: dict[int, dict[int, RunResult]] = {run.trial: {} for run in runs}
        waiting, running = deque(run for run in runs if not self._collect(run, results)), list[TrialRun]()
        changed, failed = set(results), set[int]()
        try:
            while True:
                failed |= {n for n in changed if self._record(n, rung, [r for r in runs if r.trial == n], results[n])}
                waiting = deque(run for run in waiting if run.trial not in failed)
                if not self._stopping():
                    self._start(waiting, running)
                if not running and (not waiting or self._stopping()):
                    return
                view.show(running, waiting=bool(waiting), stopping=self._stopping())
                ended = self._wait(running, failed)
                changed = {run.trial for run in ended if self._collect(run, results)}
                waiting.extend(run for run in ended if run.trial not in changed | failed)  # something has stopped it
        finally:
            for run in running:
                run.kill()
                self._cores.give_back(run.cores)

    def _runs(self, number: int, config: TrainConfig, rung: int) -> list[TrialRun]:
        """Return the runs of a trial. Empty if its value at the rung is known."""
        iteration = self._options.rung_iterations(config)[rung]
        if rung in self._study.trial(number).intermediate_values:
            return []
        directory = self._trials_directory / f"{number:04d}"
        seeds = [self._base.seed + k for k in range(self._options.seeds)]
        return [
            TrialRun(
                number, dataclasses.replace(config, seed=seed), iteration, directory / f"seed-{seed}",
                objective=self._options.objective,
            )
            for seed in seeds
        ]  # fmt: skip

    def _start(self, waiting: deque[TrialRun], running: list[TrialRun]) -> None:
        """Start runs while there are cores. The last ones share the cores that no other run needs."""
        while waiting and len(running) < self._jobs:
            share = self._cores.free // min(len(waiting), self._jobs - len(running))
            cores = self._cores.take(max(1, share))
            if not cores:
                return
            running.append(waiting.popleft())
            running[-1].start(cores)

    def _wait(self, running: list[TrialRun], failed: set[int]) -> list[TrialRun]:
        """Wait a moment. Returns the runs that have ended, and removes them from `running`.

        Args:
            running: runs with a process.
            failed: trials whose other runs are not needed any more.
        """
        for run in running:
            if self._stopping() or run.trial in failed:
                run.stop()
        time.sleep(POLL_SECONDS)
        ended = [run for run in running if run.ended()]
        for run in ended:
            running.remove(run)
            self._cores.give_back(run.cores)
        return ended

    def _collect(self, run: TrialRun, results: dict[int, dict[int, RunResult]]) -> bool:
        """Store the result of a run. Returns whether it has one."""
        result = run.result()
        if result is not None:
            results[run.trial][run.seed] = result
        return result is not None

    def _record(self, number: int, rung: int, runs: Sequence[TrialRun], results: dict[int, RunResult]) -> bool:
        """Report the value of a trial when all its runs have come to a rung.

        Args:
            number: of the trial.
            rung: its index.
            runs: of the trial.
            results: of those that have come to the rung, by seed.

        Returns:
            Whether the trial has failed, because one of its runs has.
        """
        failures = [result.failure for result in results.values() if result.failure]
        steps = sum(run.steps for run in runs)
        if failures:
            self._study.tell(number, TrialState.FAIL, reason=failures[0], env_steps=steps)
        elif len(results) == self._options.seeds:
            in_order = [results[seed] for seed in sorted(results)]
            values, hashes = ([r.value for r in in_order], [r.weights_sha256 for r in in_order])
            self._study.report(
                number, _objective(values), rung, iteration=runs[0].iterations, env_steps=steps, values=values,
                weights_sha256=hashes,
            )  # fmt: skip
        return bool(failures)


def _objective(values: Sequence[float]) -> float:
    """Return the interquartile mean over the seeds of a trial."""
    return float(interquartile_mean(np.array(values)[:, None])[0])
