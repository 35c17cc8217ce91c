"""The MuJoCo tasks of Gymnasium (version 5), computed for many environments at once.

Each class computes the observations, rewards, and terminations of one of Gymnasium's tasks, which resets its
simulations itself. The results are those of `gymnasium.envs.mujoco`, bit for bit: every expression has the same order
and the same types as in Gymnasium's source. Where NumPy may round an array operation differently from the operation on
one environment, there is one call per environment.

The names of the arguments and their meaning are those of Gymnasium's environments. `reason_for_gymnasium` says which
environments are such tasks.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from shmppo.config.train_config import TrainConfig
from shmppo.envs.creation_errors import imported_factory
from shmppo.envs.snapshots import wrappers_of
from shmppo.extensions.mujoco.simulations import Fields, Part, Simulations
from shmppo.extensions.mujoco.task import MujocoTask, TaskEnv
from shmppo.utils.user_code import parameters_of


class GymnasiumTask(MujocoTask):
    """One of Gymnasium's MuJoCo tasks, which resets its simulations."""

    def __init__(self, model: mujoco.MjModel, arguments: Mapping[str, Any]) -> None:
        """Create the task.

        Args:
            model: of the simulation.
            arguments: the arguments of Gymnasium's environment, with its defaults.
        """
        self.model = model
        self.frame_skip = arguments["frame_skip"]
        self.arguments = arguments


def _squares(values: np.ndarray) -> np.ndarray:
    """Sum of squares over the last axis, in the type of the values."""
    result: np.ndarray = np.add.reduce(np.square(values), -1)
    return result


def _flat(part: Part) -> np.ndarray:
    """Return the numbers of a field as vectors, [n, size]."""
    return part[:].reshape(len(part[:]), -1)


def _per_environment(function: Any, values: np.ndarray) -> np.ndarray:
    """Apply a NumPy function to one environment after the other, [n, …]."""
    return np.array([function(row) for row in values])


Outcome = tuple[np.ndarray, dict[str, np.ndarray]]
"""The rewards and the numbers for `info`."""


class _Runner(GymnasiumTask):
    """A task whose reward is the forward velocity minus the cost of the control."""

    skipped = 1
    """Number of leading positions that the observation leaves out."""
    before: tuple[str, ...] = ("qpos",)

    def position(self, sim: Fields) -> np.ndarray:
        """Return the position along the x axis whose change is rewarded, [n]."""
        return sim.qpos[:, 0]

    def observe(self, sim: Simulations) -> np.ndarray:
        return np.concatenate(self._parts(sim), axis=1)

    def _parts(self, sim: Simulations) -> list[np.ndarray]:
        """Return the parts of the observations, [n, …] each."""
        excluded = self.arguments["exclude_current_positions_from_observation"]
        return [sim.qpos[:, self.skipped if excluded else 0 :], sim.qvel[:]]

    def _rewards(self, sim: Simulations, costs: Sequence[np.ndarray], survival: np.ndarray | None = None) -> Outcome:
        """Return the rewards with these parts, [n] each. costs: of the control, and of contacts."""
        velocity = (self.position(sim) - self.position(sim.before)) / sim.dt
        rewards = forward = self.arguments["forward_reward_weight"] * velocity
        info = {"x_velocity": velocity, "reward_forward": forward}
        info |= {name: -cost for name, cost in zip(("reward_ctrl", "reward_contact"), costs, strict=False)}
        if survival is not None:
            info["reward_survive"] = survival
            rewards = forward + survival
        return rewards - functools.reduce(np.add, costs), info

    def _control_cost(self, actions: np.ndarray) -> np.ndarray:
        return self.arguments["ctrl_cost_weight"] * _squares(actions)


class HalfCheetah(_Runner):
    """HalfCheetah-v5."""

    def reward(self, sim: Simulations, action: np.ndarray) -> Outcome:
        return self._rewards(sim, [self._control_cost(action)])


class Swimmer(HalfCheetah):
    """Swimmer-v5."""

    skipped = 2


class _Walker(_Runner):
    """A task that rewards staying healthy."""

    def terminated(self, sim: Simulations) -> np.ndarray:
        return ~self._is_healthy(sim) if self.arguments["terminate_when_unhealthy"] else super().terminated(sim)

    def _survival(self, sim: Simulations) -> np.ndarray:
        """Return the reward for staying healthy, [n]."""
        return self._is_healthy(sim) * self.arguments["healthy_reward"]

    @abstractmethod
    def _is_healthy(self, sim: Simulations) -> np.ndarray: ...


