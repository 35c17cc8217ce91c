"""Which environments `MujocoVectorEnv` can step. This does not import MuJoCo, which other environments do not need."""

from __future__ import annotations

import hashlib
import inspect
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from shmppo.config.train_config import TrainConfig
from shmppo.envs.mujoco_tasks import TASKS, MujocoTask
from shmppo.envs.snapshots import wrappers_of

_PACKAGE = "gymnasium.envs.mujoco."
_SOURCES = {
    "ant_v5": ("03be9596a1fbc17157b6969e3ee48291600ff689c27fa02e178de3976eedddf9",),
    "half_cheetah_v5": ("c6520e364985f4715d42016284f694f7ba601acedbfb0221a43888ac49affcf3",),
    "hopper_v5": ("daa2951970f5f55853c7b0ec60b47e2c1f4e4338548f2df1b2465c6ecfdc4e9e",),
    "humanoid_v5": ("53792f8fd48efbeeee652ff6b853a608fe1b6770125805bf1e2e3bcf69fbc431",),
    "humanoidstandup_v5": ("ff0524040964ebd69b0191d7fb045fffe655b7306a57251dd7023220e440875c",),
    "inverted_double_pendulum_v5": ("a4ce6cadb4daf557b0181e0dc3b19ea0e37cfafc35fb8bf493eb2066f60f4b6b",),
    "inverted_pendulum_v5": ("860e8436475689a42ae10003638e5320668d32d39a9bedc502957b8e7b3aac48",),
    "pusher_v5": ("e51893fd93ab0e7275e6eabf7cd286fdf26ca4ca6d243e851ee9cc147e783cc6",),
    "reacher_v5": ("be2f75d48b6b19e61757ec98c42a9173c563751c5f30c6ed4d17325a73d368ca",),
    "swimmer_v5": ("5bdb513ea955bc2e9b4d2fdc881f00dbc1b97f5c7c557b6675cdf71299d9736e",),
    "walker2d_v5": ("10219f0e6b5208d6f5b6d7fd1dce2606580d847cf94abc3e6c53588ba4c90934",),
    "mujoco_env": ("77e8205c380d8e0d7dc68f6ad136cf192f07c061cd3f00eeebfac8414c71bc49",),
}
"""SHA-256 of the source files of Gymnasium with which the results were compared, by module."""


def reason_for_gymnasium(config: TrainConfig, env: gymnasium.Env) -> str | None:
    """Return why `MujocoVectorEnv` cannot step an environment, or None if it can.

    Args:
        config: the configuration of the run.
        env: the environment with its wrappers.
    """
    kind = type(env.unwrapped)
    if not kind.__module__.startswith(_PACKAGE) or _task_name(kind) not in TASKS:
        return "it is not a MuJoCo task of Gymnasium, version 5"
    other = [type(wrapper).__name__ for wrapper in wrappers_of(env) if type(wrapper) not in (TimeLimit, OrderEnforcing)]
    if other:
        return f"it has the wrapper {other[0]}"
    if env.unwrapped.spec is None:
        return "it was not created by gymnasium.make"
    if config.env_schedule is not None:
        return "--env-schedule gives options to reset"
    named = ["/".join(key.path) for key in config.reported_info if key.named]
    other = [name for name in named if name not in TASKS[_task_name(kind)].reported]
    if other:
        return f"--info-keys names {other[0]}"
    for module in (kind.__module__.removeprefix(_PACKAGE), "mujoco_env"):
        path = Path(inspect.getfile(kind)).with_name(module + ".py")
        if hashlib.sha256(path.read_bytes()).hexdigest() not in _SOURCES[module]:
            return f"the source of {path.name} differs from the versions of Gymnasium that were compared"
    return None


def _task_name(kind: type) -> str:
    return f"{kind.__module__.removeprefix(_PACKAGE)}:{kind.__name__}"


def mujoco_task(env: gymnasium.Env) -> MujocoTask:
    """Create the task of an environment that `reason_for_gymnasium` accepts."""
    base: Any = env.unwrapped
    signature = inspect.signature(type(base)).bind(**base.spec.kwargs)
    signature.apply_defaults()
    # A factory may have changed what the environment has stored of its arguments.
    stored = {name: getattr(base, f"_{name}", getattr(base, name, v)) for name, v in signature.arguments.items()}
    return TASKS[_task_name(type(base))](base.model, stored)


def time_limit(env: gymnasium.Env) -> int:
    """Return the number of steps after which an episode is truncated, or 0 if there is no limit."""
    limits = [vars(wrapper)["_max_episode_steps"] for wrapper in wrappers_of(env) if isinstance(wrapper, TimeLimit)]
    return min(limits, default=0)
