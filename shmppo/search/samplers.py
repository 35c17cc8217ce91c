"""Samplers and pruners of Optuna by name.

Optuna's samplers draw from a generator that advances with each call. Here each choice has a generator of its own, whose
seed is made from the search's seed, the trial's number, and the option. So a search that was killed and continued
chooses what it would have chosen otherwise.
"""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from optuna import pruners, samplers
from optuna.distributions import BaseDistribution
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from shmppo.errors import ConfigError

SAMPLERS: dict[str, type[BaseSampler]] = {
    "tpe": samplers.TPESampler,
    "random": samplers.RandomSampler,
    "gp": samplers.GPSampler,
    "cmaes": samplers.CmaEsSampler,
    "nsgaii": samplers.NSGAIISampler,
}
PACKAGES = {"gp": "scipy", "cmaes": "cmaes"}
"""Packages that a sampler needs besides Optuna's own."""
PRUNERS: dict[str, type[BasePruner]] = {"median": pruners.MedianPruner}


def choice_seed(search_seed: int, trial: int, what: str) -> int:
    """Return the seed (32 bits) of the generator for one choice of a trial.

    Args:
        search_seed: of the search.
        trial: number of the trial.
        what: name of the option, or "" for choices of several options together.
    """
    digest = hashlib.sha256(f"{search_seed} {trial} {what}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def comparable(trials: Iterable[FrozenTrial]) -> list[FrozenTrial]:
    """Leave out the first trial if it lacks an option that all other finished trials have.

    The first trial lacks the options whose values on the command line lie outside the space. Most samplers and the plot
    of importance consider only options that all trials have.
    """
    trials = list(trials)
    judged = (TrialState.COMPLETE, TrialState.PRUNED)
    others = [set(trial.params) for trial in trials if trial.number and trial.state in judged]
    common = set.intersection(*others) if others else set()
    return [trial for trial in trials if trial.number or common <= set(trial.params)]


def _comparable_only(study: Study) -> Study:
    """Return the study with only its comparable trials. Optuna's samplers read the trials with both methods."""
    view = copy.copy(study)
    for name in ("get_trials", "_get_trials"):
        trials = getattr(study, name)
        setattr(view, name, lambda *args, trials=trials, **options: comparable(trials(*args, **options)))
    return view


class SeededSampler(BaseSampler):
    """A sampler of Optuna whose choices depend only on the study's finished trials, the trial's number, and a seed.

    The first trial has given values.
    """

    def __init__(self, kind: type[BaseSampler], search_seed: int, first: Mapping[str, Any]) -> None:
        """kind: the sampler. search_seed: of the search. first: values of options in the first trial."""
        self._kind, self._search_seed, self._first = kind, search_seed, first

    def _sampler(self, trial: FrozenTrial, what: str = "") -> BaseSampler:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a sampler is experimental
            return self._kind(seed=choice_seed(self._search_seed, trial.number, what))  # type: ignore[call-arg]

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        if trial.number == 0:
            return {}
        return self._sampler(trial).infer_relative_search_space(_comparable_only(study), trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self._sampler(trial).sample_relative(_comparable_only(study), trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        if trial.number == 0 and param_name in self._first:
            return self._first[param_name]
        sampler = self._sampler(trial, param_name)
        return sampler.sample_independent(_comparable_only(study), trial, param_name, param_distribution)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        self._sampler(trial).after_trial(study, trial, state, values)


def make_sampler(name: str, search_seed: int, first: Mapping[str, Any]) -> SeededSampler:
    """Return a sampler.

    Args:
        name: a value of --sampler.
        search_seed: seed of the search.
        first: values of options in the first trial. Unless the space is a function, its other options are not sampled.

    Raises:
        ConfigError: if it needs a package that is not installed.
    """
    package = PACKAGES.get(name)
    if package is not None and importlib.util.find_spec(package) is None:  # Optuna would find out after some trials
        raise ConfigError(f"--sampler {name} needs {package}; pip install {package}, or use --sampler tpe")
    return SeededSampler(SAMPLERS[name], search_seed, first)


def make_pruner(name: str) -> BasePruner | None:
    """Return a pruner of Optuna by its value of --pruner; None for halving and none, which the scheduler does."""
    kind = PRUNERS.get(name)
    return None if kind is None else kind()
