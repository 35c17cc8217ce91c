"""The MuJoCo tasks of Gymnasium (version 5), computed for many environments at once.

Each class computes the observations, rewards, and terminations of one of Gymnasium's tasks from the simulations of n
environments. The results are those of `gymnasium.envs.mujoco`, bit for bit: every expression has the same order and the
same types as in Gymnasium's source. Where NumPy may round an array operation differently from the operation on one
environment, there is one call per environment.

The names of the arguments and their meaning are those of Gymnasium's environments. `reason_for_gymnasium` says which
environments are such tasks. This module does not import MuJoCo, which other environments do not need.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from shmppo.config.train_config import TrainConfig
from shmppo.envs.snapshots import wrappers_of

if TYPE_CHECKING:
    import mujoco

Batch = Mapping[str, np.ndarray]
"""Fields of the simulations after a step, by the name in `mujoco.MjData`: float64 [n, size of the field]."""


class Outcome(NamedTuple):
    """The outcome of one step of n environments."""

    reward: np.ndarray
    """[n], float64."""
    terminated: np.ndarray
    """[n], bool."""
    info: Mapping[str, np.ndarray] = MappingProxyType({})
    """The numbers of `MujocoTask.reported`, [n] each."""


class MujocoTask(ABC):
    """One of Gymnasium's MuJoCo tasks.

    Attributes:
        fields: names in `mujoco.MjData` of the fields that the task reads after each step.
        reported: names of the numbers in Gymnasium's `info` that `outcome` returns as well.
    """

    fields: Sequence[str] = ("qpos", "qvel")
    reported: tuple[str, ...] = ()

    def __init__(self, model: mujoco.MjModel, arguments: Mapping[str, Any]) -> None:
        """Create the task.

        Args:
            model: of the simulation.
            arguments: the arguments of Gymnasium's environment, with its defaults.
        """
        self.model = model
        self.frame_skip = arguments["frame_skip"]
        self.dt = model.opt.timestep * self.frame_skip
        self.arguments = arguments

    def views(self, data: mujoco.MjData) -> dict[str, np.ndarray]:
        """Return the fields of one simulation as vectors that share its memory, by name."""
        return {name: getattr(data, name).reshape(-1) for name in self.fields}

    def position(self, batch: Batch) -> np.ndarray:
        """Return the position along the x axis whose change is rewarded, [n]."""
        return batch["qpos"][:, 0]

    @abstractmethod
    def observe(self, batch: Batch) -> Sequence[np.ndarray]:
        """Return the parts of the observations, float64 [n, …] each. They are concatenated."""

    @abstractmethod
    def outcome(self, batch: Batch, before: np.ndarray, after: np.ndarray, actions: np.ndarray) -> Outcome:
        """Compute rewards and terminations.

        Args:
            batch: the fields after the step.
            before: [n], `position` before the step.
            after: [n], `position` after the step.
            actions: float32 [n, A].
        """


def _squares(values: np.ndarray) -> np.ndarray:
    """Sum of squares over the last axis, in the type of the values."""
    result: np.ndarray = np.add.reduce(np.square(values), -1)
    return result


def _per_environment(function: Any, values: np.ndarray) -> np.ndarray:
    """Apply a NumPy function to one environment after the other, [n, …]."""
    return np.array([function(row) for row in values])


class _Runner(MujocoTask):
    """A task whose reward is the forward velocity minus the cost of the control."""

    skipped = 1
    """Number of leading positions that the observation leaves out."""

    reported: tuple[str, ...] = ("x_velocity", "reward_forward", "reward_ctrl")

    def _outcome(
        self, moved: np.ndarray, terminated: np.ndarray, costs: Sequence[np.ndarray], survival: np.ndarray | None = None
    ) -> Outcome:
        """Return the outcome with these parts of the reward, [n] each. costs: of the control, and of contacts."""
        velocity = moved / self.dt
        rewards = forward = self.arguments["forward_reward_weight"] * velocity
        info = {"x_velocity": velocity, "reward_forward": forward}
        info |= {name: -cost for name, cost in zip(("reward_ctrl", "reward_contact"), costs, strict=False)}
        if survival is not None:
            info["reward_survive"] = survival
            rewards = forward + survival
        return Outcome(rewards - functools.reduce(np.add, costs), terminated, info)

    def _control_cost(self, actions: np.ndarray) -> np.ndarray:
        return self.arguments["ctrl_cost_weight"] * _squares(actions)

    def _visible_positions(self, batch: Batch) -> np.ndarray:
        excluded = self.arguments["exclude_current_positions_from_observation"]
        return batch["qpos"][:, self.skipped if excluded else 0 :]

    def _survival(self, healthy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the reward for staying healthy, and whether the episodes terminate, [n] each."""
        reward = healthy * self.arguments["healthy_reward"]
        terminated = ~healthy if self.arguments["terminate_when_unhealthy"] else np.zeros(len(healthy), bool)
        return reward, terminated