class Walker2d(_Walker):
    """Walker2d-v5."""

    def _parts(self, sim: Simulations) -> list[np.ndarray]:
        positions, velocities = super()._parts(sim)
        return [positions, np.clip(velocities, -10, 10)]

    def reward(self, sim: Simulations, action: np.ndarray) -> Outcome:
        return self._rewards(sim, [self._control_cost(action)], self._survival(sim))

    def _is_healthy(self, sim: Simulations) -> np.ndarray:
        z, angle = sim.qpos[:, 1], sim.qpos[:, 2]
        min_z, max_z = self.arguments["healthy_z_range"]
        min_angle, max_angle = self.arguments["healthy_angle_range"]
        return (min_z < z) & (z < max_z) & (min_angle < angle) & (angle < max_angle)


class Hopper(Walker2d):
    """Hopper-v5."""

    def _is_healthy(self, sim: Simulations) -> np.ndarray:
        low, high = self.arguments["healthy_state_range"]
        healthy = super()._is_healthy(sim)
        for state in (sim.qpos[:, 2:], sim.qvel[:]):
            healthy = healthy & np.all((low < state) & (state < high), axis=1)
        return healthy


class Ant(_Walker):
    """Ant-v5."""

    skipped = 2
    before = ("xpos",)

    def position(self, sim: Fields) -> np.ndarray:
        return sim.xpos[:, sim.model.body(self.arguments["main_body"]).id, 0]

    def _parts(self, sim: Simulations) -> list[np.ndarray]:
        parts = super()._parts(sim)
        if self.arguments["include_cfrc_ext_in_observation"]:
            parts.append(self._contact_forces(sim)[:, 6:])  # without the world body
        return parts

    def reward(self, sim: Simulations, action: np.ndarray) -> Outcome:
        contact_cost = self.arguments["contact_cost_weight"] * _squares(self._contact_forces(sim))
        return self._rewards(sim, [self._control_cost(action), contact_cost], self._survival(sim))

    def _is_healthy(self, sim: Simulations) -> np.ndarray:
        min_z, max_z = self.arguments["healthy_z_range"]
        z = sim.qpos[:, 2]
        finite = np.isfinite(sim.qpos[:]).all(axis=1) & np.isfinite(sim.qvel[:]).all(axis=1)
        return finite & (min_z <= z) & (z <= max_z)

    def _contact_forces(self, sim: Simulations) -> np.ndarray:
        low, high = self.arguments["contact_force_range"]
        return np.clip(_flat(sim.cfrc_ext), low, high)


class _HumanoidBase(_Runner):
    """What the two humanoid tasks have in common: the observation, and costs from the simulation's own numbers."""

    skipped = 2
    _OPTIONAL = (("cinert", 10), ("cvel", 6), ("qfrc_actuator", 6), ("cfrc_ext", 6))
    """Optional parts of the observation: the field, and how many leading numbers are left out."""

    def _parts(self, sim: Simulations) -> list[np.ndarray]:
        optional = [
            _flat(getattr(sim, name))[:, skipped:]
            for name, skipped in self._OPTIONAL
            if self.arguments[f"include_{name}_in_observation"] is True
        ]
        return [*super()._parts(sim), *optional]

    def _clipped_cost(self, sim: Simulations, name: str) -> np.ndarray:
        """Cost of the contact forces, clipped to its range. name: "contact" or "impact"."""
        low, high = self.arguments[f"{name}_cost_range"]
        return np.clip(self.arguments[f"{name}_cost_weight"] * _squares(_flat(sim.cfrc_ext)), low, high)


class Humanoid(_HumanoidBase, _Walker):
    """Humanoid-v5."""

    before = ("xipos",)

    def position(self, sim: Fields) -> np.ndarray:
        masses = sim.model.body_mass
        return (np.einsum("b,nbj->nj", masses, sim.xipos[:]) / masses.sum())[:, 0]

    def reward(self, sim: Simulations, action: np.ndarray) -> Outcome:
        costs = [self._control_cost(sim.ctrl[:]), self._clipped_cost(sim, "contact")]
        return self._rewards(sim, costs, self._survival(sim))

    def _is_healthy(self, sim: Simulations) -> np.ndarray:
        min_z, max_z = self.arguments["healthy_z_range"]
        z = sim.qpos[:, 2]
        return (min_z < z) & (z < max_z)


class HumanoidStandup(_HumanoidBase):
    """HumanoidStandup-v5."""

    before = ()

    def reward(self, sim: Simulations, action: np.ndarray) -> Outcome:
        up = (sim.qpos[:, 2] - 0) / sim.model.opt.timestep
        return up - self._control_cost(sim.ctrl[:]) - self._clipped_cost(sim, "impact") + 1, {}


