"""What the trainer needs to know of an environment."""

from __future__ import annotations

from dataclasses import dataclass

from shmppo.envs.checker import Seeding
from shmppo.envs.snapshots import SnapshotSpec
from shmppo.models.distributions import Distribution
from shmppo.models.observations import ObservationSpec


@dataclass(frozen=True)
class Task:
    """What the trainer needs to know of an environment's spaces."""

    observation: ObservationSpec
    distribution: Distribution
    seeding: Seeding = "episode"
    snapshot: SnapshotSpec | None = None
    """Of environments that can be put back by themselves."""