class HalfCheetah(_Runner):
    """HalfCheetah-v5."""

    def observe(self, batch: Batch) -> Sequence[np.ndarray]:
        return self._visible_positions(batch), batch["qvel"]

    def outcome(self, batch: Batch, before: np.ndarray, after: np.ndarray, actions: np.ndarray) -> Outcome:
        return self._outcome(after - before, np.zeros(len(after), bool), [self._control_cost(actions)])


class Swimmer(HalfCheetah):
    """Swimmer-v5."""

    skipped = 2


class Walker2d(_Runner):
    """Walker2d-v5."""

    reported = (*_Runner.reported, "reward_survive")

    def observe(self, batch: Batch) -> Sequence[np.ndarray]:
        return self._visible_positions(batch), np.clip(batch["qvel"], -10, 10)

    def outcome(self, batch: Batch, before: np.ndarray, after: np.ndarray, actions: np.ndarray) -> Outcome:
        survival, terminated = self._survival(self._is_healthy(batch))
        return self._outcome(after - before, terminated, [self._control_cost(actions)], survival)

    def _is_healthy(self, batch: Batch) -> np.ndarray:
        z, angle = batch["qpos"][:, 1], batch["qpos"][:, 2]
        min_z, max_z = self.arguments["healthy_z_range"]
        min_angle, max_angle = self.arguments["healthy_angle_range"]
        return (min_z < z) & (z < max_z) & (min_angle < angle) & (angle < max_angle)


class Hopper(Walker2d):
    """Hopper-v5."""

    def _is_healthy(self, batch: Batch) -> np.ndarray:
        low, high = self.arguments["healthy_state_range"]
        healthy = super()._is_healthy(batch)
        for state in (batch["qpos"][:, 2:], batch["qvel"]):
            healthy = healthy & np.all((low < state) & (state < high), axis=1)
        return healthy


class Ant(_Runner):
    """Ant-v5."""

    skipped = 2

    fields = ("qpos", "qvel", "cfrc_ext")
    reported = (*_Runner.reported, "reward_survive", "reward_contact")

    def views(self, data: mujoco.MjData) -> dict[str, np.ndarray]:
        return super().views(data) | {"main_body": data.body(self.arguments["main_body"]).xpos}

    def position(self, batch: Batch) -> np.ndarray:
        return batch["main_body"][:, 0]

    def observe(self, batch: Batch) -> Sequence[np.ndarray]:
        parts = [self._visible_positions(batch), batch["qvel"]]
        if self.arguments["include_cfrc_ext_in_observation"]:
            parts.append(self._contact_forces(batch)[:, 6:])  # without the world body
        return parts

    def outcome(self, batch: Batch, before: np.ndarray, after: np.ndarray, actions: np.ndarray) -> Outcome:
        min_z, max_z = self.arguments["healthy_z_range"]
        z = batch["qpos"][:, 2]
        finite = np.isfinite(batch["qpos"]).all(axis=1) & np.isfinite(batch["qvel"]).all(axis=1)
        survival, terminated = self._survival(finite & (min_z <= z) & (z <= max_z))
        contact_cost = self.arguments["contact_cost_weight"] * _squares(self._contact_forces(batch))
        return self._outcome(after - before, terminated, [self._control_cost(actions), contact_cost], survival)

    def _contact_forces(self, batch: Batch) -> np.ndarray:
        low, high = self.arguments["contact_force_range"]
        return np.clip(batch["cfrc_ext"], low, high)


