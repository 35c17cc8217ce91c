"""The scheduler with artificial runs: who continues, that kills and jobs change nothing, and that cores are not shared.

An artificial run returns a formula of its options. The study and its locks are real. Most tests keep the study in
memory, because hundreds of transactions take seconds in a file.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import optuna
import pytest
from optuna.trial import TrialState

from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError, ShmppoError
from shmppo.search import main
from shmppo.search import scheduler as module
from shmppo.search import study as study_module
from shmppo.search.cores import Cores
from shmppo.search.options import SearchOptions
from shmppo.search.samplers import choice_seed
from shmppo.search.scheduler import Scheduler, keep_best
from shmppo.search.space import Space, parse_space
from shmppo.search.study import SearchStudy, _open_storage
from shmppo.search.trial_run import RunResult, TrialRun

BASE = TrainConfig(env="Pendulum-v1", total_steps=90 * TrainConfig().batch_steps)
SPACE = parse_space({"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}, "clip": {"choices": [0.1, 0.2]}}, "it")
OPTIONS = SearchOptions(trials=12, rungs=3, eta=2, jobs=2)


class Killed(BaseException):
    """In place of SIGKILL: nothing after it runs, except that the system gives locks back."""


class ArtificialRun(TrialRun):
    """A run that ends at once. Its results outlive it, as the files of a real run do."""

    progress: ClassVar[dict[Path, int]] = {}
    busy: ClassVar[set[int]] = set()
    kill_after: ClassVar[int | None] = None
    failing: ClassVar[Any] = staticmethod(lambda config: "")
    started: ClassVar[list[tuple[int, int]]] = []

    def start(self, cores: tuple[int, ...]) -> None:
        self.cores = cores
        if ArtificialRun.kill_after is not None:
            ArtificialRun.kill_after -= 1
            if ArtificialRun.kill_after < 0:
                raise Killed
        assert cores
        assert not ArtificialRun.busy & set(cores), "a core is used twice"
        ArtificialRun.busy |= set(cores)
        ArtificialRun.started.append((self.trial, self.iterations))
        ArtificialRun.progress[self._run_dir] = self.iterations

    def ended(self) -> bool:
        ArtificialRun.busy -= set(self.cores)
        return True

    def stop(self) -> None: ...

    def kill(self) -> None:
        ArtificialRun.busy -= set(self.cores)

    def result(self) -> RunResult | None:
        if ArtificialRun.progress.get(self._run_dir, 0) < self.iterations:
            return None
        reason = ArtificialRun.failing(self._config)
        value = self._config.learning_rate * self.iterations - self._config.clip / 100
        return RunResult(float("nan") if reason else value, reason, "0" * 64)

    @property
    def finished_iterations(self) -> int:
        return ArtificialRun.progress.get(self._run_dir, 0)


class NoView:
    def show(self, running: Sequence[TrialRun], **state: bool) -> None: ...


@pytest.fixture(autouse=True)
def _artificial_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "TrialRun", ArtificialRun)
    monkeypatch.setattr(module, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(module, "Cores", lambda: Cores(tmp_path / "cores"))
    in_memory: dict[str, Any] = defaultdict(optuna.storages.InMemoryStorage)
    monkeypatch.setattr(study_module, "_open_storage", in_memory.__getitem__)
    for name, value in (("progress", {}), ("busy", set()), ("started", []), ("kill_after", None)):
        monkeypatch.setattr(ArtificialRun, name, value)


def search(directory: Path, options: SearchOptions = OPTIONS, space: Space = SPACE) -> list[optuna.trial.FrozenTrial]:
    """Search in a directory, and return the trials."""
    directory.mkdir(exist_ok=True)
    study = SearchStudy(options, BASE, space, directory)
    Scheduler(options, BASE, study, directory).run(NoView())  # type: ignore[arg-type]
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
    assert {iterations for _, iterations in ArtificialRun.started} == {23, 45, 90}
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


def test_a_kill_while_trials_are_created_does_not_change_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = contents(search(tmp_path / "undisturbed"))
    original, calls = SearchStudy._choose, 0

    def choose(study: SearchStudy, number: int) -> None:
        nonlocal calls
        calls += 1
        if calls in (2, 7, 12):
            raise Killed
        original(study, number)

    monkeypatch.setattr(SearchStudy, "_choose", choose)
    for _ in range(3):
        with pytest.raises(Killed):
            search(tmp_path / "killed")
    assert contents(search(tmp_path / "killed")) == expected


def test_a_search_can_get_more_trials_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = contents(search(tmp_path / "long"))
    monkeypatch.setattr(study_module, "_open_storage", _open_storage)  # an SQLite file
    search(tmp_path / "grown", replace(OPTIONS, trials=4))
    assert contents(search(tmp_path / "grown")) == expected


def test_a_budget_of_steps_ends_the_search_after_its_bracket(tmp_path: Path) -> None:
    assert len(search(tmp_path / "search", replace(OPTIONS, steps=1))) == 4


def test_failed_and_refused_trials_are_recorded_and_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ArtificialRun, "failing", staticmethod(lambda config: "bad" if config.clip == 0.1 else ""))
    space = parse_space(
        {"clip": {"choices": [0.1, 0.2]}, "num_envs": {"choices": [3, 16]}, "env_block": {"choices": [4]}}, "it"
    )
    trials = search(tmp_path / "search", space=space)
    for trial in trials:
        if trial.params["num_envs"] == 3:
            assert trial.state == TrialState.FAIL
            assert "--num-envs 3 is not a multiple" in trial.user_attrs["reason"]
        elif trial.params["clip"] == 0.1:
            assert trial.state == TrialState.FAIL
            assert trial.user_attrs["reason"] == "bad"
        else:
            assert trial.state in (TrialState.COMPLETE, TrialState.PRUNED)
    assert {trial.state for trial in trials} >= {TrialState.COMPLETE, TrialState.FAIL}


def test_the_objective_is_the_interquartile_mean_over_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {1: -1000.0, 2: 3.0, 3: 5.0, 4: 1000.0}
    monkeypatch.setattr(
        ArtificialRun, "result", lambda run: RunResult(values[run.seed]) if run._run_dir in run.progress else None
    )
    trials = search(tmp_path / "search", replace(OPTIONS, trials=1, rungs=1, seeds=4))
    assert trials[0].value == 4.0
    assert trials[0].user_attrs["values"] == [-1000.0, 3.0, 5.0, 1000.0]


@pytest.mark.parametrize("pruner", ["median", "none"])
@pytest.mark.parametrize("sampler", ["tpe", "random", "nsgaii"])
def test_samplers_and_pruners_by_name(tmp_path: Path, sampler: Any, pruner: Any) -> None:
    options = replace(OPTIONS, sampler=sampler, pruner=pruner)
    trials = search(tmp_path / "search", options)
    assert contents(search(tmp_path / "again", replace(options, jobs=1))) == contents(trials)
    finished = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    assert len(finished) == 12 if pruner == "none" else 4 <= len(finished) < 12


def test_halving_keeps_the_earlier_of_equal_trials_and_at_least_one() -> None:
    assert keep_best({0: 1.0, 1: 5.0, 2: 5.0, 3: 2.0}, 2) == [1, 2]
    assert keep_best({4: 1.0, 7: 1.0}, 3) == [4]


def test_a_study_of_another_search_is_refused(tmp_path: Path) -> None:
    search(tmp_path / "search", replace(OPTIONS, trials=1))
    other = parse_space({"gamma": {"choices": [0.9, 0.99]}}, "it")
    with pytest.raises(ConfigError, match="was begun with another space; give another --study or --search-dir"):
        search(tmp_path / "search", space=other)
    with pytest.raises(ConfigError, match="was begun with another value of --eta"):
        search(tmp_path / "search", replace(OPTIONS, eta=3))
    with pytest.raises(ConfigError, match="was begun with another value of --gamma; give"):  # of the trials
        SearchStudy(OPTIONS, replace(BASE, gamma=0.5), SPACE, tmp_path / "search")


def test_a_study_of_an_earlier_version_is_continued(tmp_path: Path) -> None:
    """It does not know the options that were added since."""
    study = SearchStudy(OPTIONS, BASE, SPACE, tmp_path)
    stored = study.optuna.user_attrs["search"]
    del stored["config"]["activation"], stored["options"]["eta"]
    study.optuna.set_user_attr("search", stored)
    eta = SearchOptions().eta
    SearchStudy(replace(OPTIONS, eta=eta), BASE, SPACE, tmp_path)
    with pytest.raises(ConfigError, match="was begun with another value of --activation"):
        SearchStudy(replace(OPTIONS, eta=eta), replace(BASE, activation="relu"), SPACE, tmp_path)


def test_a_database_that_cannot_be_used_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_module, "_open_storage", _open_storage)
    for url, message in (
        ("sqlite:////no/such/directory/study.db", "unable to open database file"),
        ("nonsense", "Could not parse"),
        (f"sqlite:///{tmp_path}/text.db", "not a database"),
    ):
        (tmp_path / "text.db").write_text("text " * 1000)
        with pytest.raises(ConfigError, match=r"^--storage") as raised:
            search(tmp_path / "search", replace(OPTIONS, storage=url))
        assert message in str(raised.value)
        assert "\n" not in str(raised.value)


def test_short_jobs_stop_trials_at_every_rung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two rungs of two iterations are the same iteration."""
    monkeypatch.setattr(sys.modules[__name__], "BASE", replace(BASE, total_steps=2 * BASE.batch_steps))
    trials = search(tmp_path / "search", replace(OPTIONS, trials=4))
    assert sorted(len(trial.intermediate_values) for trial in trials) == [1, 1, 2, 3]


