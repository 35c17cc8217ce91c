"""The part `checks`: what the determinism check says of each environment, and how many steps it needs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from figures.common.campaigns import WRONG
from figures.suites.install import prepare, run_module
from figures.suites.suites import SUITES, Environment, Suite

TABLE = Path(__file__).with_name("checks.csv")
HIDDEN = (
    "GlobalCounter", "Clock", "GlobalRandom", "GlobalNumpyRandom", "ProcessId", "StringSet", "LateHistory",
)  # fmt: skip
CLASSIC = ("CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0")
MUJOCO = (
    "Ant-v5", "HalfCheetah-v5", "Hopper-v5", "Humanoid-v5", "HumanoidStandup-v5", "InvertedDoublePendulum-v5",
    "InvertedPendulum-v5", "Pusher-v5", "Reacher-v5", "Swimmer-v5", "Walker2d-v5",
)  # fmt: skip
POPGYM = (
    "Autoencode", "Battleship", "Concentration", "CountRecall", "HigherLower", "MineSweeper", "MultiarmedBandit",
    "NoisyPositionOnlyCartPole", "NoisyPositionOnlyPendulum", "PositionOnlyCartPole", "PositionOnlyPendulum",
    "RepeatFirst", "RepeatPrevious",
)  # fmt: skip
STEPS = 1000
"""Steps of the check whose verdict counts: the default of `shmppo check-env`."""
SECONDS = 3600


class Case(NamedTuple):
    """One environment to check."""

    group: str
    environment: Environment
    suite: Suite | None = None
    """The suite to install. None: the Python that runs this script has the environment."""


def _cases() -> Iterator[Case]:
    """Yield the cases in the order of the table."""
    for name in HIDDEN:
        yield Case("hidden state", Environment(f"hidden_state:{name}", reproducible=False))
    for group, names in (("classic", CLASSIC), ("MuJoCo", MUJOCO)):
        yield from (Case(group, Environment(name)) for name in names)
    suites = {suite.name: suite for suite in SUITES}
    for task in POPGYM:
        yield Case("POPGym", Environment(f"popgym:popgym-{task}Easy-v0"), suites["POPGym"])
    for suite in SUITES:
        if suite.name != "POPGym":
            yield from (Case(suite.name, environment, suite) for environment in suite.environments)


CASES = tuple(_cases())


def verdict(python: Path, environment: Environment) -> dict[str, Any]:
    """Check an environment with a Python. Returns what `figures.suites.one_check` prints, or an `error`."""
    words = ["--env", environment.env, *environment.flags]
    output, error = run_module(python, "figures.suites.one_check", words, SECONDS)
    found: dict[str, Any] = {"error": error} if error else json.loads(output)
    return found


def judge(found: dict[str, Any], *, reproducible: bool) -> str:
    """Return the outcome of a check: whether the environment is reproducible, or wrong if that is not as expected."""
    if "error" in found or found["problem"] or (found["difference"] is None) != reproducible:
        return WRONG
    return "reproducible" if reproducible else "not reproducible"


def measure(cases: Sequence[int], directory: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of these cases."""
    for case in cases:
        group, environment, suite = CASES[case]
        python = Path(sys.executable) if suite is None else prepare(suite, directory)[0]
        found = verdict(python, environment)
        steps = found.get("smallest", [])
        yield {
            "case": case, "group": group, "env": environment.env, "flags": " ".join(environment.flags), "steps": STEPS,
            "outcome": judge(found, reproducible=environment.reproducible), "seeds": len(steps) or 1,
            "found_by": " ".join(map(str, steps)),
            "message": (found.get("error") or found["problem"] or found["difference"] or "")[:400],
        }  # fmt: skip
