"""Optional features: each is a package in `shmppo.extensions`. The core finds it there and does not name it.

The core asks for what the packages add, one place after the other. A package has a module for each place where it adds
something:

- `options`: OPTIONS, a class with flags, and with what the core derives from them (`ExtensionOptions`); or VALUES,
  further values of options of the core: by option and value, the sentence about it in the help text; and PUBLIC,
  further public names of `shmppo`, each with the module that has it.
- `arrays`: ARRAYS, further shared arrays by group, and `sizes`, the lengths of their axes (`parallel.shared_buffers`).
- `backend`: BACKEND, an object that makes and steps environments in another way (`envs.factory.Backend`).
- `start`: START, a class with what is loaded and checked before a run starts (`runs.start.StartExtension`).
- `terms`: TERMS, further terms of the loss, and OBJECTIVES, further values of --objective (`ppo.loss`).
- `feature_loss`: MODULE, a module beside the network with a loss of the actor's features; NAME, of the module, and of
  the option without which a run has none; and GRADIENTS, which computes the loss (`ppo.gradients`).
- `metrics`: GROUP, GLOSSARY, and `columns`, further columns of metrics.csv (`loggers.metrics`).
- `files`: TABLES and DIRECTORIES, further files of a run, which belong to iterations (`storage.history`).
- `feature`: FEATURE, a class with what happens in the learner's process (`lockstep.feature`).
- `sampling`: SAMPLING, a class with what happens while a process collects a rollout (`sampling.extension`).
- `evaluation`: EVALUATION, a class with flags of `evaluate`, and with what they do (`EvaluationFlags`).
- `plots`: NAME, `PlotOptions`, and `draw`, a further kind of plot (`shmppo.plot`).

Without a package, its flags are missing, and everything else works as before. Packages do not import each other.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar

from shmppo.config.info_keys import InfoKey

DIRECTORY = Path(__file__).parent.with_name("extensions")
"""The directory of all packages. No import names it, so that imports go one way."""
Own = TypeVar("Own", bound="ExtensionOptions")


@functools.cache
def added(place: str) -> tuple[ModuleType, ...]:
    """Import the module of this name from each package that has one, in the order of the packages."""
    packages = sorted(one.name for one in pkgutil.iter_modules([str(DIRECTORY)]))
    names = [f"shmppo.extensions.{package}.{place}" for package in packages]
    return tuple(importlib.import_module(name) for name in names if importlib.util.find_spec(name))


def added_values(option: str) -> dict[str, str]:
    """Return the values that packages add to an option of the core, each with its sentence in the help text."""
    found: dict[str, str] = {}
    for module in added("options"):
        found |= getattr(module, "VALUES", {}).get(option, {})
    return found


def public_names() -> dict[str, str]:
    """Return the names that packages add to `shmppo`, each with the module that has it, which is imported on demand."""
    found = [getattr(module, "PUBLIC", {}) for module in added("options")]
    return {name: module for names in found for name, module in names.items()}


def values_type(option: str, *own: str) -> Any:
    """Return the type of an option of the core: one of its own values, or of those that packages add."""
    literal: Any = Literal
    values = (*own, *added_values(option))
    return literal[values]


class ExtensionOptions:
    """Options of a package, which `TrainConfig` inherits with these methods.

    A method that several packages override calls that of `super()`.
    """

    @classmethod
    def of(cls: type[Own], config: object) -> Own:
        """Return a configuration, which has these options, with their type."""
        assert isinstance(config, cls)
        return config

    def check(self) -> None:
        """Raise ConfigError if one of these options is invalid."""

    def shortest_rollout(self, steps: int) -> int:
        """Return the minimum number of steps per environment in a rollout. steps: T."""
        return steps

    def recording(self) -> str | None:
        """Return the option that names recorded episodes, if rollouts play them back. None: the policy acts."""
        return None

    def uses_torch(self) -> bool:
        """Whether torch computes a part of the gradients, whatever --kernel is."""
        return False

    @staticmethod
    def continued(fields: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a run that are the defaults of a new run with its weights (--init-from)."""
        return fields

    def idle_columns(self) -> int:
        """Return the number of columns of an environment, if each of them may be idle at a step.

        0: an environment has one column, which acts at every step.
        """
        return 0

    def acting_steps(self, steps: int) -> int:
        """Return the mean number of steps at which a column acts, at least. steps: of a rollout."""
        return steps

    def added_info(self) -> list[InfoKey]:
        """Return further numbers that are reported of each episode. The environment does not have them in `info`."""
        return []

    def added_parts(self) -> dict[str, bool]:
        """Return the keys of parts that the observation has beside "obs", and whether only the critic sees each."""
        return {}

    def evaluate_flags(self) -> dict[str, Any]:
        """Return the flags with which `evaluate` plays as the evaluations of the run do, by field."""
        return {}


class EvaluationFlags:
    """Flags that a package adds to `evaluate`. They are also arguments of `policies.evaluation.evaluate`."""

    def recorder(self) -> Any:
        """Return what records the episodes, or None.

        Its `step` steps environments in place of `VectorEnv.step`, and gets them and the actions as sampled, too. Its
        `end_batch` gets the environments and the lengths of their episodes, and its `save` the configuration and the
        task of the policy.
        """

    @staticmethod
    def others(config: Any) -> Any:
        """Return what acts beside the policy in the evaluations of a run (`sampling.evaluation.Others`), or None."""

    def prepare(self, trained: Any, arguments: Mapping[str, Any]) -> Any:
        """Return the policy to evaluate, and what acts beside it (`policies.policy.TrainedPolicy`).

        arguments: stochastic, trust, env_kwargs, and the added flags of `evaluate`.
        """
        return trained

    def compare(self, arguments: dict[str, Any]) -> str | None:
        """Return what the command prints, if it compares several runs. None: it evaluates one run.

        The object has all flags of the command then.

        Args:
            arguments: of `policies.evaluation.evaluate`.
        """
        return None


@functools.cache
def evaluation_flags() -> Any:
    """Return a dataclass of the flags that all packages add to `evaluate`."""
    kinds = (*(module.EVALUATION for module in added("evaluation")), EvaluationFlags)
    return dataclasses.make_dataclass("AddedFlags", [], bases=kinds, frozen=True)
