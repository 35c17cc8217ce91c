"""The implementations of `VectorEnv`, one per backend of --env-backend."""

from __future__ import annotations

from shmppo.config.train_config import TrainConfig
from shmppo.envs.agents_vector_env import AgentsVectorEnv
from shmppo.envs.demonstrations import PlaybackVectorEnv
from shmppo.envs.spec import EnvSpec
from shmppo.envs.sync_vector_env import SyncVectorEnv
from shmppo.envs.user_vector_env import UserVectorEnv
from shmppo.envs.vector_env import VectorEnv


def make_vector_env(config: TrainConfig, task: EnvSpec, low: int, high: int) -> VectorEnv:
    """Create the rows low … high − 1 with the backend of the task, or play back demonstrations instead.

    Raises:
        EnvError: if an environment cannot be created.
    """
    if config.demonstrations is not None:
        return PlaybackVectorEnv(config, task, low, high)
    if task.backend == "vector":
        return UserVectorEnv(config, task, low, high)
    if task.agents:
        return AgentsVectorEnv(config, task, low, high)
    return sync_vector_env(task)(config, task, low, high)


def sync_vector_env(task: EnvSpec) -> type[SyncVectorEnv]:
    """Return the class that steps Gymnasium environments in the fastest way."""
    if task.backend != "mujoco":
        return SyncVectorEnv
    from shmppo.envs.mujoco_vector_env import MujocoVectorEnv  # other environments do not need MuJoCo

    return MujocoVectorEnv
