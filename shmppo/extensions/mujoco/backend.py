"""The backend `mujoco`."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Callable
from typing import Any

import gymnasium

from shmppo.config.checks import require
from shmppo.config.train_config import TrainConfig
from shmppo.envs.factory import Backend
from shmppo.envs.snapshots import SnapshotSpec
from shmppo.envs.spec import EnvSpec
from shmppo.envs.vector_env import VectorEnv

log = logging.getLogger(__name__)


class MujocoBackend(Backend):
    """Steps all simulations of a process together. See `MujocoVectorEnv`.

    The methods import MuJoCo, so that a broken installation of it concerns only its own tasks.
    """

    name = "mujoco"

    def make(self, config: TrainConfig, render_mode: str | None) -> gymnasium.Env | None:
        """Let Gymnasium make the environment, and MuJoCo log its warnings if the environment uses it."""
        if (mujoco := sys.modules.get("mujoco")) is not None:
            mujoco.set_mju_user_warning(log.warning)
        elif _Importer not in sys.meta_path:
            sys.meta_path.insert(0, _Importer)
        return None

    def steps(self, config: TrainConfig, env: gymnasium.Env) -> bool:
        if config.env_backend not in ("auto", self.name):
            return False
        reason: str | None = "it is not a MuJoCo task"
        if "mujoco" in sys.modules:
            from shmppo.extensions.mujoco.task import TaskEnv
            from shmppo.extensions.mujoco.tasks import reason_for_gymnasium
            from shmppo.extensions.mujoco.vector_env import function_that_rounds

            reason = reason_for_gymnasium(config, env) or function_that_rounds(config, env)
            if reason is None:
                return True
        possible = config.env_backend == "auto"
        require(possible, f"--env-backend mujoco cannot step {config.env_id}, because {reason}; use --env-backend auto")
        if "mujoco" in sys.modules:  # users of other environments do not expect it
            level = logging.WARNING if isinstance(env.unwrapped, TaskEnv) else logging.INFO  # users can change a task
            log.log(level, "Gymnasium steps %s, because %s", config.env_id, reason)
        return False

    def snapshot(self, env: gymnasium.Env, choose_action: Callable[[Any], Any]) -> SnapshotSpec | None:
        from shmppo.extensions.mujoco.vector_env import simulation_snapshot

        return simulation_snapshot(env, choose_action)

    def make_played(
        self, config: TrainConfig, task: EnvSpec, low: int, high: int, render_mode: str | None
    ) -> VectorEnv:
        from shmppo.extensions.mujoco.vector_env import MujocoVectorEnv

        return MujocoVectorEnv(config, task, low, high, render_mode)


class _Importer:
    """Lets MuJoCo log its warnings as soon as anything imports it. By default, it prints them and writes a file."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        """Return how to import MuJoCo, and None for all other modules."""
        if name != "mujoco":
            return None
        sys.meta_path.remove(_Importer)
        spec: Any = importlib.util.find_spec(name)
        if spec is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            module.set_mju_user_warning(log.warning)

        spec.loader.exec_module = exec_module
        return spec


BACKEND = MujocoBackend()
