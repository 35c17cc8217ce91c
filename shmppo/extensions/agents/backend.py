"""The backend for environments of PettingZoo."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium

from shmppo.config.checks import flag, require
from shmppo.config.train_config import TrainConfig
from shmppo.envs.factory import Backend
from shmppo.envs.spec import EnvSpec
from shmppo.envs.sync_vector_env import SyncVectorEnv
from shmppo.envs.vector_env import VectorEnv
from shmppo.extensions.agents.envs import AgentsEnv
from shmppo.extensions.agents.vector_env import AgentsVectorEnv


class AgentsBackend(Backend):
    """Steps environments with several agents, each of which has a column."""

    name = "pettingzoo"
    can_skip = False

    def accepts(self, env: Any) -> bool:
        classes = env.__mro__ if isinstance(env, type) else ()
        declared = any("possible_agents" in vars(kind).get("__annotations__", ()) for kind in classes)
        return declared or hasattr(env, "possible_agents")

    def adapt(self, env: Any, config: TrainConfig) -> gymnasium.Env:
        return AgentsEnv(env, config)

    def steps(self, config: TrainConfig, env: gymnasium.Env) -> bool:
        if isinstance(env, AgentsEnv):
            return True
        for name in ("agent_id", "critic_state", "self_play"):
            unused = getattr(config, name) in (False, None)
            require(unused, f"{flag(name)} needs an environment with several agents (possible_agents); leave it out")
        return False

    def complete(self, config: TrainConfig, task: EnvSpec, env: gymnasium.Env) -> EnvSpec:
        assert isinstance(env, AgentsEnv)
        return dataclasses.replace(task, added={"agents": tuple(env.names)})

    def make_played(
        self, config: TrainConfig, task: EnvSpec, low: int, high: int, render_mode: str | None
    ) -> VectorEnv:
        return AgentsVectorEnv(config, task, low, high, render_mode)

    def make_checked(self, config: TrainConfig, task: EnvSpec, low: int, high: int) -> VectorEnv:
        return SyncVectorEnv(config, task, low, high)  # as environments of one agent


BACKEND = AgentsBackend()
