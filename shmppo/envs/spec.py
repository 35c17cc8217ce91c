"""Description of an environment: its spaces, its seeding, and its snapshots."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from shmppo.config.option import traits_of
from shmppo.config.train_config import EXTENSIONS
from shmppo.envs.snapshots import SnapshotSpec
from shmppo.spaces.observations import ObservationSpec

if TYPE_CHECKING:  # it imports torch, which stepping an environment does not need
    from shmppo.spaces.distributions import Distribution

CONTENT = "content_sha256"
"""Name of the attribute with which an environment identifies the files from which it is made."""


@dataclass(frozen=True)
class EnvSpec:
    """Spaces, seeding, and snapshot format of an environment."""

    observation: ObservationSpec
    distribution: Distribution
    """Action distribution for the action space."""
    seeding: Literal["episode", "once", "never"] = "episode"
    """Which resets receive a seed. once: the first one of each environment, as in vector environments that reset
    themselves."""
    snapshot: SnapshotSpec | None = None
    """Format of the environment's snapshots. None: no usable snapshots, so episodes are replayed."""
    backend: str = "gymnasium"
    """Name of the `Backend` that steps the environments."""
    inexact_reason: str | None = None
    """Why a run with this environment is not reproducible. None: it is, as far as the inspection can tell."""
    stored: dict[str, Any] = field(default_factory=dict)
    """The observation space and the action space, as `space_to_json` returns them. If wrappers change the actions,
    also that of the environment without wrappers, as inner_action_space. If the environment has it,
    also CONTENT."""
    generators: tuple[str, ...] = ()
    """The global random generators from which the environment draws, so that each has its own ones."""
    program: dict[str, str] = field(default_factory=dict)
    """Values in the modules and libraries of the program that has started the run (`plain_values`)."""
    added: dict[str, Any] = field(default_factory=dict)
    """What extensions add, by a name of their own. It is pickled for each process of a run."""

    def with_generators(self, names: Collection[str]) -> EnvSpec:
        """Return a description whose environments have further generators for themselves."""
        return replace(self, generators=tuple(sorted({*self.generators, *names})))

    @property
    def derived(self) -> dict[str, Any]:
        """The fields of the configuration that extensions derive from an environment, by name."""
        options = [option for kind in EXTENSIONS for option in fields(kind) if traits_of(option).derived]
        return {option.name: self.added.get(option.name, option.default) for option in options}