def test_a_median_pruner_compares_trials_at_the_same_rung(tmp_path: Path) -> None:
    """Not at the same iteration, which is another number of steps in trials with another batch."""
    space = parse_space({"rollout_steps": {"choices": [64, 128]}, "learning_rate": {"choices": [0.001]}}, "it")
    options = replace(OPTIONS, pruner="median", trials=24)
    trials = search(tmp_path / "search", options, space)
    rungs = {trial.params["rollout_steps"]: set[int]() for trial in trials}
    for trial in trials:
        rungs[trial.params["rollout_steps"]] |= set(trial.intermediate_values)
    assert rungs == {64: {0, 1, 2}, 128: {0, 1, 2}}


def test_a_moved_directory_continues_its_trials(tmp_path: Path) -> None:
    expected = contents(search(tmp_path / "undisturbed"))
    ArtificialRun.kill_after = 3
    with pytest.raises(Killed):
        search(tmp_path / "before")
    ArtificialRun.kill_after = None
    (tmp_path / "before").rename(tmp_path / "after")
    memory = study_module._open_storage(f"sqlite:///{tmp_path / 'before' / 'study.db'}")
    assert memory is not None
    before, after = (f"sqlite:///{tmp_path / name / 'study.db'}" for name in ("before", "after"))
    study_module._open_storage.__self__[after] = study_module._open_storage(before)  # type: ignore[attr-defined]
    assert contents(search(tmp_path / "after")) == expected


