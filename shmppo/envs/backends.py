"""Gymnasium's backend, and the choice between it and those of extensions."""

from __future__ import annotations

import gymnasium

from shmppo.config.train_config import TrainConfig
from shmppo.envs.factory import Backend, backends
from shmppo.envs.spec import EnvSpec
from shmppo.envs.sync_vector_env import SyncVectorEnv
from shmppo.envs.vector_env import VectorEnv


class GymnasiumBackend(Backend):
    """Steps one environment after the other."""

    name = "gymnasium"

    def steps(self, config: TrainConfig, env: gymnasium.Env) -> bool:
        return True

    def make_played(
        self, config: TrainConfig, task: EnvSpec, low: int, high: int, render_mode: str | None
    ) -> VectorEnv:
        return SyncVectorEnv(config, task, low, high, render_mode)


def all_backends() -> list[Backend]:
    """Return the backends of extensions, and then Gymnasium's, which steps what no other one does."""
    return [*backends(), GymnasiumBackend()]


def backend_of(task: EnvSpec) -> Backend:
    """Return the backend that steps an environment."""
    return next(backend for backend in all_backends() if backend.name == task.backend)


def make_range(config: TrainConfig, task: EnvSpec, low: int, high: int) -> VectorEnv:
    """Make the columns low … high − 1 of a rollout. Raises EnvError if an environment cannot be made."""
    playing = next((backend for backend in backends() if backend.plays(config)), backend_of(task))
    return playing.make_range(config, task, low, high)
