"""Environments that misbehave on purpose. Named in a configuration as `environments:Id`."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import time
import warnings
from contextlib import suppress
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces


class LongDouble(gymnasium.Env[np.ndarray, int]):
    """Observations are long doubles, which NumPy computes with undefined bytes between the numbers."""

    observation_space = spaces.Box(-9, 9, (3,), np.float64)
    action_space = spaces.Discrete(2)

    def _observe(self) -> np.ndarray:
        return np.sin(np.arange(3) + self.phase + self.t).astype(np.longdouble) * np.longdouble(1.1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.t, self.phase = 0, self.np_random.random()
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.t += 1
        self.phase += action * 0.1
        return self._observe(), float(np.cos(self.phase)), self.t >= 37, False, {}


class Counter(gymnasium.Env[np.ndarray, int]):
    """Observation: (episode seed, step) scaled down; ends after `length` steps, by termination or truncation."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, length: int = 7, truncate: bool = False) -> None:
        self.length, self.truncate = length, truncate
        self.buffer = np.zeros(2)  # reused on purpose: the trainer must copy

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        assert seed is not None, "every episode is seeded"
        self.t = 0
        self.buffer[:] = (seed % 1000) / 1000, 0.0
        return self.buffer, {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.t += 1
        self.buffer[1] = self.t / 10
        ended = self.t == self.length
        return self.buffer, 1.0, ended and not self.truncate, ended and self.truncate, {}


class Outside(Counter):
    """Its steps return numbers outside of its observation space."""

    observation_space = spaces.Box(-1, 0, (2,), np.float64)


class Warns(Counter):
    def __init__(self) -> None:
        super().__init__()
        warnings.warn("no GPU found", stacklevel=1)


class Exponential(Counter):
    """Its reward consists of the last bits of float64 exponentials, which depend on the functions that NumPy uses."""

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        obs, _, *rest = super().step(action)
        return obs, float((np.exp(np.linspace(-1, 1, 64) * (obs.sum() + action)) * 1e12 % 1).sum()), *rest


class Flushing(Counter):
    """As if its library were linked with -ffast-math: denormal numbers become 0 in the thread that makes it."""

    def __init__(self) -> None:
        super().__init__()
        torch.set_flush_denormal(True)


class SetsTorch(Counter):
    """Its steps change settings of torch that decide the bits of networks, and leave them so."""

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        torch.set_autocast_enabled("cpu", True)
        torch.backends.mkldnn.enabled = False
        torch.set_float32_matmul_precision("medium")
        return super().step(action)


class Sleeping(Counter):
    """Its steps take a time."""

    def __init__(self, seconds: float) -> None:
        super().__init__(length=1000)
        self.seconds = seconds

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        time.sleep(self.seconds)
        return super().step(action)


class Reach(gymnasium.Env[np.ndarray, np.ndarray]):
    """Move to 0 within 12 steps. `info` has `is_success`, two terms of the reward, and `far` only far away."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = spaces.Box(-1, 1, (1,))

    def __init__(self, rare: float = 0.0, wrong: Any = 0.0) -> None:
        """rare: share of the episodes that have `success` in `info`. wrong: value of `wrong` in `info`."""
        self.rare, self.wrong = rare, wrong

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.is_rare = self.np_random.uniform() < self.rare
        self.t, self.x = 0, float(self.np_random.uniform(-2, 2))
        return np.array([self.x]), {"is_success": "not yet"}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.t += 1
        self.x += float(np.clip(action[0], -1, 1)) + 0.1 * float(self.np_random.normal())
        success = abs(self.x) < 0.2
        terms = {"distance": -abs(self.x), "control": -0.1 * float(action[0]) ** 2}
        info: dict[str, Any] = {"is_success": success, "reward": terms, "wrong": self.wrong}
        if abs(self.x) > 1:
            info["far"] = np.array([abs(self.x)])
        if self.is_rare:
            info["success"] = np.bool_(success)
        return np.array([self.x]), sum(terms.values()), success, self.t == 12, info


class NoActions(gymnasium.Env[np.ndarray, int]):
    """Has no action space."""

    observation_space = spaces.Box(-1, 1, (2,))


class BrokenWrapper(gymnasium.Wrapper):
    """Raises a TypeError that does not concern its arguments."""

    def __init__(self, env: gymnasium.Env) -> None:
        raise TypeError("not an argument")


class Unrepeatable(Counter):
    """Observes something that no seed decides."""

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        observation, *rest = super().step(action)
        observation[0] = np.random.default_rng().random()
        return observation, *rest  # type: ignore[return-value]


class FourNumbersThreeActions(Counter):
    """As large as CartPole to look at, but with another number of actions."""

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float64)
    action_space = spaces.Discrete(3)

    def __init__(self) -> None:
        super().__init__()
        self.buffer = np.zeros(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        self.t = 0
        return self.buffer, {}


class RefusesSeeds(Counter):
    """Raises where it is given a seed."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        if seed is not None:
            raise TypeError("reset takes no seed")
        return super().reset(seed=5, options=options)


class SeedCounter(Counter):
    """Observes how many of its resets were seeded, and unseeded."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        self.seeded = getattr(self, "seeded", 0) + (seed is not None)
        self.unseeded = getattr(self, "unseeded", 0) + (seed is None)
        super().reset(seed=0, options=options)
        self.buffer[:] = self.seeded, self.unseeded
        return self.buffer, {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        *_, terminated, truncated, _ = super().step(action)
        self.buffer[:] = self.seeded, self.unseeded
        return self.buffer, 1.0, terminated, truncated, {}


class PutsBack(gymnasium.Env[np.ndarray, int]):
    """A random walk without an end that no replay could follow cheaply, but that can be put back."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.position, self.draws = 0.0, 0 if seed is None else seed % 1000
        return np.array([0.0, 0.0]), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.draws += 1
        self.position += np.random.default_rng(self.draws).normal() + action / 10
        return np.array([self.position / 100, 1.0]), float(action), False, False, {}

    def get_state(self) -> np.ndarray:
        return np.array([self.position, self.draws])

    def set_state(self, state: np.ndarray) -> None:
        self.position, self.draws = float(state[0]), int(state[1])


class ManyThreads(Counter):
    """Lets torch use four threads and less precision, as a simulator with its own network may. `info` says what it
    found."""

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        found = {"threads": torch.get_num_threads(), "full": torch.get_float32_matmul_precision() == "highest"}
        torch.set_num_threads(4)
        torch.set_float32_matmul_precision("medium")
        return *super().step(action)[:4], found


gymnasium.register("RefusesSeeds-v0", entry_point=RefusesSeeds)
gymnasium.register("SeedCounter-v0", entry_point=SeedCounter)
gymnasium.register("PutsBack-v0", entry_point=PutsBack, max_episode_steps=50)
gymnasium.register("FourNumbersThreeActions-v0", entry_point=FourNumbersThreeActions)


class SlowEnvironment2(Counter):
    """Takes 5 milliseconds a step, but only as environment 2 of a run with seed 1."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        from shmppo.utils.rng import episode_seed  # here, so that older versions can import the other environments

        self.slow = seed == episode_seed(1, 2, 0)
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        if self.slow:
            time.sleep(0.005)
        return super().step(action)


class SlowCartPole(gymnasium.Wrapper):
    """CartPole that takes its time."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))

    def step(self, action: int) -> Any:
        time.sleep(0.002)
        return super().step(action)


gymnasium.register("SlowCartPole-v0", entry_point=SlowCartPole)


class ReadsSettings(Counter):
    """Takes its length out of `settings`, moves to a directory of its own, and handles signals itself."""

    def __init__(self, settings: dict[str, int], directory: str) -> None:
        super().__init__(length=settings.pop("length"))
        os.chdir(directory)
        with suppress(ValueError):  # in another thread
            signal.signal(signal.SIGTERM, signal.SIG_IGN)


class StartsProcess(Counter):
    """Has a process of multiprocessing, as an environment with a simulator may."""

    def __init__(self) -> None:
        super().__init__()
        self.process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(1000,), daemon=True)
        self.process.start()

    def close(self) -> None:
        self.process.kill()
        self.process.join()


