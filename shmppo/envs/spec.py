"""Description of an environment: its spaces, its seeding, and its snapshots."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from shmppo.envs.snapshots import SnapshotSpec
from shmppo.spaces.observations import ObservationSpec

if TYPE_CHECKING:  # it imports torch, which stepping an environment does not need
    from shmppo.spaces.distributions import Distribution


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
    spaces: dict[str, str] = field(default_factory=dict)
    """The observation space and the action space as text, to compare with those of recordings."""
    agents: tuple[str, ...] = ()
    """Names of the agents that an environment may have. Empty: an environment of Gymnasium."""
    added: dict[str, Any] = field(default_factory=dict)
    """What extensions add, by a name of their own. It is pickled for each process of a run."""
