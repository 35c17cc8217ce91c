"""Opponents in evaluations: they act for the agents that the policy does not play."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

from shmppo.config.checks import require, shown
from shmppo.config.plugins import load_object
from shmppo.envs.agents_vector_env import AgentsVectorEnv
from shmppo.envs.wrappers import MASK_KEY, allowed_action, fits, is_allowed
from shmppo.utils.rng import opponent_generator
from shmppo.utils.user_code import as_config_error

RANDOM = "random"
"""The opponent that plays at random."""
ChooseAction = Callable[[Any, gymnasium.Space[Any], np.random.Generator], Any]
"""Returns an action for (the observation of an agent, its action space, a generator of its own)."""


class EvaluationOpponent(ABC):
    """Acts for the agents that the policy does not play."""

    @abstractmethod
    def begin(self, envs: AgentsVectorEnv, seed: int) -> None:
        """Begin an episode in every environment."""

    @abstractmethod
    def act(self, rows: Sequence[int]) -> list[Any]:
        """Return an action for each of these rows, in the environment's format."""

    def end(self, row: int) -> None:  # noqa: B027
        """Note that the agent of a row has ended. Without recurrent states, there is nothing to do."""


class FunctionOpponent(EvaluationOpponent):
    """An opponent without memory: a function chooses its actions."""

    def __init__(self, name: str, flag: str = "--opponent") -> None:
        """Load the function.

        Args:
            name: "random", or `module:function`, which is called as `ChooseAction` says.
            flag: that gave the name, for the error message.

        Raises:
            ConfigError: if there is no such function.
        """
        self._name = f"{flag} {name}"
        self._choose: ChooseAction = play_at_random if name == RANDOM else load_object(name, flag)

    def begin(self, envs: AgentsVectorEnv, seed: int) -> None:
        """Begin an episode in every environment, with a generator for each row."""
        self._envs = envs
        self._generators = [opponent_generator(seed, handle.index, 0) for handle in envs.handles]

    def act(self, rows: Sequence[int]) -> list[Any]:
        """Return the actions that the function chooses.

        Raises:
            ConfigError: if it raises, or if one of them is None, has another shape, is a code outside the action space,
                or is forbidden by the mask.
        """
        space, seen = self._envs.action_space, [self._envs.seen(i) for i in rows]
        with as_config_error(self._name, "; correct the function"):
            actions = [self._choose(obs, space, self._generators[i]) for obs, i in zip(seen, rows, strict=True)]
        for obs, action in zip(seen, actions, strict=True):
            what = f"{self._name} returned {shown(action)}"
            require(fits(action, space), f"{what}; it must return an action of {space}")
            allowed = not self._envs.observation.has_mask or is_allowed(space, obs[MASK_KEY], action)
            require(allowed, f"{what}, which the action mask forbids; correct the function")
        return actions


def play_at_random(observation: Any, space: gymnasium.Space[Any], generator: np.random.Generator) -> Any:
    """Return any action that the mask allows."""
    if isinstance(observation, dict) and MASK_KEY in observation:
        return allowed_action(space, observation[MASK_KEY], lambda mask: generator.choice(np.flatnonzero(mask)))
    space.seed(int(generator.integers(2**31)))
    return space.sample()
