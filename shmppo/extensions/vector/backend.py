"""The backend `vector`."""

from __future__ import annotations

import gymnasium

from shmppo.config.train_config import TrainConfig
from shmppo.envs.backends import GymnasiumBackend
from shmppo.envs.spec import EnvSpec
from shmppo.envs.vector_env import VectorEnv
from shmppo.extensions.vector.single_env import SingleVectorEnv, open_vector_env
from shmppo.extensions.vector.vector_env import UserVectorEnv, check_rows


class UserBackend(GymnasiumBackend):
    """Steps one vector environment of the user per process. Evaluations play each episode in one of its own."""

    name = "vector"
    owns_generators = can_skip = False

    def make(self, config: TrainConfig, render_mode: str | None) -> gymnasium.Env | None:
        return SingleVectorEnv(config, render_mode) if config.env_backend == self.name else None

    def steps(self, config: TrainConfig, env: gymnasium.Env) -> bool:
        return config.env_backend == self.name

    def complete(self, config: TrainConfig, task: EnvSpec, env: gymnasium.Env) -> EnvSpec:
        return check_rows(config, task, env.action_space)

    def make_bare(self, config: TrainConfig, columns: int) -> tuple[gymnasium.vector.VectorEnv, int]:
        return open_vector_env(config, columns), columns

    def make_range(self, config: TrainConfig, task: EnvSpec, low: int, high: int) -> VectorEnv:
        return UserVectorEnv(config, task, low, high)


BACKEND = UserBackend()
