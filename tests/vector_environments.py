"""Vector environments for tests, as a user would write them. Named in a configuration as `vector_environments:Name`."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode


class Walk(gymnasium.vector.VectorEnv):
    """A random walk on a line. Each row has a generator of its own. Resets with masks."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.DISABLED}

    def __init__(self, num_envs: int, length: int = 20, space: str = "box") -> None:
        self.num_envs, self.length = num_envs, length
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        if space == "dict":
            self.single_observation_space = spaces.Dict(
                {"x": spaces.Box(-np.inf, np.inf, (2,), np.float64), "even": spaces.Discrete(2)}
            )
        self.single_action_space = spaces.Discrete(3)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)
        self.x, self.t = np.zeros((num_envs, 2)), np.zeros(num_envs, np.int64)
        self.generators: list[np.random.Generator] = [np.random.default_rng(0) for _ in range(num_envs)]

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        mask = np.ones(self.num_envs, bool) if not options else options["reset_mask"]
        seeds = seed if isinstance(seed, list) else [seed] * self.num_envs
        for i in np.flatnonzero(mask).tolist():
            self.restart(i, seeds[i])
        return self.observe(), {}

    def restart(self, i: int, seed: int | None) -> None:
        """Begin an episode in row i."""
        if seed is not None:
            self.generators[i] = np.random.default_rng(seed)
        self.x[i], self.t[i] = self.generators[i].normal(size=2), 0

    def observe(self) -> Any:
        """The current observations."""
        x = self.x.copy()
        if isinstance(self.single_observation_space, spaces.Dict):
            return {"x": x, "even": self.t % 2}
        return x

    def advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Move all rows. Returns rewards and flags."""
        self.x[:, 0] += actions - 1 + [generator.normal() * 0.1 for generator in self.generators]
        self.t += 1
        return -np.abs(self.x[:, 0]), np.abs(self.x[:, 0]) > 4, self.t >= self.length

    def step(self, actions: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        rewards, terminated, truncated = self.advance(actions)
        return self.observe(), rewards, terminated, truncated, {}


class SameStep(Walk):
    """Resets rows itself, in the same step, and ignores masks."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=seed)

    def step(self, actions: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        rewards, terminated, truncated = self.advance(actions)
        ended = terminated | truncated
        final = np.full(self.num_envs, None, dtype=object)
        last = self.observe()
        for i in np.flatnonzero(ended).tolist():
            final[i] = {key: part[i] for key, part in last.items()} if isinstance(last, dict) else last[i]
            self.restart(i, None)
        return self.observe(), rewards, terminated, truncated, {"final_obs": final, "_final_obs": ended}


class Informed(SameStep):
    """Reports `success` at the last step, in `infos` or in its `final_info`, and in some steps `bumps`, which are 7."""

    def __init__(self, num_envs: int, final_info: bool) -> None:
        super().__init__(num_envs)
        self.final_info = final_info

    def step(self, actions: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        *results, infos = super().step(actions)
        present = self.t % 2 == 1
        numbers = {"bumps": np.where(present, 7, 0), "_bumps": present}
        last = {"success": np.ones(self.num_envs), "_success": infos["_final_obs"]}
        return *results, infos | numbers | ({"final_info": last} if self.final_info else last)


class NextStep(Walk):
    """Resets rows itself, in the next step, and ignores masks."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs: int, **arguments: Any) -> None:
        super().__init__(num_envs, **arguments)
        self.ended = np.zeros(num_envs, bool)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.ended[:] = False
        return super().reset(seed=seed)

    def step(self, actions: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        waiting = self.ended.copy()
        rewards, terminated, truncated = self.advance(actions)
        for i in np.flatnonzero(waiting).tolist():
            self.restart(i, None)
        rewards[waiting], terminated[waiting], truncated[waiting] = 0.0, False, False
        self.ended = terminated | truncated
        return self.observe(), rewards, terminated, truncated, {}


class SharedSameStep(SameStep):
    """All rows draw from one generator."""

    def restart(self, i: int, seed: int | None) -> None:
        if seed is not None:
            self.generators = [np.random.default_rng(seed)] * self.num_envs
        super().restart(i, None)


class Unmasked(Walk):
    """Resets nothing itself, and ignores masks."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=seed)


class Counted(Walk):
    """The rewards contain the number of rows."""

    def advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rewards, *flags = super().advance(actions)
        return rewards + self.num_envs, *flags  # type: ignore[return-value]


class Raising(Walk):
    """Raises at the last step of an episode."""

    def step(self, actions: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        if self.t.max() == self.length - 1:
            raise ValueError("the simulation exploded")
        return super().step(actions)


def as_list(num_envs: int) -> list[Walk]:
    """A mistake: not a vector environment."""
    return [Walk(1)] * num_envs


def of_one(num_envs: int) -> Walk:
    """A mistake: it ignores its argument."""
    return Walk(1)


class Draws(NextStep):
    """Draws from the generator of its process."""

    def restart(self, i: int, seed: int | None) -> None:
        super().restart(i, seed)
        self.x[i] += np.random.normal()  # noqa: NPY002
