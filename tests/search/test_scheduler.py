"""The scheduler with artificial runs: who continues, and that kills and jobs change nothing.

An artificial run returns a formula of its options. The study is real.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import optuna
import pytest
from optuna.trial import TrialState

from shmppo.config.train_config import TrainConfig
from shmppo.search import scheduler as module
from shmppo.search.options import SearchOptions
from shmppo.search.report import report
from shmppo.search.scheduler import Scheduler, keep_best
from shmppo.search.space import Space, parse_space
from shmppo.search.study import SearchStudy
from shmppo.search.trial_run import RunResult, TrialRun
from shmppo.tools import run_process

BASE = TrainConfig(env="Pendulum-v1", total_steps=90 * TrainConfig().batch_steps)
SPACE = parse_space({"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}, "clip": {"choices": [0.1, 0.2]}}, "it")
OPTIONS = SearchOptions(trials=12, rungs=3, eta=2, jobs=2)


class Killed(BaseException):
    """In place of SIGKILL."""


class ArtificialRun(TrialRun):
    """A run that ends at once. Its results outlive it, as the files of a real run do."""

    progress: ClassVar[dict[Path, int]] = {}
    busy: ClassVar[set[int]] = set()
    kill_after: ClassVar[int | None] = None
    failing_clip: ClassVar[float | None] = None
    values: ClassVar[dict[int, float]] = {}
    """Results by seed, instead of the formula."""
    started: ClassVar[list[tuple[int, int, int]]] = []
    """Trial, iterations, and number of cores."""

    def start(self, cores: list[int], *flags: str) -> None:
        self.cores = cores
        if ArtificialRun.kill_after is not None:
            ArtificialRun.kill_after -= 1
            if ArtificialRun.kill_after < 0:
                raise Killed
        assert cores
        assert not ArtificialRun.busy & set(cores), "a core is used twice"
        ArtificialRun.busy |= set(cores)
        ArtificialRun.started.append((self.trial, self.iterations, len(cores)))
        ArtificialRun.progress[self.run_dir] = self.iterations

    def ended(self) -> bool:
        ArtificialRun.busy -= set(self.cores)
        return True

    def stop(self) -> None: ...

    def kill(self) -> None:
        ArtificialRun.busy -= set(self.cores)

    def result(self) -> RunResult | None:
        if ArtificialRun.progress.get(self.run_dir, 0) < self.iterations:
            return None
        reason = "bad" if self.config.clip == ArtificialRun.failing_clip else ""
        value = self.config.learning_rate * self.iterations - self.config.clip / 100
        value = ArtificialRun.values.get(self.config.seed, value)
        return RunResult(float("nan") if reason else value, reason, "0" * 64)

    @property
    def steps(self) -> int:
        return ArtificialRun.progress.get(self.run_dir, 0) * self.config.batch_steps


@pytest.fixture(autouse=True)
def _artificial_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TrialRun", ArtificialRun)
    monkeypatch.setattr(run_process, "POLL_SECONDS", 0.0)
    ArtificialRun.progress, ArtificialRun.values, ArtificialRun.busy, ArtificialRun.started = {}, {}, set(), []
    ArtificialRun.kill_after = ArtificialRun.failing_clip = None


def search(directory: Path, options: SearchOptions = OPTIONS, space: Space = SPACE) -> list[optuna.trial.FrozenTrial]:
    """Search in a directory, and return the trials."""
    directory.mkdir(exist_ok=True)
    study = SearchStudy(options, BASE, space, directory)
    Scheduler(options, BASE, study, directory).run()
    return study.trials()


def contents(trials: Sequence[optuna.trial.FrozenTrial]) -> list[Any]:
    return [(trial.number, trial.params, trial.state, trial.values, trial.intermediate_values) for trial in trials]


def test_the_best_of_each_bracket_continue_and_others_stop_at_their_rung(tmp_path: Path) -> None:
    trials = search(tmp_path / "search")
    assert len(trials) == 12
    for first in (0, 4, 8):
        bracket = trials[first : first + 4]
        ranked = sorted(bracket, key=lambda trial: trial.intermediate_values[0], reverse=True)
        assert [len(trial.intermediate_values) for trial in ranked] == [3, 2, 1, 1]
        assert ranked[0].state == TrialState.COMPLETE
        assert ranked[0].value == ranked[0].intermediate_values[2]
        assert all(trial.state == TrialState.PRUNED for trial in ranked[1:])
    assert {iterations for _, iterations, _ in ArtificialRun.started} == {23, 45, 90}
    spent = sum(trial.user_attrs["env_steps"] for trial in trials)
    assert spent == 3 * (90 + 45 + 23 + 23) * BASE.batch_steps, "a continued trial does not begin again"


def test_kills_and_the_number_of_jobs_do_not_change_the_trials(tmp_path: Path) -> None:
    expected = contents(search(tmp_path / "undisturbed"))
    assert contents(search(tmp_path / "one", replace(OPTIONS, jobs=1))) == expected
    draw, kills = random.Random(5), 0
    while True:
        ArtificialRun.kill_after = draw.randint(0, 6)
        try:
            trials = search(tmp_path / "killed")
            break
        except Killed:
            kills += 1
    assert kills >= 3
    assert contents(trials) == expected


def test_a_search_can_get_more_trials_later(tmp_path: Path) -> None:
    expected = contents(search(tmp_path / "long"))
    search(tmp_path / "grown", replace(OPTIONS, trials=4))
    assert contents(search(tmp_path / "grown")) == expected


def test_a_search_pauses_after_its_minutes_and_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = contents(search(tmp_path / "undisturbed"))
    ArtificialRun.started.clear()
    clock = SimpleNamespace(monotonic=lambda: 25.0 * len(ArtificialRun.started))
    monkeypatch.setattr(module, "time", clock)
    search(tmp_path / "search", replace(OPTIONS, jobs=1, minutes=1.0))
    assert len(ArtificialRun.started) == 3
    assert contents(search(tmp_path / "search")) == expected


def test_failed_and_refused_trials_are_recorded_and_skipped(tmp_path: Path) -> None:
    ArtificialRun.failing_clip = 0.1
    space = parse_space(
        {"clip": {"choices": [0.1, 0.2]}, "num_envs": {"choices": [3, 16]}, "minibatches": {"choices": [16]}}, "it"
    )
    trials = search(tmp_path / "search", space=space)
    for trial in trials:
        if trial.params["num_envs"] == 3:
            assert trial.state == TrialState.FAIL
            assert "--minibatches is 16 but 3 environments" in trial.user_attrs["reason"]
        elif trial.params["clip"] == 0.1:
            assert trial.state == TrialState.FAIL
            assert trial.user_attrs["reason"] == "bad"
        else:
            assert trial.state in (TrialState.COMPLETE, TrialState.PRUNED)
    assert {trial.state for trial in trials} >= {TrialState.COMPLETE, TrialState.FAIL}


def test_the_objective_is_the_interquartile_mean_over_seeds(tmp_path: Path) -> None:
    ArtificialRun.values = {1: -1000.0, 2: 3.0, 3: 5.0, 4: 1000.0}
    trials = search(tmp_path / "search", replace(OPTIONS, trials=1, rungs=1, seeds=4))
    assert trials[0].value == 4.0
    assert trials[0].user_attrs["values"] == [-1000.0, 3.0, 5.0, 1000.0]


def test_the_report_calls_the_mean_of_three_seeds_a_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ArtificialRun.values = {1: 1.0, 2: 3.0, 3: 5.0}
    options = replace(OPTIONS, trials=1, rungs=1, seeds=3)
    search(tmp_path / "search", options)
    report(options, BASE, SearchStudy(options, BASE, SPACE, tmp_path / "search"), tmp_path / "search")
    assert "trial 0: return at the end 3.000 (mean of 3 seeds)" in capsys.readouterr().out


@pytest.mark.parametrize("rungs", [1, 2])
def test_the_random_sampler_and_trials_without_a_rung(tmp_path: Path, rungs: int) -> None:
    options = replace(OPTIONS, sampler="random", rungs=rungs)
    trials = search(tmp_path / "search", options)
    assert contents(search(tmp_path / "again", replace(options, jobs=1))) == contents(trials)
    assert sum(trial.state == TrialState.COMPLETE for trial in trials) == 12 // rungs


def test_halving_keeps_the_earlier_of_equal_trials_and_at_least_one() -> None:
    study = optuna.create_study()
    trials = [study.ask() for _ in range(4)]
    assert keep_best(dict(zip(trials, (1.0, 5.0, 5.0, 2.0), strict=True)), 2) == trials[1:3]
    assert keep_best({trials[1]: 1.0, trials[2]: 1.0}, 3) == [trials[1]]


def test_no_core_is_used_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(6)))
    search(tmp_path / "all", replace(OPTIONS, trials=4, jobs=None))
    taken = [cores for _, _, cores in ArtificialRun.started]
    assert taken[:4] == [1, 1, 2, 2], "the four runs of the first rung share six cores"
    assert taken[-1] == 6, "the last run has all cores"
    ArtificialRun.started.clear()
    search(tmp_path / "few", replace(OPTIONS, trials=4, jobs=99))
    assert max(cores for _, _, cores in ArtificialRun.started[:4]) == 2


def test_a_moved_directory_continues_its_trials(tmp_path: Path) -> None:
    expected = contents(search(tmp_path / "undisturbed"))
    ArtificialRun.kill_after = 3
    with pytest.raises(Killed):
        search(tmp_path / "before")
    ArtificialRun.kill_after = None
    (tmp_path / "before").rename(tmp_path / "after")
    ArtificialRun.progress = {
        tmp_path / "after" / path.relative_to(tmp_path / "before"): iterations
        for path, iterations in ArtificialRun.progress.items()
        if path.is_relative_to(tmp_path / "before")
    }
    assert contents(search(tmp_path / "after")) == expected