gymnasium.register("SlowEnvironment2-v0", entry_point=SlowEnvironment2, kwargs={"length": 10_000})
gymnasium.register("Unrepeatable-v0", entry_point=Unrepeatable, kwargs={"length": 10_000})
gymnasium.register("Counter-v0", entry_point=Counter)
gymnasium.register("CounterTruncated-v0", entry_point=Counter, kwargs={"truncate": True})


class Prints(Counter):
    """Prints in every way: from Python, and from a process of its own."""

    def reset(self, **arguments: Any) -> Any:
        print("Python prints this")
        subprocess.run(["echo", "a process prints this"], check=True)
        return super().reset(**arguments)


class Draws(gymnasium.Env[np.ndarray, int]):
    """Draws from global random generators in its constructor, its resets, and its steps, as many environments do.

    The numbers are part of the observation. Each episode appends those of its reset to the file `log`.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, where: str = "make reset step", late: int = 0, log: str | None = None) -> None:
        """where: the places of the draws. late: number of steps of each episode without a draw."""
        self.where, self.late, self.log = where.split(), late, log
        self.made = self.draw() if "make" in self.where else np.zeros(3)

    def draw(self) -> np.ndarray:
        return np.array([np.random.normal(), random.gauss(0, 1), torch.randn(1).item()])  # noqa: NPY002

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.t, drawn = 0, self.draw() if "reset" in self.where else np.zeros(3)
        if self.log is not None:
            with open(self.log, "a") as file:
                file.write(f"{os.getpid()} {' '.join(map(str, [*self.made, *drawn]))}\n")
        return self.made + drawn, {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        drawn = self.draw() if "step" in self.where and self.t > self.late else np.zeros(3)
        seen = self.made + drawn + self.np_random.normal(size=3)
        return seen, float(seen.sum() * (action - 0.5)), self.t >= 20, False, {}


class DrawsAndRaises(Draws):
    """Raises in its third episode."""

    episodes = 0

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        result = super().step(action)
        self.episodes += result[2]
        if self.episodes == 1 and self.t == 20:
            raise RuntimeError("it fails")
        return result


class OnePerProcess(Counter):
    """Counts how many there are at a time in this process."""

    alive = most = 0

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        OnePerProcess.alive += 1
        OnePerProcess.most = max(OnePerProcess.most, OnePerProcess.alive)

    def close(self) -> None:
        OnePerProcess.alive -= 1


class Numbered(Counter):
    """Writes the number that it got to a file."""

    def __init__(self, log: str, env_index: int) -> None:
        super().__init__()
        with open(log, "a") as file:
            file.write(f"{env_index}\n")


class Simulated(Counter):
    """Starts a process, as a simulator is, and ends it when it is closed."""

    def __init__(self, seconds: int) -> None:
        super().__init__()
        self.process = subprocess.Popen(["sleep", str(seconds)])

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


class SlowToMake(Counter):
    """Takes a while to be made and to be reset."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        time.sleep(seconds)

    def reset(self, **arguments: Any) -> Any:
        time.sleep(self.seconds * (multiprocessing.parent_process() is not None))
        return super().reset(**arguments)


class Forks(Counter):
    """Forks a process at each reset, which raises."""

    def reset(self, **arguments: Any) -> Any:
        if multiprocessing.parent_process() is not None and os.fork() == 0:
            raise RuntimeError("only the forked process raises")
        return super().reset(**arguments)


class DrawsNested(gymnasium.Env):
    """In rare episodes, draws from `np.random`, and if its number is small, from torch, or raises."""

    observation_space = spaces.Box(-9, 9, (1,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, length: int = 25, rare: float = 0.1, then: str = "torch", early: bool = False) -> None:
        if early:
            np.random.random()  # noqa: NPY002
        self.length, self.rare, self.then = length, rare, then

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.draws = 0, self.np_random.random() < self.rare
        return self.np_random.normal(size=1).clip(-9, 9), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        seen = self.np_random.normal(size=1)
        if self.draws and self.t > 5:
            drawn = np.random.random()  # noqa: NPY002
            seen += drawn
            if drawn < 0.1:
                if self.then == "raise":
                    raise RuntimeError("a small number")
                seen += torch.rand(1).item()
        return seen.clip(-9, 9), float(seen[0]) * (1 if action else -1), self.t >= self.length, False, {}

    def close(self) -> None:
        np.random.random()  # noqa: NPY002
