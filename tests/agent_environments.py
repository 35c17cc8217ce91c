"""Environments with several agents, with the interface of PettingZoo's parallel environments."""

from __future__ import annotations

import itertools
import random
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class MultiAgentEnv(gymnasium.Env):
    """The attributes of RLlib's class of this name, which is a gymnasium.Env."""

    possible_agents = ("left", "right")


class Crowd:
    """Agents that join late, end early, skip turns, and come back; `state` is the sum of all numbers.

    The observation of an agent is its own random walk, and its reward is how well its action follows the sign of it.
    """

    metadata: dict[str, Any] = {"render_modes": [], "name": "crowd"}  # noqa: RUF012
    possible_agents: list[str]

    def __init__(self, count: int = 3, length: int = 20, skip: float = 0.3, masks: bool = False) -> None:
        self.possible_agents = [f"walker_{k}" for k in range(count)]
        self.agents: list[str] = []
        self.length, self._skip, self._masks = length, skip, masks
        self.state_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def observation_space(self, agent: str) -> spaces.Space:
        box = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        return spaces.Dict(observation=box, action_mask=spaces.MultiBinary(2)) if self._masks else box

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        self._generator = np.random.default_rng(seed)
        self._time = 0
        self._at = {name: np.zeros(2, np.float32) for name in self.possible_agents}
        self.agents = [name for k, name in enumerate(self.possible_agents) if k != 1]
        return self._observe(self.agents), {name: {} for name in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[dict, dict, dict, dict, dict]:
        self._time += 1
        living = list(self.agents)
        rewards = dict.fromkeys(living, 0.25)
        for name, action in actions.items():
            rewards[name] += float(2 * action - 1) * float(np.sign(self._at[name][0]))
        for name in living:
            self._at[name] = self._at[name] + self._generator.normal(size=2).astype(np.float32)
        ended = {name: bool(self._generator.random() < 0.03) for name in living}
        over = self._time >= self.length
        self.agents = [] if over else [name for name in living if not ended[name]]
        if self._time % 7 == 3 and self.agents:
            self.agents = sorted({*self.agents, self.possible_agents[self._generator.integers(len(self._at))]})
        seen = [
            n for n in sorted({*living, *self.agents}) if n not in self.agents or self._generator.random() >= self._skip
        ]
        cut = {name: over and not ended[name] for name in living}
        return self._observe(sorted(seen)), rewards, ended, cut, {name: {"time": self._time} for name in living}

    def _observe(self, names: list[str]) -> dict[str, Any]:
        if not self._masks:
            return {name: self._at[name].copy() for name in names}
        return {
            name: {"observation": self._at[name].copy(), "action_mask": np.array([1, 1], np.int8)} for name in names
        }

    def state(self) -> np.ndarray:
        return np.array([sum(float(at.sum()) for at in self._at.values())], np.float32)

    @property
    def unwrapped(self) -> Crowd:
        return self

    def close(self) -> None:
        pass


class Alone(Crowd):
    """CartPole of Gymnasium as an environment with one agent."""

    def __init__(self) -> None:
        self._env = gymnasium.make("CartPole-v1")
        self.possible_agents, self.agents = ["cart"], []

    def observation_space(self, agent: str) -> spaces.Space:
        return self._env.observation_space

    def action_space(self, agent: str) -> spaces.Space:
        return self._env.action_space

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        self.agents = ["cart"]
        observation, info = self._env.reset(seed=seed, options=options)
        return {"cart": observation}, {"cart": info}

    def step(self, actions: dict[str, int]) -> tuple[dict, dict, dict, dict, dict]:
        observation, reward, terminated, truncated, info = self._env.step(actions["cart"])
        if terminated or truncated:
            self.agents = []
        return tuple({"cart": value} for value in (observation, reward, terminated, truncated, info))  # type: ignore[return-value]


class Unequal(Crowd):
    """Agents with different observation spaces."""

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(-1, 1, (1 + self.possible_agents.index(agent),), np.float32)


class Numbered(Crowd):
    """The names of the agents are numbers."""

    def __init__(self) -> None:
        self.possible_agents = [0, 1]  # type: ignore[list-item]


class Stateless(Crowd):
    """An environment without a state."""

    def __init__(self) -> None:
        super().__init__()
        del self.state_space


class WrongMasks(Crowd):
    """A mask has three numbers, but there are two actions."""

    def __init__(self) -> None:
        super().__init__(masks=True)

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Dict(observation=spaces.Box(-np.inf, np.inf, (2,)), action_mask=spaces.MultiBinary(3))

    def _observe(self, names: list[str]) -> dict[str, Any]:
        return {name: parts | {"action_mask": np.ones(3, np.int8)} for name, parts in super()._observe(names).items()}


class Unseeded(Crowd):
    """Random numbers that the seed does not decide."""

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        return super().reset(None, options)


class Nim(Crowd):
    """Two players take 1 to 3 of the sticks in turn. Whoever takes the last one wins. The other one waits: mask 0."""

    def __init__(self, sticks: int = 10) -> None:
        self.possible_agents, self.agents, self._most = ["one", "two"], [], sticks

    def observation_space(self, agent: str) -> spaces.Space:
        box = spaces.Box(0, np.inf, (2,), np.float32)
        return spaces.Dict(observation=box, action_mask=spaces.MultiBinary(3))

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        generator = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self.sticks, self.turn = int(generator.integers(5, self._most + 1)), int(generator.integers(2))
        return self._look(), {name: {} for name in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[dict, dict, dict, dict, dict]:
        ((name, action),) = actions.items()
        assert name == self.possible_agents[self.turn]
        assert action < self.sticks
        self.sticks -= action + 1
        self.turn = 1 - self.turn
        over, names = self.sticks == 0, list(self.possible_agents)
        if over:
            self.agents = []
        rewards = {other: float(over) * (1 if other == name else -1) for other in names}
        flags = [dict.fromkeys(names, value) for value in (over, False)]
        return self._look(), rewards, *flags, {other: {} for other in names}

    def _look(self) -> dict[str, Any]:
        return {
            name: {
                "observation": np.array([self.sticks, self.sticks % 4], np.float32),
                "action_mask": np.array([k == self.turn and a < self.sticks for a in range(3)], np.int8),
            }
            for k, name in enumerate(self.possible_agents)
        }


def play_nothing(observation: Any, space: spaces.Space, generator: np.random.Generator) -> None:
    """An opponent that forgets to return its action."""


def play_perfectly(observation: dict[str, np.ndarray], space: spaces.Space, generator: np.random.Generator) -> int:
    """Play Nim without mistakes: leave a multiple of 4."""
    return max(0, int(observation["obs"][1]) - 1)


def take_one(observation: dict[str, np.ndarray], space: spaces.Space, generator: np.random.Generator) -> int:
    """Play Nim without thought: take one stick."""
    return 0


_moves, _later_moves = itertools.count(), itertools.count()


def tire(observation: dict[str, np.ndarray], space: spaces.Space, generator: np.random.Generator) -> int:
    """Play Nim with a memory of earlier games: take up to three sticks in the first moves, later one."""
    return min(2, int(observation["obs"][0]) - 1) if next(_moves) < 10 else 0


def tire_later(observation: dict[str, np.ndarray], space: spaces.Space, generator: np.random.Generator) -> int:
    """Play Nim as `tire`, but change only after the first evaluations."""
    return min(2, int(observation["obs"][0]) - 1) if next(_later_moves) < 110 else 0


class Leveled(Crowd):
    """Episodes are longer by the level of their options, which `reset` changes."""

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        self.length = 5 + (options or {"level": 0}).pop("level")
        return super().reset(seed, options)


class Drawing(Crowd):
    """Draws from global generators."""

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        result = super().reset(seed, options)
        for name in result[0]:
            result[0][name][0] = np.random.normal()  # noqa: NPY002
        return result

    def step(self, actions: dict[str, int]) -> tuple[dict, dict, dict, dict, dict]:
        result = super().step(actions)
        for name in result[0]:
            result[0][name][1] = random.gauss(0, 1)
        return result
