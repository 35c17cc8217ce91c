"""Playback of demonstrations instead of rollouts."""

from __future__ import annotations

import gymnasium

from shmppo.config.train_config import TrainConfig
from shmppo.envs.factory import Backend
from shmppo.envs.spec import EnvSpec
from shmppo.envs.vector_env import VectorEnv
from shmppo.extensions.teaching.demonstrations import PlaybackVectorEnv
from shmppo.extensions.teaching.options import TeachingOptions


class Playback(Backend):
    """Plays demonstrations back. Evaluations step the environment itself."""

    name = "playback"

    def steps(self, config: TrainConfig, env: gymnasium.Env) -> bool:
        return False

    def plays(self, config: TrainConfig) -> bool:
        return TeachingOptions.of(config).demonstrations is not None

    def make_range(self, config: TrainConfig, task: EnvSpec, low: int, high: int) -> VectorEnv:
        return PlaybackVectorEnv(config, task, low, high)


BACKEND = Playback()
