"""The study in Optuna's storage: its trials, and the brackets that group them.

The trials of a bracket are created together. They end in Optuna when the pruner or the last rung has decided about
them. So what a sampler knows depends on the brackets before, not on how many runs train at the same time.

A bracket belongs to one directory. Several searches can work on one study: each trains brackets of its own. A lock in
the directory keeps two processes from the same bracket.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import uuid
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import optuna
from optuna.storages import BaseStorage, RDBStorage
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from shmppo.config.checks import flag, require
from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError
from shmppo.search.cores import locked_file
from shmppo.search.options import SearchOptions
from shmppo.search.samplers import make_pruner, make_sampler
from shmppo.search.space import Space
from shmppo.utils.files import replaced_file

SQLITE_SECONDS = 60  # for which a process waits while another one writes
_FIXED_OPTIONS = ("objective", "seeds", "rungs", "eta", "sampler", "pruner", "search_seed")


class Bracket:
    """Some trials that are compared with each other at their rungs.

    Attributes:
        trials: their numbers.
    """

    def __init__(self, trials: list[int], lock: TextIO) -> None:
        """trials: their numbers. lock: the locked file. It is unlocked by `release`."""
        self.trials, self._lock = trials, lock

    def release(self) -> None:
        """Let another process continue the bracket, if it has not ended."""
        self._lock.close()


class SearchStudy:
    """The study of a search."""

    def __init__(self, options: SearchOptions, base: TrainConfig, space: Space, directory: Path) -> None:
        """Open the study, or create it.

        Args:
            options: of the search.
            base: configuration that the trials change.
            space: what the trials vary.
            directory: of the search.

        Raises:
            ConfigError: if the database cannot be used, or if the study was begun with another space, other options, or
                another configuration.
        """
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        logging.getLogger("alembic").setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        self._options, self._base, self._space, self._directory = options, base, space, directory
        sampler = make_sampler(options.sampler, options.search_seed, space.known_values(base.fields()))
        self.pruner = make_pruner(options.pruner)
        with self._lock():
            self._owner = _identity(directory / "search-id")
            self._storage = _open_storage(options.storage or f"sqlite:///{directory / 'study.db'}")
            self.optuna = optuna.create_study(
                storage=self._storage, study_name=options.study, direction="maximize", load_if_exists=True,
                sampler=sampler, pruner=self.pruner or optuna.pruners.NopPruner(),
            )  # fmt: skip
            self._check_same_search()

    def trials(self) -> list[FrozenTrial]:
        """Return all trials."""
        return self.optuna.get_trials(deepcopy=False)

    def trial(self, number: int) -> FrozenTrial:
        """Return one trial."""
        return self.trials()[number]

    def fields(self, number: int) -> dict[str, Any] | None:
        """Return the options that a trial varies, with their values. None if their choice has failed."""
        return self.trial(number).user_attrs.get("options")

    def report(self, number: int, value: float, rung: int, **attributes: Any) -> None:
        """Record the objective of a trial at a rung.

        Args:
            number: of the trial.
            value: the objective.
            rung: index of the rung. It is Optuna's step, so that Optuna compares trials at the same rung.
            attributes: to store with the trial.
        """
        live = self._live(number)
        for name, attribute in attributes.items():
            live.set_user_attr(name, attribute)
        live.report(value, rung)

    def tell(self, number: int, state: TrialState, value: float | None = None, **attributes: Any) -> None:
        """End a trial, unless it has ended.

        Args:
            number: of the trial.
            state: COMPLETE, PRUNED, or FAIL.
            value: objective of a complete trial.
            attributes: to store with the trial.
        """
        if not self.trial(number).state.is_finished():
            for name, attribute in attributes.items():
                self._live(number).set_user_attr(name, attribute)
            self.optuna.tell(number, value, state)

    def next_bracket(self) -> Bracket | None:
        """Continue an unfinished bracket of this directory that no other process trains, or begin a new one.

        Returns:
            The bracket; None if the budget is used.

        Raises:
            ConfigError: if a function of the user that chooses options fails.
        """
        with self._lock():
            brackets = self._brackets()
            for number, members in brackets.items():
                whole = len(members) == members[0].user_attrs["size"]
                if whole and all(trial.state.is_finished() for trial in members):
                    continue
                lock = locked_file(self._directory / f"bracket-{number}.lock")
                if lock is not None:
                    return self._bracket(number, members[0].user_attrs["size"], lock)
            size = min(self._options.bracket_size, self._options.trials - len(self.trials()))
            spent = sum(trial.user_attrs.get("env_steps", 0) for trial in self.trials())
            if size <= 0 or (self._options.steps is not None and spent >= self._options.steps):
                return None
            number = max(brackets, default=-1) + 1
            lock = locked_file(self._directory / f"bracket-{number}.lock")
            assert lock is not None
            return self._bracket(number, size, lock)

    def _brackets(self) -> dict[int, list[FrozenTrial]]:
        """Return the trials of each bracket of this directory, by its number."""
        found: dict[int, list[FrozenTrial]] = {}
        for trial in self.trials():
            if trial.user_attrs.get("owner") == self._owner:
                found.setdefault(trial.user_attrs["bracket"], []).append(trial)
        return found

    def _bracket(self, number: int, size: int, lock: TextIO) -> Bracket:
        """Return a bracket of this process. Create the trials that it lacks."""
        try:
            return Bracket(self._complete(number, size), lock)
        except BaseException:
            lock.close()
            raise

    def _complete(self, bracket: int, size: int) -> list[int]:
        """Create the trials that a bracket lacks, and choose their options. Returns the numbers of all its trials."""
        while len(self._brackets().get(bracket, [])) < size:
            attributes = {"owner": self._owner, "bracket": bracket, "size": size}
            self.optuna.add_trial(create_trial(state=TrialState.WAITING, user_attrs=attributes))
        numbers = [trial.number for trial in self._brackets()[bracket]]
        for number in numbers:
            trial = self.trial(number)
            if trial.state == TrialState.WAITING:
                self._storage.set_trial_state_values(trial._trial_id, TrialState.RUNNING)
            if not trial.state.is_finished() and "options" not in trial.user_attrs:
                self._choose(number)
        return numbers

    def _choose(self, number: int) -> None:
        """Choose the options of a trial. If a function of the user fails, so does the trial, unless it is the first."""
        try:
            chosen = self._space.suggest(self._live(number), self._base.fields())
        except ConfigError as error:
            if number == 0:
                raise
            self.tell(number, TrialState.FAIL, reason=str(error))
        else:
            self._live(number).set_user_attr("options", chosen)

    def _live(self, number: int) -> Trial:
        """Return a trial that can be changed."""
        return Trial(self.optuna, self.trial(number)._trial_id)

    def _check_same_search(self) -> None:
        """Record what the study searches, or compare it with what was recorded."""
        own: dict[str, Any] = {"space": self._space.identity, **_searched(self._options, self._base)}
        stored: Mapping[str, Any] = self.optuna.user_attrs
        if not stored and not self.trials():
            self.optuna.set_user_attr("search", own)
            return
        place = _without_password(self._options.storage) if self._options.storage else self._directory
        where = f"the study {self._options.study} in {place}"
        require("search" in stored, f"{where} is not one of shmppo search; give another --study or --search-dir")
        stored = stored["search"]
        for kind, initial in _searched(SearchOptions(), TrainConfig()).items():  # an earlier version knew fewer
            changed = [name for name in initial if own[kind][name] != stored[kind].get(name, initial[name])]
            names = " and ".join(map(flag, changed))
            require(
                not changed, f"{where} was begun with another value of {names}; give another --study or --search-dir"
            )
        same = stored["space"] == own["space"]
        require(same, f"{where} was begun with another space; give another --study or --search-dir")

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Let no other process of this directory create trials meanwhile."""
        with open(self._directory / "search.lock", "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _searched(options: SearchOptions, base: TrainConfig) -> dict[str, dict[str, Any]]:
    """Return the options of a search and of its trials that may not change while it lasts, as JSON stores them."""
    fields = {name: value for name, value in base.to_json().items() if name not in ("run_dir", "workers")}
    return {
        "options": {name: getattr(options, name) for name in _FIXED_OPTIONS},
        "config": json.loads(json.dumps(fields)),
    }


def _identity(file: Path) -> str:
    """Return a random text that identifies a directory of a search, also after it was moved."""
    if not file.exists():
        with replaced_file(file) as temporary:
            temporary.write_text(uuid.uuid4().hex)
    return file.read_text()


def _without_password(url: str) -> str:
    """Return the URL of a database for a message."""
    try:
        return make_url(url).render_as_string(hide_password=True)
    except SQLAlchemyError:
        return "URL"


def _open_storage(url: str) -> BaseStorage:
    """Open the database. Raises ConfigError if it cannot be used."""
    engine: dict[str, Any] = {"pool_pre_ping": True}
    if url.startswith("sqlite"):
        engine = {"connect_args": {"timeout": SQLITE_SECONDS}}
    try:
        with open(os.devnull, "w") as nothing, contextlib.redirect_stderr(nothing):
            return RDBStorage(url, engine_kwargs=engine)
    except (SQLAlchemyError, ImportError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split("(Background")[0].split())
        raise ConfigError(
            f"--storage {_without_password(url)} cannot be used: {reason}; correct the URL, or start the database"
        ) from error
