"""Environments that are no functions of their seeds. Named in a configuration as `hidden_state:Id`."""

from __future__ import annotations

import os
import random
import subprocess
import time
from typing import Any

import numpy as np
from environments import Counter
from gymnasium import spaces


class Hidden(Counter):
    """A `Counter` of 50 steps that also observes a hidden number, which subclasses define."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)

    def __init__(self) -> None:
        super().__init__(length=50)

    def hidden(self) -> float:
        """The number that the environment observes."""
        raise NotImplementedError

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        observation, extra = super().reset(seed=seed, options=options)
        return np.append(observation, 0.0), extra

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        observation, *rest = super().step(action)
        return np.append(observation, self.hidden()), *rest  # type: ignore[return-value]


class GlobalCounter(Hidden):
    """(a) Observes the number of steps of all environments of the process."""

    steps = 0

    def hidden(self) -> float:
        GlobalCounter.steps += 1
        return GlobalCounter.steps


class SharedByClass(Hidden):
    """Observes an array of its class, which the reset of another environment changes. Its episodes are long."""

    target = np.zeros(1)

    def __init__(self) -> None:
        super().__init__()
        self.length = 1000

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        self.target[0] = seed
        return super().reset(seed=seed, options=options)

    def hidden(self) -> float:
        return float(self.target[0])


class Clock(Hidden):
    """(b) Observes the time."""

    def hidden(self) -> float:
        return float(time.perf_counter_ns() % 10_000_019)  # nanoseconds, exact in float32


class GlobalRandom(Hidden):
    """(c) Uses the generator of the module `random`."""

    def hidden(self) -> float:
        return random.random()


class GlobalNumpyRandom(Hidden):
    """(d) Uses the generator of the module `numpy.random`, which it seeds itself when it is made."""

    def __init__(self) -> None:
        super().__init__()
        np.random.seed(0)  # noqa: NPY002 (that is what this environment is for)

    def hidden(self) -> float:
        return np.random.random()  # noqa: NPY002


class ProcessId(Hidden):
    """(e) Observes the process id."""

    def hidden(self) -> float:
        return os.getpid()


class StringSet(Hidden):
    """(f) Observes the order of a set of texts, which depends on the hash seed of Python."""

    names = ("left", "right", "up", "down", "take", "drop", "wait", "open", "close", "look")

    def hidden(self) -> float:
        return float("".join(str(self.names.index(name)) for name in set(self.names)))


class LateHistory(Hidden):
    """(g) From step 40 of an episode on, observes how many episodes this instance has begun."""

    episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        self.episodes += 1
        return super().reset(seed=seed, options=options)

    def hidden(self) -> float:
        return self.episodes if self.t >= 40 else 0.0


class SeededInReset(Hidden):
    """(h) Seeds `numpy.random` in each reset. It is a function of its seed only while it is alone in its process."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        np.random.seed(seed)  # noqa: NPY002
        return super().reset(seed=seed, options=options)

    def hidden(self) -> float:
        return np.random.random()  # noqa: NPY002


class SmallBits(Hidden):
    """(i) Observes the number of steps of all environments, in digits that 32-bit floats cannot show."""

    steps = 0

    def hidden(self) -> float:
        SmallBits.steps += 1
        return 1.0 + SmallBits.steps * 1e-14


class Snapshots(Hidden):
    """(j) Its snapshots lack a part of the state, which shows three steps after the restoration."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        self.recent = [0.0] * 4
        return super().reset(seed=seed or 0, options=options)

    def hidden(self) -> float:
        self.recent = [*self.recent[1:], float(self.t)]
        return self.recent[0]

    def get_state(self) -> np.ndarray:
        return np.array([*self.buffer, self.t, self.recent[1]])

    def set_state(self, state: np.ndarray) -> None:
        self.buffer[:], self.t, self.recent[1] = state[:2], int(state[2]), state[3]


class KeepsBuffer(Counter):
    """(k) Its reset does not clear what the last step of the episode before has written."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        self.t = 0
        return self.buffer, {}


class Flags(Hidden):
    """(l) Ends episodes by the steps of all instances, and shows it only by the flag `what`, or by the reward."""

    steps = 0

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def hidden(self) -> float:
        return 0.0

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        observation, reward, terminated, truncated, extra = super().step(action)
        Flags.steps += 1  # of all instances
        lucky = Flags.steps % 5 == 0
        reward += 1e-9 * lucky * (self.what == "reward")
        flags = {"terminated": terminated, "truncated": truncated}
        flags |= {self.what: flags.get(self.what, False) or lucky}
        return observation, reward, flags["terminated"], flags["truncated"], extra


class RaisesLate(Hidden):
    """Raises at step 30 of each episode."""

    def hidden(self) -> float:
        if self.t == 30:
            raise ValueError("too late")
        return 0.0


class RaisesAfterHistory(LateHistory):
    """Raises at step 5 of the fourth episode of the instance."""

    def hidden(self) -> float:
        if (self.episodes, self.t) == (4, 5):
            raise ValueError("four")
        return 0.0


class FailsElsewhere(Hidden):
    """Hangs, or waits for another process (a "simulator"), in every process but `owner`."""

    def __init__(self, how: str, owner: int) -> None:
        super().__init__()
        self.how, self.owner = how, owner

    def hidden(self) -> float:
        if os.getpid() != self.owner:
            if self.how == "hang":
                time.sleep(1000)
            if self.how == "simulator":
                subprocess.run(["sleep", "1000"], check=False)
        return 0.0


class SamplesSpaces(Counter):
    """Its reset draws the observation from the space, whose generator `reset(seed=…)` does not seed."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed, options=options)
        return self.observation_space.sample(), {}


class UnseededReset(Counter):
    """Its reset draws the observation from a generator that nothing seeds."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed, options=options)
        return np.random.default_rng().random(2), {}


class SetByConstructor(Counter):
    """Its constructor changes an attribute of the class, from which rewards follow."""

    SCALE = 1.0

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__(length=40)
        SetByConstructor.SCALE = scale

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        observation, reward, *rest = super().step(action)
        return observation, reward * self.SCALE, *rest  # type: ignore[return-value]


class ClockOf(Counter):
    """Rewards depend on the time in environments with `clock`."""

    def __init__(self, clock: bool = False) -> None:
        super().__init__()
        self.clock = clock

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        observation, reward, *rest = super().step(action)
        return observation, reward + self.clock * time.perf_counter(), *rest  # type: ignore[return-value]
