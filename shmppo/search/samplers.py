"""Samplers and pruners of Optuna by name.

Optuna's samplers draw from a generator that advances with each call. Here each choice has a generator of its own, whose
seed is made from the search's seed, the trial's number, and the option. So a search that was killed and continued
chooses what it would have chosen otherwise.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
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


class SeededSampler(BaseSampler):
    """A sampler of Optuna whose choices depend only on the study's finished trials, the trial's number, and a seed."""

    def __init__(self, kind: type[BaseSampler], search_seed: int) -> None:
        """kind: the sampler. search_seed: of the search."""
        self._kind, self._search_seed = kind, search_seed

    def _sampler(self, trial: FrozenTrial, what: str = "") -> BaseSampler:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a sampler is experimental
            return self._kind(seed=choice_seed(self._search_seed, trial.number, what))  # type: ignore[call-arg]

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._sampler(trial).infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self._sampler(trial).sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._sampler(trial, param_name).sample_independent(study, trial, param_name, param_distribution)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        self._sampler(trial).after_trial(study, trial, state, values)


def make_sampler(name: str, search_seed: int) -> SeededSampler:
    """Return a sampler.

    Args:
        name: a value of --sampler.
        search_seed: seed of the search.

    Raises:
        ConfigError: if it needs a package that is not installed.
    """
    kind = SAMPLERS[name]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kind(seed=0)  # type: ignore[call-arg]
    except ImportError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"--sampler {name} needs another package; install it, or use --sampler tpe: {reason}"
        ) from error
    return SeededSampler(kind, search_seed)


def make_pruner(name: str) -> BasePruner | None:
    """Return a pruner of Optuna by its value of --pruner; None for halving and none, which the scheduler does."""
    kind = PRUNERS.get(name)
    return None if kind is None else kind()