class _HumanoidBase(_Runner):
    """What the two humanoid tasks have in common: the observation, and costs from the simulation's own numbers."""

    skipped = 2

    fields: tuple[str, ...] = ("qpos", "qvel", "cinert", "cvel", "qfrc_actuator", "cfrc_ext", "ctrl")

    _OPTIONAL = (("cinert", 10), ("cvel", 6), ("qfrc_actuator", 6), ("cfrc_ext", 6))
    """Optional parts of the observation: the field, and how many leading numbers are left out."""

    def observe(self, batch: Batch) -> Sequence[np.ndarray]:
        optional = [
            batch[name][:, skipped:]
            for name, skipped in self._OPTIONAL
            if self.arguments[f"include_{name}_in_observation"] is True
        ]
        return [self._visible_positions(batch), batch["qvel"], *optional]

    def _clipped_cost(self, batch: Batch, name: str) -> np.ndarray:
        """Cost of the contact forces, clipped to its range. name: "contact" or "impact"."""
        low, high = self.arguments[f"{name}_cost_range"]
        return np.clip(self.arguments[f"{name}_cost_weight"] * _squares(batch["cfrc_ext"]), low, high)


class Humanoid(_HumanoidBase):
    """Humanoid-v5."""

    fields = (*_HumanoidBase.fields, "xipos")
    reported = (*_Runner.reported, "reward_survive", "reward_contact")

    def position(self, batch: Batch) -> np.ndarray:
        masses = self.model.body_mass
        bodies = batch["xipos"].reshape(-1, len(masses), 3)
        return np.array([(np.einsum("b,bj->j", masses, xipos) / masses.sum())[0] for xipos in bodies])

    def outcome(self, batch: Batch, before: np.ndarray, after: np.ndarray, actions: np.ndarray) -> Outcome:
        min_z, max_z = self.arguments["healthy_z_range"]
        z = batch["qpos"][:, 2]
        survival, terminated = self._survival((min_z < z) & (z < max_z))
        costs = [self._control_cost(batch["ctrl"]), self._clipped_cost(batch, "contact")]
        return self._outcome(after - before, terminated, costs, survival)


class HumanoidStandup(_HumanoidBase):
    """HumanoidStandup-v5."""

    reported = ()

    def outcome(self, batch: Batch, before: np.ndarray, after: np.ndarray, actions: np.ndarray) -> Outcome:
        up = (batch["qpos"][:, 2] - 0) / self.model.opt.timestep
        reward = up - self._control_cost(batch["ctrl"]) - self._clipped_cost(batch, "impact") + 1
        return Outcome(reward, np.zeros(len(reward), bool))


class InvertedPendulum(MujocoTask):
    """InvertedPendulum-v5."""

    def observe(self, batch: Batch) -> Sequence[np.ndarray]:
        return batch["qpos"], batch["qvel"]

    def outcome(self, batch: Batch, before: np.ndarray, after: np.ndarray, actions: np.ndarray) -> Outcome:
        finite = np.isfinite(batch["qpos"]).all(axis=1) & np.isfinite(batch["qvel"]).all(axis=1)
        terminated = ~finite | (np.abs(batch["qpos"][:, 1]) > 0.2)
        return Outcome((~terminated).astype(np.float64), terminated)


class InvertedDoublePendulum(MujocoTask):
    """InvertedDoublePendulum-v5."""

    fields = ("qpos", "qvel", "qfrc_constraint", "site_xpos")

    def observe(self, batch: Batch) -> Sequence[np.ndarray]:
        angles = batch["qpos"][:, 1:]
        return (
            batch["qpos"][:, :1],
            _per_environment(np.sin, angles),
            _per_environment(np.cos, angles),
            np.clip(batch["qvel"], -10, 10),
            np.clip(batch["qfrc_constraint"], -10, 10)[:, :1],
        )

    def outcome(self, batch: Batch, before: np.ndarray, after: np.ndarray, actions: np.ndarray) -> Outcome:
        y = batch["site_xpos"][:, 2]
        terminated = y <= 1
        rewards = map(self._reward, batch["site_xpos"], batch["qvel"], terminated.tolist())
        return Outcome(np.array(list(rewards)), terminated)

    def _reward(self, tip: np.ndarray, velocity: np.ndarray, terminated: bool) -> np.float64:
        """Reward of one environment. The power of a NumPy scalar may round differently from that of an array."""
        x, y = tip[0], tip[2]
        v1, v2 = velocity[1:3]
        dist_penalty = 0.01 * x**2 + (y - 2) ** 2
        vel_penalty = 0.001 * v1**2 + 0.005 * v2**2
        alive_bonus = self.arguments["healthy_reward"] * int(not terminated)
        return alive_bonus - dist_penalty - vel_penalty


