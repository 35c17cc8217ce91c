"""Wrappers for --wrappers: repeated actions, fewer actions, and parts of an observation."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from shmppo.config.train_config import TrainConfig
from shmppo.envs.factory import make_environment
from shmppo.envs.inspection import inspect_task
from shmppo.envs.wrappers import FirstActions, RepeatAction, ResetOnce, SplitObservation
from shmppo.errors import ConfigError


class Counting(gymnasium.Env[int, int]):
    """An environment whose observation and reward are the number of steps. An episode ends after `length` steps."""

    observation_space = spaces.Discrete(100)

    def __init__(self, length: int, *, truncate: bool = False, action_space: Any = None) -> None:
        self.length, self.truncate = length, truncate
        self.action_space = action_space or spaces.Discrete(5, start=2)
        self.actions: list[int] = []

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.actions.append(action)
        count = len(self.actions)
        ended = count == self.length
        return count, float(count), ended and not self.truncate, ended and self.truncate, {"step": count}


@pytest.mark.parametrize("truncate", [False, True])
def test_an_action_is_repeated_until_the_episode_ends(truncate: bool) -> None:
    inner = Counting(5, truncate=truncate)
    env = RepeatAction(inner, steps=3)
    assert env.step(4) == (3, 1.0 + 2.0 + 3.0, False, False, {"step": 3})
    assert env.step(2) == (5, 4.0 + 5.0, not truncate, truncate, {"step": 5})
    assert inner.actions == [4, 4, 4, 2, 2]


def test_an_action_that_the_environment_changes_in_place_is_repeated_as_it_was() -> None:
    class Scaling(Counting):
        def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
            action *= 2
            return super().step(action.item())

    inner = Scaling(5, action_space=spaces.Box(-1, 1, (1,)))
    RepeatAction(inner, steps=3).step(np.array([0.5], np.float32))
    assert inner.actions == [1, 1, 1]


def test_reset_once_makes_the_first_episode_like_the_same_episode_later() -> None:
    class FirstSeed(gymnasium.Env[Any, Any]):
        """Adds the seed of its first reset to all observations, as PyBullet's robots do."""

        observation_space, action_space = spaces.Box(-9, 9, (1,)), spaces.Discrete(2)
        first: int | None = None

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            self.first = seed if self.first is None else self.first
            assert seed is not None
            assert self.first is not None
            return np.array([seed + self.first], np.float32), {}

    assert [FirstSeed().reset(seed=3)[0], ResetOnce(FirstSeed()).reset(seed=3)[0]] == [6, 3]
    env = ResetOnce(FirstSeed())
    assert [env.reset(seed=seed)[0] for seed in (2, 3)] == [2, 3]


def test_only_the_first_actions_remain() -> None:
    inner = Counting(5)
    env = FirstActions(inner, count=3)
    assert env.action_space == spaces.Discrete(3, start=2)
    env.step(4)
    assert inner.actions == [4]


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match="RepeatAction has steps=0; it must be at least 1"):
        RepeatAction(Counting(5), steps=0)
    for count in (0, 6):
        with pytest.raises(ConfigError, match=f"FirstActions has count={count}; it must be one of 1 … 5"):
            FirstActions(Counting(5), count=count)


def test_an_observation_is_split_into_named_parts() -> None:
    wrapper = "shmppo.envs.wrappers:SplitObservation(velocities=[1, None, 2], everything=[None], last=[-1, None])"
    env = make_environment(TrainConfig(env="CartPole-v1", wrappers=(wrapper,)))
    plain = gymnasium.make("CartPole-v1")
    obs, expected = env.reset(seed=3)[0], plain.reset(seed=3)[0]
    assert list(obs) == list(env.observation_space) == ["velocities", "everything", "last"]
    for name, part in (("velocities", slice(1, None, 2)), ("everything", slice(None)), ("last", slice(3, 4))):
        assert obs[name].tolist() == expected[part].tolist()
        assert env.observation_space[name].high.tolist() == plain.observation_space.high[part].tolist()
    assert env.observation_space.contains(obs)


def test_only_a_vector_is_split_and_no_part_is_empty() -> None:
    for env, parts in ((Counting(5), {"all": [None]}), (gymnasium.make("CartPole-v1"), {"none": [4, None]})):
        with pytest.raises(ConfigError, match="SplitObservation needs an observation that is one vector, and none of"):
            SplitObservation(env, **parts)


def test_the_command_line_can_name_them() -> None:
    wrappers = ("shmppo.envs.wrappers:RepeatAction(steps=4)", "shmppo.envs.wrappers:FirstActions(count=1)")
    config = TrainConfig(env="CartPole-v1", wrappers=wrappers)
    env = make_environment(config)
    env.reset(seed=0)
    assert env.step(0)[1] == 4.0
    assert inspect_task(config).distribution.num_params == 1
