"""Environments that raise, end, hang, or return invalid values."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from typing import Any

import gymnasium
import numpy as np
from environments import Counter


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
            if self.how == "caught":
                with contextlib.suppress(Exception):
                    time.sleep(1000)
            if self.how == "block":
                sum(itertools.repeat(0))  # it keeps the lock of the interpreter
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


class FaultyWithProcess(Faulty):
    """Raises, and has a process that only `close` ends."""

    def __init__(self, seconds: str) -> None:
        super().__init__("raise")
        self.process = subprocess.Popen(["sleep", seconds])

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


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


class SlowToMake(Counter):
    """Is made in `seconds`. For --eval-env-kwargs."""

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__()
        time.sleep(seconds)


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
            if self.how == "flag":
                return observation, reward, np.array([False, False]), truncated, extra
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


for _how in ("raise", "nan"):
    gymnasium.register(f"FailsAtReset-{_how}-v0", entry_point=FailsAtReset, kwargs={"how": _how})
for _how in ("raise", "nan", "reward", "flag", "exit", "interrupt"):
    gymnasium.register(f"FailsSometimes-{_how}-v0", entry_point=FailsSometimes, kwargs={"how": _how})
gymnasium.register("FaultyStream-v0", entry_point=FaultyStream)
for _how in ("raise", "exit", "hang", "block", "shape", "four", "reward", "nan", "infinite", "huge"):
    gymnasium.register(f"Faulty-{_how}-v0", entry_point=Faulty, kwargs={"how": _how})
