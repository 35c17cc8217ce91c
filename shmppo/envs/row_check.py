"""Check of a user's vector environment: each of its environments must depend only on its own seed and actions.

Only then do the weights not depend on how many workers share the environments.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import numpy as np
from gymnasium import spaces

from shmppo.config.train_config import TrainConfig
from shmppo.envs.spec import Task
from shmppo.envs.user_vector_env import UserVectorEnv
from shmppo.errors import ConfigError, EnvError

CHECKED_STEPS, RESET_AFTER, MAX_WIDTH = 64, 16, 32


def check_rows(config: TrainConfig, task: Task, action_space: spaces.Space[Any]) -> Task:
    """Compare a vector environment that has up to MAX_WIDTH environments with others that have one.

    They get the same seeds and actions for CHECKED_STEPS steps. All results must be the same bits. This also shows
    whether every episode can be seeded, or only the first one of each environment.

    Returns:
        The task with its seeding, and with the reason if its runs are not reproducible.

    Raises:
        ConfigError: if nothing would reset an environment whose episode has ended.
        EnvError: if a step fails.
    """
    where = f"--env {config.env_id}"
    once, resets_itself = _seeded_once(config, task)
    dependent = ""
    if task.seeding == "episode":
        try:
            difference = _first_difference(config, task, action_space)
            if difference is None:
                return task
            dependent = f"; {difference}: let each environment depend only on its own seed and actions"
        except EnvError:
            if not resets_itself:
                raise
    if not resets_itself:
        raise ConfigError(
            f"{where} has the autoreset mode DISABLED, so every episode is seeded: --episode-seeding must be episode, "
            'and reset must accept a list of seeds and options["reset_mask"], and reset only what this mask selects'
            f"{dependent}"
        )
    difference = _first_difference(config, once, action_space)
    if once.seeding == "never":
        reason = "reset accepts no list of seeds, so the environments of a worker share one seed"
    elif difference is None:
        return once
    else:
        reason = f"an environment depends on the others: {difference}"
    return dataclasses.replace(once, inexact_reason=f"{where}: {reason}")


def _seeded_once(config: TrainConfig, task: Task) -> tuple[Task, bool]:
    """Return the task without a seed per episode, and whether the vector environment resets its environments itself.

    The seeding is "never" if `reset` accepts no list with one seed per environment.
    """
    once = dataclasses.replace(task, seeding="once")
    with contextlib.closing(UserVectorEnv(config, once, 0, 1)) as envs:
        try:
            envs.reset_all(0)
        except EnvError:
            once = dataclasses.replace(task, seeding="never")
        return once, envs.mode != "DISABLED"


def _first_difference(config: TrainConfig, task: Task, action_space: spaces.Space[Any]) -> str | None:
    """Step wide and narrow vector environments, and describe the first difference. Return None if there is none.

    Raises:
        EnvError: if a step or a reset fails.
    """
    width = min(config.num_envs, MAX_WIDTH)
    with contextlib.ExitStack() as stack:
        wide, *narrow = (
            stack.enter_context(contextlib.closing(UserVectorEnv(config, task, low, high)))
            for low, high in [(0, width), *((i, i + 1) for i in sorted({0, width // 2, width - 1}))]
        )
        for envs in (wide, *narrow):
            envs.reset_all(0)
        action_space.seed(0)
        for step in range(CHECKED_STEPS):
            actions = [action_space.sample() for _ in range(width)]
            results = _step(wide, actions)
            for envs in narrow:
                i = envs.handles[0].index
                if results[i] != _step(envs, actions[i : i + 1])[0]:
                    return f"environment {i} gives other results at step {step + 1} when there are fewer of them"
                if step == RESET_AFTER and task.seeding == "episode" and i == width // 2:
                    for each, position in ((wide, i), (envs, 0)):
                        each.reset_env(position, each.handles[position].episode + 1)
    return None


def _step(envs: UserVectorEnv, actions: list[Any]) -> list[list[bytes]]:
    """Step a vector environment. Return the bits of everything that each environment gave."""
    count = len(actions)
    rewards, flags = np.zeros(count), np.zeros((2, count), bool)
    finals = {end.i: end.final for end in envs.step(actions, rewards, *flags)}
    return [
        [array.tobytes() for array in (*(leaf[i] for leaf in envs.obs), rewards[i], flags[:, i], *finals.get(i, ()))]
        for i in range(count)
    ]
