"""The Optuna study of a search. It is kept in memory, and written to study.log after each bracket.

Trials are sampled by brackets, with a seed that depends only on the number of trials before. So their options depend
neither on the number of jobs nor on interruptions: an interrupted bracket is sampled again with the same result, and
its runs continue from their checkpoints.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.storages import InMemoryStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState

from shmppo.config.checks import flag, require
from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError
from shmppo.search.options import SearchOptions
from shmppo.search.space import Space
from shmppo.utils.files import replaced_file

FILE = "study.log"
NAME = "search"
SAMPLERS = {"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}
_MAY_CHANGE = ("trials", "confirm", "minutes", "jobs", "space", "search_dir", "run_dir", "workers")
"""Options that the command which continues a search may change. The content of the space is compared instead."""


class SearchStudy:
    """The study of a search."""

    def __init__(self, options: SearchOptions, base: TrainConfig, space: Space, directory: Path) -> None:
        """Continue the study of a directory, or create it.

        Args:
            base: configuration that the trials change.
            space: what the trials vary.

        Raises:
            ConfigError: if the study was begun with another space, other options, or another configuration.
        """
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._options, self._base, self._space, self._file = options, base, space, directory / FILE
        self._storage = InMemoryStorage()
        if self._file.exists():
            self._load()
        self.optuna = optuna.create_study(
            storage=self._storage, study_name=NAME, direction="maximize", load_if_exists=True
        )
        self._check_same_search()

    def trials(self) -> list[FrozenTrial]:
        """Return all trials."""
        return self.optuna.get_trials(deepcopy=False)

    def next_bracket(self) -> list[Trial]:
        """Choose the options of the next trials, and store them as their attribute "options".

        Returns:
            The trials, without those for which a function of the user has failed.

        Raises:
            ConfigError: if this function fails for the first trial.
        """
        before = len(self.trials())
        seed = int(np.random.SeedSequence([self._options.search_seed, before]).generate_state(1)[0])
        self.optuna.sampler = SAMPLERS[self._options.sampler](seed=seed)
        trials = []
        bracket_size = self._options.eta ** (self._options.rungs - 1)
        for number in range(before, min(before + bracket_size, self._options.trials)):
            distributions = dict(self._space.distributions)
            if number == 0:  # the baseline has the values of the command line, also outside the space
                known = self._space.baseline(self._base.fields())
                self.optuna.enqueue_trial(known)
                distributions = {name: distributions[name] for name in known}
            trial = self.optuna.ask(distributions)
            try:
                options, base = self._space.options(trial), self._base.fields()
                added = {name: base[name] | one for name, one in options.items() if isinstance(one, dict)}
                trial.set_user_attr("options", options | added)  # arguments of the environment are added
                trials.append(trial)
            except ConfigError as error:
                if number == 0:
                    raise
                self.fail(trial, str(error))
        return trials

    def fail(self, trial: Trial, reason: str, **attributes: Any) -> None:
        """End a trial that has failed.

        Args:
            trial: the trial.
            reason: one sentence for the report.
            attributes: to store with the trial.
        """
        for name, value in {"reason": reason, **attributes}.items():
            trial.set_user_attr(name, value)
        self.optuna.tell(trial, state=TrialState.FAIL)

    def save(self) -> None:
        """Write the study. Called when all its trials have ended."""
        with replaced_file(self._file) as temporary:
            temporary.unlink(missing_ok=True)
            optuna.copy_study(from_study_name=NAME, from_storage=self._storage, to_storage=_journal(temporary))

    def _check_same_search(self) -> None:
        """Record what the study searches, or compare it with what was recorded."""
        trained = {"objective of train": self._base.objective}  # the search has an option of this name, too
        fields = {**self._base.to_json(), **dataclasses.asdict(self._options), **trained}
        own = {name: value for name, value in fields.items() if name not in _MAY_CHANGE}
        own = json.loads(json.dumps({"space": self._space.identity, **own}))
        stored = self.optuna.user_attrs.get("search")
        if stored is None:
            self.optuna.set_user_attr("search", own)
            self.save()
            return
        where = f"the search in {self._file.parent} was begun with another"
        require(stored["space"] == own["space"], f"{where} space; name another --search-dir")
        changed = [flag(name) for name in own if stored.get(name) != own[name]]
        require(not changed, f"{where} value of {' and '.join(changed)}; name another --search-dir")

    def _load(self) -> None:
        try:
            optuna.copy_study(from_study_name=NAME, from_storage=_journal(self._file), to_storage=self._storage)
        except (ValueError, KeyError) as error:
            raise ConfigError(
                f"{self._file} is damaged ({error}); restore it, or remove it to repeat the search with the runs in "
                "this directory"
            ) from error


def _journal(path: Path) -> JournalStorage:
    return JournalStorage(JournalFileBackend(str(path)))
