"""Environments that misbehave on purpose. Named in a configuration as `environments:Id`."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces


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


class Exponential(Counter):
    """Its reward is a sum of float64 exponentials, whose last bits depend on the functions that NumPy uses."""

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        obs, _, *rest = super().step(action)
        return obs, float(np.exp(np.linspace(-1, 1, 64) * (obs.sum() + action)).sum()), *rest


class Flushing(Counter):
    """As if its library were linked with -ffast-math: denormal numbers become 0 in the thread that makes it."""

    def __init__(self) -> None:
        super().__init__()
        torch.set_flush_denormal(True)


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


class Faulty(Counter):
    """Goes wrong at its n-th step in total, in the way that `how` says."""

    def __init__(self, how: str, at: int = 40) -> None:
        super().__init__()
        self.how, self.left = how, at

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.left -= 1
        if self.left == 0:
            if self.how == "raise":
                raise ValueError("the simulation exploded")
            if self.how == "exit":
                os._exit(3)
            if self.how == "hang":
                time.sleep(1000)
            if self.how == "shape":
                return np.zeros(3), 0.0, False, False, {}
            if self.how == "four":
                return np.zeros(2), 0.0, False, {}  # type: ignore[return-value]
            if self.how == "reward":
                return np.zeros(2), np.zeros(2), False, False, {}  # type: ignore[return-value]
            if self.how == "nan":
                return np.array([0.0, np.nan]), 0.0, False, False, {}
            if self.how == "huge":
                return np.zeros(2), 1e300, False, False, {}
            if self.how == "infinite":
                return np.zeros(2), float("inf"), False, False, {}
        return super().step(action)


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
            raise NotImplementedError("no seeds here")
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


class OneHangs(Counter):
    """Steps slowly. The first of the processes that reach the 20th step creates the file `lock` and hangs there."""

    def __init__(self, lock: str) -> None:
        super().__init__()
        self.lock, self.steps = lock, 0

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.steps += 1
        time.sleep(0.01)
        if self.steps == 20:
            try:
                os.close(os.open(self.lock, os.O_CREAT | os.O_EXCL))
                time.sleep(1000)
            except FileExistsError:
                pass
        return super().step(action)


class FaultyInEvaluation(Counter):
    """With `token`, ends its process at step 2, once. With `fails`, raises at step 2. For --eval-env-kwargs."""

    def __init__(self, token: str | None = None, fails: bool = False) -> None:
        super().__init__()
        self.token, self.fails, self.steps = token, fails, 0

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.steps += 1
        if self.steps == 2 and self.fails:
            raise ValueError("no license")
        if self.steps == 2 and self.token is not None and not os.path.exists(self.token):
            open(self.token, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class FailsAtStart(Counter):
    """Goes wrong at its first reset in a worker, in the way that `how` says, as often as `tokens` has files."""

    def __init__(self, how: str, tokens: str) -> None:
        super().__init__()
        self.how, self.tokens = how, tokens

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        if multiprocessing.parent_process() is not None:
            for name in os.listdir(self.tokens):
                try:
                    os.unlink(os.path.join(self.tokens, name))
                except FileNotFoundError:  # another process has taken it
                    continue
                if self.how == "raise":
                    raise ValueError("no license")
                if self.how == "exit":
                    os._exit(3)
                os.kill(os.getpid(), signal.SIGSTOP)
        return super().reset(seed=seed, options=options)


class FailsSometimes(Counter):
    """Goes wrong, in the way that `how` says, at the fifth step of every third episode by its seed."""

    def __init__(self, how: str) -> None:
        super().__init__(length=9)
        self.how = how

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        self.bad = seed is not None and seed % 3 == 1
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        observation, reward, terminated, truncated, extra = super().step(action)
        if self.bad and self.t == 5:
            if self.how == "raise":
                raise ValueError("the simulation exploded")
            if self.how == "exit":
                sys.exit(0)
            if self.how == "interrupt":
                raise KeyboardInterrupt
            if self.how == "nan":
                return np.array([0.0, np.nan]), reward, terminated, truncated, extra
            return observation, float("inf"), terminated, truncated, extra
        return observation, reward, terminated, truncated, extra


class FailsAtReset(Counter):
    """Every third episode, by its seed, cannot begin, in the way that `how` says."""

    def __init__(self, how: str) -> None:
        super().__init__(length=9)
        self.how = how

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        observation, extra = super().reset(seed=seed, options=options)
        if seed is not None and seed % 3 == 1:
            if self.how == "raise":
                raise ValueError("no such level")
            return np.array([0.0, np.nan]), extra
        return observation, extra


for _how in ("raise", "nan"):
    gymnasium.register(f"FailsAtReset-{_how}-v0", entry_point=FailsAtReset, kwargs={"how": _how})
for _how in ("raise", "nan", "reward", "exit", "interrupt"):
    gymnasium.register(f"FailsSometimes-{_how}-v0", entry_point=FailsSometimes, kwargs={"how": _how})
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


class FaultyStream(Counter):
    """Raises at its 40th step in all, but only as environment 4 of all ranks' and with seed 1."""

    faulty, steps = False, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        from shmppo.utils.rng import episode_seed

        self.faulty |= seed == episode_seed(1, 4, 0)
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.steps += 1
        if self.faulty and self.steps == 40:
            raise ValueError("the simulation exploded")
        return super().step(action)


class StartsProcess(Counter):
    """Has a process of multiprocessing, as an environment with a simulator may."""

    def __init__(self) -> None:
        super().__init__()
        self.process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(1000,), daemon=True)
        self.process.start()

    def close(self) -> None:
        self.process.kill()
        self.process.join()


class MultiAgentEnv(gymnasium.Env):
    """The attributes of RLlib's class of this name, which is a gymnasium.Env."""

    possible_agents = ("left", "right")


gymnasium.register("FaultyStream-v0", entry_point=FaultyStream)
gymnasium.register("SlowEnvironment2-v0", entry_point=SlowEnvironment2, kwargs={"length": 10_000})
gymnasium.register("Unrepeatable-v0", entry_point=Unrepeatable, kwargs={"length": 10_000})
gymnasium.register("Counter-v0", entry_point=Counter)
gymnasium.register("CounterTruncated-v0", entry_point=Counter, kwargs={"truncate": True})
for _how in ("raise", "exit", "hang", "shape", "four", "reward", "nan", "infinite", "huge"):
    gymnasium.register(f"Faulty-{_how}-v0", entry_point=Faulty, kwargs={"how": _how})