class _BodyTask(MujocoTask):
    """A task that reads the positions of some bodies."""

    fields = ("qpos", "qvel", "xpos")

    def _body(self, batch: Batch, name: str) -> np.ndarray:
        """Position of a body, [n, 3]."""
        begin = 3 * self.model.body(name).id
        return batch["xpos"][:, begin : begin + 3]

    def _control_reward(self, actions: np.ndarray) -> np.ndarray:
        return -_squares(actions) * self.arguments["reward_control_weight"]

    def _distance_reward(self, vectors: np.ndarray, weight: str) -> np.ndarray:
        """Negative length of the vectors [n, 3] times a weight."""
        return -_per_environment(np.linalg.norm, vectors) * self.arguments[weight]


class Reacher(_BodyTask):
    """Reacher-v5."""

    reported = ("reward_dist", "reward_ctrl")

    def observe(self, batch: Batch) -> Sequence[np.ndarray]:
        theta = batch["qpos"][:, :2]
        return (
            _per_environment(np.cos, theta),
            _per_environment(np.sin, theta),
            batch["qpos"][:, 2:],
            batch["qvel"][:, :2],
            self._to_target(batch)[:, :2],
        )

    def outcome(self, batch: Batch, before: np.ndarray, after: np.ndarray, actions: np.ndarray) -> Outcome:
        dist = self._distance_reward(self._to_target(batch), "reward_dist_weight")
        control = self._control_reward(actions)
        info = {"reward_dist": dist, "reward_ctrl": control}
        return Outcome(dist + control, np.zeros(len(dist), bool), info)

    def _to_target(self, batch: Batch) -> np.ndarray:
        return self._body(batch, "fingertip") - self._body(batch, "target")


class Pusher(_BodyTask):
    """Pusher-v5."""

    reported = ("reward_dist", "reward_ctrl", "reward_near")

    def observe(self, batch: Batch) -> Sequence[np.ndarray]:
        bodies = [self._body(batch, name) for name in ("tips_arm", "object", "goal")]
        return [batch["qpos"][:, :7], batch["qvel"][:, :7], *bodies]

    def outcome(self, batch: Batch, before: np.ndarray, after: np.ndarray, actions: np.ndarray) -> Outcome:
        object_ = self._body(batch, "object")
        near = self._distance_reward(object_ - self._body(batch, "tips_arm"), "reward_near_weight")
        dist = self._distance_reward(object_ - self._body(batch, "goal"), "reward_dist_weight")
        control = self._control_reward(actions)
        info = {"reward_dist": dist, "reward_ctrl": control, "reward_near": near}
        return Outcome(dist + control + near, np.zeros(len(dist), bool), info)


_CLASSES: tuple[type[MujocoTask], ...] = (
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
    if package != _PACKAGE or source not in _SOURCES or kind.__name__ not in TASKS:
        return "it is not a MuJoCo task of Gymnasium, version 5"
    other = [type(wrapper).__name__ for wrapper in wrappers_of(env) if type(wrapper) not in (TimeLimit, OrderEnforcing)]
    if other:
        return f"it has the wrapper {other[0]}"
    if env.unwrapped.spec is None:
        return "it was not created by gymnasium.make"
    if config.env_schedule is not None:
        return "--env-schedule gives options to reset"
    named = ["/".join(key.path) for key in config.reported_info if key.named]
    other = [name for name in named if name not in TASKS[kind.__name__].reported]
    if other:
        return f"--info-keys names {other[0]}"
    for module in (source, "mujoco_env"):
        path = Path(inspect.getfile(kind)).with_name(module + ".py")
        if hashlib.sha256(path.read_bytes()).hexdigest() not in _SOURCES[module]:
            return f"the source of {path.name} differs from the versions of Gymnasium that were compared"
    return None


def mujoco_task(env: gymnasium.Env) -> MujocoTask:
    """Create the task of an environment that `reason_for_gymnasium` accepts."""
    base: Any = env.unwrapped
    signature = inspect.signature(type(base)).bind(**base.spec.kwargs)
    signature.apply_defaults()
    # A factory may have changed what the environment has stored of its arguments.
    stored = {name: getattr(base, f"_{name}", getattr(base, name, v)) for name, v in signature.arguments.items()}
    return TASKS[type(base).__name__](base.model, stored)


def time_limit(env: gymnasium.Env) -> int:
    """Return the number of steps after which an episode is truncated, or 0 if there is no limit."""
    limits = [vars(wrapper)["_max_episode_steps"] for wrapper in wrappers_of(env) if isinstance(wrapper, TimeLimit)]
    return min(limits, default=0)
