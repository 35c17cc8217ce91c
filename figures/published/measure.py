"""Train with the budgets of published results, and evaluate as they did.

    python -m figures.published.measure occluded --seeds 1 2 3
    python -m figures.published.measure zoo --seeds 1 2 3 4 5

occluded: four PyBullet tasks of which the policy sees only positions (P) or only velocities (V), 1.5 million steps. The
parts of the observation are those of pomdp-baselines (twni2016). Needs the extra `pybullet`.

zoo: tasks of `ppo_lstm` in RL Baselines3 Zoo at its budgets, and CarRacing with at most a quarter of its frames; 750
evaluation episodes. CarRacing needs Box2D, pygame, and OpenCV.

Appends to PART.csv. Runs that it has are not repeated, and an interrupted run is resumed.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from figures.common.command_line import script_parser
from figures.common.evaluated_runs import add_run
from shmppo import preset

FOLDER = Path(__file__).parent
TRAIN = ("-m", "shmppo.train")
ROBOTS = {
    "Ant": ("Ant", 8, 28),
    "HalfCheetah": ("HalfCheetah", 6, 26),
    "Hopper": ("Hopper", 3, 15),
    "Walker": ("Walker2D", 6, 22),
}
"""Robot -> its name in PyBullet, its joints, and the numbers of its observation."""
EXPLORE = ("--rollout-steps", 256, "--entropy-coef", 0.003)
OWN_FLAGS = {"Ant": ("--epochs", 5), "HalfCheetah": (), "Hopper": EXPLORE, "Walker": EXPLORE}
"""Robot -> flags with which it learns better than with the preset alone (docs/results.md)."""


def occluded(robot: str, seen: str, core: str) -> list[object]:
    """Return the program that trains a robot that sees positions (P) or velocities (V), and its flags.

    The observation has 8 numbers of the body, of which 3 to 5 are velocities, then the position and the velocity of
    each joint, then the contacts of the feet, which count as positions.
    """
    name, joints, size = ROBOTS[robot]
    velocities = {3, 4, 5, *range(9, 8 + 2 * joints, 2)}
    hidden = velocities if seen == "P" else set(range(size)) - velocities
    env = f"pybullet_envs_gymnasium:{name}BulletEnv-v0"
    return [
        *TRAIN, "--preset", "pybullet-occluded", "--env", env, "--core", core,
        *OWN_FLAGS[robot], "--hide-obs", *sorted(hidden),
    ]  # fmt: skip


ZOO = {"CartPole-v1": 100_000, "Pendulum-v1": 100_000, "MountainCarContinuous-v0": 300_000 // 8}
"""Task with hidden velocities -> actions. MountainCarContinuous holds each of them for 8 steps."""
PPO_LSTM = {"CartPole-v1": 500, "Pendulum-v1": -217.9, "MountainCarContinuous-v0": 91.5, "CarRacing-v3": 862.5}
"""Task -> return of RL Zoo."""
PARTS: dict[str, tuple[int, dict[tuple[str, str], list[object]]]] = {
    "occluded": (
        20,
        {
            (f"{robot}-{seen}", core): occluded(robot, seen, core)
            for core, robot, seen in itertools.product(("lru", "gru"), ROBOTS, "PV")
        },
    ),
    "zoo": (
        750,
        {
            (task, preset(f"{task}-memory").core): [*TRAIN, "--preset", f"{task}-memory", "--total-steps", steps]
            for task, steps in ZOO.items()
        }
        | {("CarRacing-v3", "lstm"): ["examples/car_racing.py"]},
    ),
}
"""Part -> (episodes of an evaluation, (task, core) -> program that trains and its flags)."""
PUBLISHED: dict[str, dict[str, dict[str, float]]] = {
    "occluded": {
        f"{robot}-{seen}": dict(zip(("PPO-GRU", "MF-RNN", "best listed"), values, strict=True))
        for robot, seen, *values in [
            ("Ant", "P", 2103, 352, 2829),
            ("Ant", "V", 690, 1137, 1971),
            ("HalfCheetah", "P", 1460, 2802, 2900),
            ("HalfCheetah", "V", 1072, 2073, 2678),
            ("Hopper", "P", 1592, 2234, 2769),
            ("Hopper", "V", 438, 1003, 2537),
            ("Walker", "P", 651, 940, 2505),
            ("Walker", "V", 423, 160, 1901),
        ]
    },
    "zoo": {task: {"ppo_lstm": value} for task, value in PPO_LSTM.items()},
}
"""Part -> task -> name of the method -> return. Sources: README of Recurrent-Offpolicy-RL (FanmingL), which does not
state the steps of PPO-GRU, and benchmark.md of RL Baselines3 Zoo."""


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    options = parser.parse_args()
    episodes, tasks = PARTS[options.part]
    for seed, ((task, core), arguments) in itertools.product(options.seeds, tasks.items()):
        key = {"task": task, "core": core}
        add_run(FOLDER / f"{options.part}.csv", key, seed, arguments, episodes=episodes)


if __name__ == "__main__":
    main()
