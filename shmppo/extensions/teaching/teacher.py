"""A teacher: the frozen policy that a run imitates (--teacher)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from shmppo.config.train_config import TrainConfig
from shmppo.models.actor_critic import ActorCritic, trained_model
from shmppo.spaces.distributions import Distribution
from shmppo.spaces.observations import ObservationSpec


@dataclass(frozen=True)
class Teacher:
    """What a worker needs to act as the teacher. It contains no torch tensors, so it can be pickled as a value."""

    config: TrainConfig
    """Configuration of the teacher's training, with what computes it as --kernel: "native" or "torch"."""
    observation: ObservationSpec
    """What the teacher observes."""
    sources: dict[int, int]
    """Index of each leaf that the teacher needs -> index of the run's leaf with the same content."""
    weights: dict[str, np.ndarray]
    """Parameters by name."""
    statistics: tuple[np.ndarray, np.ndarray]
    """Statistics that normalize its observations: mean and 1 / standard deviation, each [D]."""
    state_size: int
    """Size of its recurrent state."""

    def model(self, distribution: Distribution) -> ActorCritic:
        """Make its network. distribution: of the actions."""
        weights = {name: torch.from_numpy(array) for name, array in self.weights.items()}
        return trained_model(self.config, self.observation, distribution, weights)
