"""Successive halving with continued trials.

All trials of a bracket train up to the first rung. The best of them continue from their checkpoints to the next rung. A
continued run has the same weights as one without a pause, so a trial that finishes equals a run that was started with
its options, and a pause wastes no steps.

Runs that train at the same time share the cores. If there are more cores than runs, a run gets workers. They do not
change its result.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from optuna.trial import Trial, TrialState
from rich.console import Console, Group
from rich.live import Live

from shmppo.config.train_config import TrainConfig
from shmppo.config.trust import Trusted
from shmppo.envs.inspection import inspect_task
from shmppo.errors import ConfigError, ShmppoError, print_text
from shmppo.loggers.text import number
from shmppo.plotting.curves import interquartile_mean
from shmppo.runs.startup import check_early
from shmppo.search.options import SearchOptions
from shmppo.search.report import picture, report, write_table
from shmppo.search.space import load_space
from shmppo.search.study import SearchStudy
from shmppo.search.trial_run import RunResult, TrialRun
from shmppo.storage.run_directory import locked
from shmppo.tools.run_process import RunPool
from shmppo.utils.files import config_error_if_unwritable, user_path
from shmppo.utils.signals import StopRequest


def search(options: SearchOptions, base: TrainConfig, trust: Trusted = ()) -> None:
    """Search, or continue a search, and write its report.

    Args:
        base: configuration that the trials change.
        trust: modules of which the trials may import code.

    Raises:
        ConfigError: if the search cannot start.
        ShmppoError: if no trial has finished, or if a file cannot be written.
        KeyboardInterrupt: if a signal has stopped the search. Its runs have saved checkpoints.
    """
    space = load_space(options.space, base)
    directory = user_path(options.search_dir, "--search-dir")
    with config_error_if_unwritable(directory):
        directory.mkdir(parents=True, exist_ok=True)
    check_early(base)
    inspect_task(base)  # an environment that does not work would use up all trials
    try:
        with locked(directory):
            study = SearchStudy(options, base, space, directory)
            scheduler = Scheduler(options, base, study, directory, trust)
            with scheduler.shown():
                scheduler.run()
            write_table(study.trials(), directory / "trials.csv")
            if scheduler.stop.signal is not None:
                raise KeyboardInterrupt
            report(options, base, study, directory)
            if options.confirm:
                with scheduler.shown():
                    confirmed = scheduler.confirm()
                if scheduler.stop.signal is not None:
                    raise KeyboardInterrupt
                print_text("\n".join(confirmed))
    except OSError as error:
        raise ShmppoError(f"the search cannot continue: {error}; repair this, and repeat the command") from error


def keep_best(values: dict[Trial, float], eta: int) -> list[Trial]:
    """Return the trials that continue under successive halving: the best 1 / eta of them, but at least one.

    Args:
        values: objective of each trial. Of equal trials, the earlier one is better.
        eta: see --eta.
    """
    ranking = sorted(values, key=lambda trial: (-values[trial], trial.number))
    return ranking[: max(1, len(ranking) // eta)]


class Scheduler:
    """Trains the trials of a study, bracket by bracket."""

    def __init__(
        self, options: SearchOptions, base: TrainConfig, study: SearchStudy, directory: Path, trust: Trusted = ()
    ) -> None:
        self.stop = StopRequest()
        self._options, self._base, self._study = options, base, study
        self._directory = directory
        self._pool = RunPool[TrialRun](options.jobs, trust)
        self._deadline = time.monotonic() + 60 * (options.minutes or float("inf"))

    def run(self) -> None:
        """Train brackets until there are enough trials, the time is over, or a signal arrives."""
        while not self._stopping() and len(self._study.trials()) < self._options.trials:
            trials = self._study.next_bracket()
            configs = {trial: config for trial in trials if (config := self._config(trial)) is not None}
            for rung in range(self._options.rungs):
                values = self._train_rung(configs, rung)
                if values is None:
                    return
                kept = keep_best(values, self._options.eta)
                for trial, value in values.items():
                    if rung == self._options.rungs - 1:
                        self._study.optuna.tell(trial, value)
                    elif trial not in kept:
                        self._study.optuna.tell(trial, state=TrialState.PRUNED)
                configs = {trial: configs[trial] for trial in kept}
            self._study.save()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the search on the terminal and take signals while the context is open."""
        view = Live(console=Console(), get_renderable=self.picture, refresh_per_second=2)
        with view, self.stop.by_signals():
            yield

    def confirm(self) -> list[str]:
        """Train the best options and the unchanged ones with new seeds. Return lines that compare their objectives."""
        best = self._study.optuna.best_trial
        config = dataclasses.replace(self._base, **best.user_attrs["options"])
        if len(self._study.trials()) < self._options.trials:
            return ["the best trial is confirmed when the search is complete"]
        if config == self._base:
            return ["there is nothing to confirm: the best options are the unchanged ones"]
        first = self._base.seed + self._options.seeds
        seeds = range(first, first + self._options.confirm)
        compared = {f"trial-{best.number:04d}": config, "unchanged": self._base}
        runs = {
            name: self._runs(name, dataclasses.replace(own, check_determinism=0), own.iterations, seeds, "confirmed")
            for name, own in compared.items()
        }
        waiting = deque(run for members in runs.values() for run in members if run.result() is None)
        self._pool.train(waiting, self._stopping)
        lines = []
        for name, members in runs.items():
            results = [result for run in members if (result := run.result()) is not None]
            if len(results) < self._options.confirm:
                return ["the new seeds have not been trained to the end; the same command continues them"]
            values = [result.value for result in results]
            mean = number(float(interquartile_mean(np.array(values)[:, None])[0]))
            failures = [f"; {result.failure}" for result in results if result.failure]
            lines.append(f"with new seeds  {name}: {mean} ({', '.join(map(number, values))}){''.join(failures)}")
        return lines

    def picture(self) -> Group:
        """Return what a terminal shows of the search."""
        return picture(self._options.trials, self._study.trials(), self._pool.running, stopping=self._stopping())

    def _stopping(self) -> bool:
        return self.stop.made or time.monotonic() >= self._deadline

    def _config(self, trial: Trial) -> TrainConfig | None:
        """Return the configuration of a trial. If it cannot run, the trial fails, and the result is None."""
        try:
            config = dataclasses.replace(self._base, **trial.user_attrs["options"])
        except ConfigError as error:
            self._study.fail(trial, str(error))
            return None
        # One trial is enough to check the environment.
        return dataclasses.replace(config, check_determinism=0) if trial.number else config

    def _train_rung(self, configs: dict[Trial, TrainConfig], rung: int) -> dict[Trial, float] | None:
        """Train the trials up to a rung, several runs at a time.

        Returns:
            The objective of each trial that has not failed; None if the search stops before that is known.
        """
        share = self._options.eta ** (self._options.rungs - 1 - rung)
        seeds = range(self._base.seed, self._base.seed + self._options.seeds)
        runs = {
            trial: self._runs(trial.number, config, -(-config.iterations // share), seeds, "trials")
            for trial, config in configs.items()
        }
        values: dict[Trial, float] = {}
        waiting = deque[TrialRun]()
        ended = [run for members in runs.values() for run in members]  # perhaps, if the search was interrupted
        try:
            while True:
                waiting.extend(run for run in ended if run.result() is None)
                for trial in [trial for trial, members in runs.items() if set(members) & set(ended)]:
                    reached = [result for run in runs[trial] if (result := run.result()) is not None]
                    if failures := [result.failure for result in reached if result.failure]:
                        self._study.fail(trial, failures[0], env_steps=sum(run.steps for run in runs.pop(trial)))
                    elif len(reached) == self._options.seeds:
                        values[trial] = self._report(trial, rung, runs[trial], reached)
                waiting = deque(run for run in waiting if any(run in members for members in runs.values()))
                if not waiting and not self._pool.running:
                    return values
                if not self._stopping():
                    self._pool.start(waiting)
                elif not self._pool.running:
                    return None
                ended = self._pool.wait(stopping=self._stopping())
        finally:
            self._pool.kill()

    def _runs(
        self, name: int | str, config: TrainConfig, iterations: int, seeds: range, directory: str
    ) -> list[TrialRun]:
        """Return the runs of a trial or of a name, one per seed. directory: below --search-dir."""
        parent = self._directory / directory / (f"{name:04d}" if isinstance(name, int) else name)
        configs = [dataclasses.replace(config, seed=seed) for seed in seeds]
        return [
            TrialRun(name, own, iterations, parent / f"seed-{own.seed}", objective=self._options.objective)
            for own in configs
        ]

    def _report(self, trial: Trial, rung: int, runs: Sequence[TrialRun], results: Sequence[RunResult]) -> float:
        """Report the objective of a trial at a rung: the interquartile mean over its seeds."""
        values = [result.value for result in results]
        trial.set_user_attr("iteration", runs[0].iterations)
        trial.set_user_attr("env_steps", sum(run.steps for run in runs))
        trial.set_user_attr("values", values)
        trial.set_user_attr("weights_hashes", [result.weights_hash for result in results])
        objective = float(interquartile_mean(np.array(values)[:, None])[0])
        trial.report(objective, rung)  # the rung is Optuna's step, so that Optuna compares trials at the same rung
        return objective