class InvertedPendulum(GymnasiumTask):
    """InvertedPendulum-v5."""

    def observe(self, sim: Simulations) -> np.ndarray:
        return np.concatenate([sim.qpos[:], sim.qvel[:]], axis=1)

    def reward(self, sim: Simulations, action: np.ndarray) -> Outcome:
        return (~self.terminated(sim)).astype(np.float64), {}

    def terminated(self, sim: Simulations) -> np.ndarray:
        finite = np.isfinite(sim.qpos[:]).all(axis=1) & np.isfinite(sim.qvel[:]).all(axis=1)
        return ~finite | (np.abs(sim.qpos[:, 1]) > 0.2)


class InvertedDoublePendulum(GymnasiumTask):
    """InvertedDoublePendulum-v5."""

    def observe(self, sim: Simulations) -> np.ndarray:
        angles = sim.qpos[:, 1:]
        parts = (
            sim.qpos[:, :1],
            _per_environment(np.sin, angles),
            _per_environment(np.cos, angles),
            np.clip(sim.qvel[:], -10, 10),
            np.clip(sim.qfrc_constraint[:], -10, 10)[:, :1],
        )
        return np.concatenate(parts, axis=1)

    def reward(self, sim: Simulations, action: np.ndarray) -> Outcome:
        rewards = map(self._reward, sim.site_xpos[:, 0], sim.qvel[:], self.terminated(sim).tolist())
        return np.array(list(rewards)), {}

    def terminated(self, sim: Simulations) -> np.ndarray:
        return sim.site_xpos[:, 0, 2] <= 1

    def _reward(self, tip: np.ndarray, velocity: np.ndarray, terminated: bool) -> np.float64:
        """Reward of one environment. The power of a NumPy scalar may round differently from that of an array."""
        x, y = tip[0], tip[2]
        v1, v2 = velocity[1:3]
        dist_penalty = 0.01 * x**2 + (y - 2) ** 2
        vel_penalty = 0.001 * v1**2 + 0.005 * v2**2
        alive_bonus = self.arguments["healthy_reward"] * int(not terminated)
        return alive_bonus - dist_penalty - vel_penalty


class _ReachTask(GymnasiumTask):
    """A task whose reward is made of distances between bodies."""

    def _control_reward(self, actions: np.ndarray) -> np.ndarray:
        return -_squares(actions) * self.arguments["reward_control_weight"]

    def _distance_reward(self, vectors: np.ndarray, weight: str) -> np.ndarray:
        """Negative length of the vectors [n, 3] times a weight."""
        return -_per_environment(np.linalg.norm, vectors) * self.arguments[weight]


class Reacher(_ReachTask):
    """Reacher-v5."""

    def observe(self, sim: Simulations) -> np.ndarray:
        theta = sim.qpos[:, :2]
        parts = (
            _per_environment(np.cos, theta),
            _per_environment(np.sin, theta),
            sim.qpos[:, 2:],
            sim.qvel[:, :2],
            self._to_target(sim)[:, :2],
        )
        return np.concatenate(parts, axis=1)

    def reward(self, sim: Simulations, action: np.ndarray) -> Outcome:
        dist = self._distance_reward(self._to_target(sim), "reward_dist_weight")
        control = self._control_reward(action)
        return dist + control, {"reward_dist": dist, "reward_ctrl": control}

    def _to_target(self, sim: Simulations) -> np.ndarray:
        return sim.xpos["fingertip"] - sim.xpos["target"]


class Pusher(_ReachTask):
    """Pusher-v5."""

    def observe(self, sim: Simulations) -> np.ndarray:
        bodies = [sim.xpos[name] for name in ("tips_arm", "object", "goal")]
        return np.concatenate([sim.qpos[:, :7], sim.qvel[:, :7], *bodies], axis=1)

    def reward(self, sim: Simulations, action: np.ndarray) -> Outcome:
        near = self._distance_reward(sim.xpos["object"] - sim.xpos["tips_arm"], "reward_near_weight")
        dist = self._distance_reward(sim.xpos["object"] - sim.xpos["goal"], "reward_dist_weight")
        control = self._control_reward(action)
        return dist + control + near, {"reward_dist": dist, "reward_ctrl": control, "reward_near": near}


_CLASSES: tuple[type[GymnasiumTask], ...] = (
    Ant, HalfCheetah, Hopper, Humanoid, HumanoidStandup, InvertedDoublePendulum, InvertedPendulum, Pusher, Reacher,
    Swimmer, Walker2d,
)  # fmt: skip
TASKS = {f"{task.__name__}Env": task for task in _CLASSES}
"""The tasks, by the name of the class of Gymnasium's environment."""

