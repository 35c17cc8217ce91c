"""What an optional feature does while a process collects its part of a rollout."""

from __future__ import annotations

import numpy as np

from shmppo.config.extensions import added
from shmppo.config.train_config import TrainConfig
from shmppo.envs.spec import EnvSpec
from shmppo.envs.vector_env import VectorEnv
from shmppo.parallel.shared_buffers import Rollout, SharedBuffers


class SamplingExtension:
    """The base of SAMPLING in the module `sampling` of an extension, which overrides what it needs.

    Each process that steps environments has one object of each class that the run uses.
    """

    @staticmethod
    def is_used(config: TrainConfig) -> bool:
        """Whether a run has the feature."""
        raise NotImplementedError

    def __init__(
        self,
        config: TrainConfig,
        task: EnvSpec,
        buffers: SharedBuffers,
        envs: VectorEnv,
        columns: range,
        progress: np.ndarray,
    ) -> None:
        """Allocate the memory.

        Args:
            envs: the environments of this process.
            columns: their indices.
            progress: [1], to be increased from time to time by what takes long.
        """
        self.config, self.task, self.buffers, self.envs = config, task, buffers, envs
        self.columns, self.progress = columns, progress

    def begin_rollout(self, noise: np.ndarray) -> None:
        """Begin a rollout. noise: of the actions, float32 [T, own, noise_size]."""

    def act(self, actions: np.ndarray, states: np.ndarray, t: int) -> None:
        """Change the actions [own, A] of step t, and the recurrent states [own, S] after it, before they are stored."""

    def end_rollout(self, rollout: Rollout, iteration: int, valid_steps: int) -> None:
        """Change or add to what was collected. rollout: the own columns. It has no log_probs yet."""


def used_extensions(
    config: TrainConfig, task: EnvSpec, buffers: SharedBuffers, envs: VectorEnv, columns: range, progress: np.ndarray
) -> list[SamplingExtension]:
    """Make the extensions of a process."""
    kinds: list[type[SamplingExtension]] = [module.SAMPLING for module in added("sampling")]
    return [kind(config, task, buffers, envs, columns, progress) for kind in kinds if kind.is_used(config)]