def test_the_steps_of_a_failed_trial_are_those_of_all_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ArtificialRun, "failing", staticmethod(lambda config: "bad" if config.seed == 2 else ""))
    trials = search(tmp_path / "search", replace(OPTIONS, trials=1, rungs=1, seeds=3, jobs=1))
    assert trials[0].state == TrialState.FAIL
    assert trials[0].user_attrs["env_steps"] == 2 * 90 * BASE.batch_steps  # the third run has not begun


def test_a_space_function_that_fails_for_one_trial_fails_this_trial(tmp_path: Path) -> None:
    def space(trial: optuna.Trial) -> dict[str, Any]:
        if trial.number == 2:
            raise RuntimeError("not this one")
        return {}

    trials = search(tmp_path / "search", space=Space(function=space, identity="it"))
    assert [trial.number for trial in trials if trial.state == TrialState.FAIL] == [2]
    assert "raised RuntimeError('not this one')" in trials[2].user_attrs["reason"]

    def broken(trial: optuna.Trial) -> dict[str, Any]:
        raise RuntimeError("never")

    with pytest.raises(ConfigError, match="raised RuntimeError"):
        search(tmp_path / "broken", space=Space(function=broken, identity="it"))


def test_messages_do_not_contain_the_password_of_a_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_module, "_open_storage", _open_storage)
    with pytest.raises(ConfigError, match=r"^--storage \w+://me:\*\*\*@") as raised:
        search(tmp_path / "search", replace(OPTIONS, storage="nonesuch://me:secret@localhost/x"))
    assert "secret" not in str(raised.value)


def test_two_processes_never_have_the_same_bracket_or_core(tmp_path: Path) -> None:
    (tmp_path / "search").mkdir()
    first, second = (SearchStudy(OPTIONS, BASE, SPACE, tmp_path / "search") for _ in range(2))
    brackets = [study.next_bracket() for study in (first, second, first)]
    assert all(bracket is not None for bracket in brackets)
    numbers = [number for bracket in brackets if bracket is not None for number in bracket.trials]
    assert sorted(numbers) == list(range(12))
    assert second.next_bracket() is None
    assert brackets[1] is not None
    brackets[1].release()
    taken = first.next_bracket()
    assert taken is not None
    assert taken.trials == brackets[1].trials, "a bracket without a process is continued"
    for bracket in (brackets[0], brackets[2], taken):
        assert bracket is not None
        bracket.release()
    one, other = Cores(tmp_path / "cores"), Cores(tmp_path / "cores")
    everything = one.take(1000)
    assert everything == one.usable
    assert one.free == 0
    assert other.take(1) == ()
    one.give_back(everything)
    assert other.take(1) == everything[:1]
    other.give_back(everything[:1])


def test_without_optuna_the_command_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("sys.argv", ["search"])
    assert main() == 2
    assert capsys.readouterr().err == ("error: shmppo search needs the package optuna; pip install 'shmppo[search]'\n")


def test_choices_of_different_trials_and_options_have_different_seeds() -> None:
    seeds = {choice_seed(0, trial, name) for trial in range(50) for name in ("", "gamma", "clip")}
    assert len(seeds) == 150


def test_a_database_that_fails_in_the_middle_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = tmp_path / "search" / "study.db"

    def failing(config: TrainConfig) -> str:
        database.write_text("text " * 1000)
        return ""

    monkeypatch.setattr(ArtificialRun, "failing", staticmethod(failing))
    monkeypatch.setattr(study_module, "_open_storage", _open_storage)  # an SQLite file
    with pytest.raises(ShmppoError, match=r"^the search cannot continue: .*; repair this, and repeat the") as raised:
        module.search(replace(OPTIONS, search_dir=tmp_path / "search"), BASE)
    assert "\n" not in str(raised.value)
    assert not ArtificialRun.busy, "the cores are free"


def test_a_run_whose_search_has_ended_does_not_begin() -> None:
    """The search was killed after it started the process, and before the process asked to be killed with it."""
    other = 1  # a process that is not the parent of the one below
    command = [sys.executable, "-m", "shmppo.search.trial_process", str(other), str(Cores().usable[0]), "--help"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "the search has ended\n")
