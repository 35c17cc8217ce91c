"""Run a peer's benchmark script with EnvPool in place of the vector environments that it makes.

    VENV/bin/python figures/peers/peer_with_envpool.py bench_sb3.py A dummy 1 16

Run this file by its path, in the peer's virtual environment, where envpool must be installed. It imports nothing from
this repository. It works for scripts that use `gymnasium.vector.SyncVectorEnv`, or the `DummyVecEnv` of
Stable-Baselines3. The first argument of the script is the task. The environment variable THREADS sets the number of
EnvPool's threads (default: 1).
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from typing import Any

import envpool
import gymnasium
import numpy as np

ENVIRONMENTS = {"A": "HalfCheetah-v5", "B": "CartPole-v1", "C": "HalfCheetah-v5"}


def make_pool(count: int) -> Any:
    """Make the environments of the task."""
    threads = int(os.environ.get("THREADS", "1"))
    name = ENVIRONMENTS[sys.argv[1]]
    return envpool.make(name, env_type="gymnasium", num_envs=count, num_threads=threads, seed=1)


class EnvPoolSyncVectorEnv:
    """Replaces `gymnasium.vector.SyncVectorEnv`. Both reset an environment at the step after an episode's last."""

    def __init__(self, makers: Sequence[Any]) -> None:
        self._pool = make_pool(len(makers))
        self.single_observation_space = self._pool.observation_space
        self.single_action_space = self._pool.action_space
        self.step = self._pool.step
        self.close = self._pool.close

    def reset(self, seed: int | None = None) -> Any:
        return self._pool.reset()


def envpool_vec_env() -> type:
    """Return the class that replaces `DummyVecEnv`.

    Such an environment resets at once, and passes on the last observation of the episode in the info.
    """
    from stable_baselines3.common.vec_env.base_vec_env import VecEnv  # type: ignore[import-not-found,unused-ignore]

    class EnvPoolVecEnv(VecEnv):  # type: ignore[misc,unused-ignore]
        def __init__(self, makers: Sequence[Any]) -> None:
            self._pool = make_pool(len(makers))
            super().__init__(len(makers), self._pool.observation_space, self._pool.action_space)

        def reset(self) -> Any:
            return self._pool.reset()[0]

        def step_async(self, actions: np.ndarray) -> None:
            self._actions = actions

        def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
            obs, rewards, terminated, truncated, _ = self._pool.step(self._actions)
            ended = terminated | truncated
            infos: list[dict[str, Any]] = [{} for _ in rewards]
            for i in np.flatnonzero(ended):
                infos[i] = {
                    "terminal_observation": obs[i].copy(),
                    "TimeLimit.truncated": bool(truncated[i] & ~terminated[i]),
                }
            if ended.any():
                obs = obs.copy()
                obs[ended] = self._pool.reset(np.flatnonzero(ended))[0]
            return obs, rewards, ended, infos

        def close(self) -> None:
            self._pool.close()

        def seed(self, seed: int | None = None) -> list[None]:
            return [None] * self.num_envs

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            return [None] * self.num_envs

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
            raise NotImplementedError

        def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
            raise NotImplementedError

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            return [False] * self.num_envs

    return EnvPoolVecEnv


def main() -> None:
    sys.argv = sys.argv[1:]
    gymnasium.vector.SyncVectorEnv = EnvPoolSyncVectorEnv  # type: ignore[misc,assignment]
    if "sb3" in sys.argv[0]:
        from stable_baselines3.common import vec_env  # type: ignore[import-not-found,unused-ignore]

        vec_env.DummyVecEnv = envpool_vec_env()
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