_PACKAGE = "gymnasium.envs.mujoco"
_SOURCES = {
    "ant_v5": ("03be9596a1fbc17157b6969e3ee48291600ff689c27fa02e178de3976eedddf9",),
    "half_cheetah_v5": ("c6520e364985f4715d42016284f694f7ba601acedbfb0221a43888ac49affcf3",),
    "hopper_v5": ("daa2951970f5f55853c7b0ec60b47e2c1f4e4338548f2df1b2465c6ecfdc4e9e",),
    "humanoid_v5": ("53792f8fd48efbeeee652ff6b853a608fe1b6770125805bf1e2e3bcf69fbc431",),
    "humanoidstandup_v5": ("ff0524040964ebd69b0191d7fb045fffe655b7306a57251dd7023220e440875c",),
    "inverted_double_pendulum_v5": ("a4ce6cadb4daf557b0181e0dc3b19ea0e37cfafc35fb8bf493eb2066f60f4b6b",),
    "inverted_pendulum_v5": ("860e8436475689a42ae10003638e5320668d32d39a9bedc502957b8e7b3aac48",),
    "pusher_v5": ("e51893fd93ab0e7275e6eabf7cd286fdf26ca4ca6d243e851ee9cc147e783cc6",),
    "reacher_v5": ("be2f75d48b6b19e61757ec98c42a9173c563751c5f30c6ed4d17325a73d368ca",),
    "swimmer_v5": ("5bdb513ea955bc2e9b4d2fdc881f00dbc1b97f5c7c557b6675cdf71299d9736e",),
    "walker2d_v5": ("10219f0e6b5208d6f5b6d7fd1dce2606580d847cf94abc3e6c53588ba4c90934",),
    "mujoco_env": ("77e8205c380d8e0d7dc68f6ad136cf192f07c061cd3f00eeebfac8414c71bc49",),
}
"""SHA-256 of the source files of Gymnasium with which the results were compared, by module."""


def reason_for_gymnasium(config: TrainConfig, env: gymnasium.Env) -> str | None:
    """Return why `MujocoVectorEnv` cannot step an environment, or None if it can.

    Args:
        config: the configuration of the run.
        env: the environment with its wrappers.
    """
    kind = type(env.unwrapped)
    package, _, source = kind.__module__.rpartition(".")
    is_own = isinstance(env.unwrapped, TaskEnv)
    if not is_own and (package != _PACKAGE or source not in _SOURCES or kind.__name__ not in TASKS):
        return "it is not a MuJoCo task of Gymnasium, version 5"
    other = [type(wrapper).__name__ for wrapper in wrappers_of(env) if type(wrapper) not in (TimeLimit, OrderEnforcing)]
    if other:
        return f"it has the wrapper {other[0]}"
    if is_own:
        factory = imported_factory(config.env_id)
        differ = factory is not None and "env_index" in parameters_of(factory)
        return "the parameter env_index makes a task for each environment" if differ else None
    if env.unwrapped.spec is None:
        return "it was not created by gymnasium.make"
    if config.env_schedule is not None:
        return "--env-schedule gives options to reset"
    named = ["/".join(key.path) for key in config.reported_info if key.named]
    other = [name for name in named if name not in reported(env)]
    if other:
        return f"--info-keys names {other[0]}"
    for module in (source, "mujoco_env"):
        path = Path(inspect.getfile(kind)).with_name(module + ".py")
        if hashlib.sha256(path.read_bytes()).hexdigest() not in _SOURCES[module]:
            return f"the source of {path.name} differs from the versions of Gymnasium that were compared"
    return None


def reported(env: gymnasium.Env) -> list[str]:
    """Return the names of the numbers that the task of an environment gives for `info`."""
    sim = simulations_of([env])
    return [*sim.task.reward(sim, np.zeros((1, sim.model.nu), np.float32))[1]]


def simulations_of(envs: Sequence[gymnasium.Env]) -> Simulations:
    """Return the simulations of environments that `reason_for_gymnasium` accepts, as those of one task."""
    bases: list[Any] = [env.unwrapped for env in envs]
    models, data = [base.model for base in bases], [base.data for base in bases]
    if isinstance(bases[0], TaskEnv):
        own = bases[0].sim
        return Simulations(own.task, own.model, models, data, own.names)
    signature = inspect.signature(type(bases[0])).bind(**bases[0].spec.kwargs)
    signature.apply_defaults()
    # A factory may have changed what the environment has stored of its arguments.
    given = signature.arguments.items()
    stored = {name: getattr(bases[0], f"_{name}", getattr(bases[0], name, value)) for name, value in given}
    return Simulations(TASKS[type(bases[0]).__name__](models[0], stored), models[0], models, data)


def time_limit(env: gymnasium.Env) -> int:
    """Return the number of steps after which an episode is truncated, or 0 if there is no limit."""
    limits = [vars(wrapper)["_max_episode_steps"] for wrapper in wrappers_of(env) if isinstance(wrapper, TimeLimit)]
    return min(limits, default=0)
