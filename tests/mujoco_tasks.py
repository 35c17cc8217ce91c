"""MuJoCo tasks of the user, and three of Gymnasium's tasks written as such ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np

import shmppo

ASSETS = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets"
ARM = """
<mujoco>
  <option timestep="0.01"/>
  <size nuserdata="2"/>
  <worldbody>
    <body name="upper" pos="0 0 1">
      <joint name="hip" axis="0 1 0" damping="0.1"/>
      <geom name="bone" type="capsule" fromto="0 0 0 0 0 -0.4" size="0.03"/>
      <body name="lower" pos="0 0 -0.4">
        <joint name="knee" axis="0 1 0" damping="0.1"/>
        <geom type="capsule" fromto="0 0 0 0 0 -0.4" size="0.03"/>
        <site name="tip" pos="0 0 -0.4"/>
      </body>
    </body>
  </worldbody>
  <actuator><motor joint="hip" ctrlrange="-1 1"/><motor joint="knee" ctrlrange="-1 1"/></actuator>
  <sensor><framelinvel name="speed" objtype="site" objname="tip"/></sensor>
</mujoco>
"""


class Arm(shmppo.MujocoTask):
    """Two joints whose tip is to be at the height that userdata holds. Everything that a task can do is used."""

    model: Any = mujoco.MjSpec.from_string(ARM)
    frame_skip = 3
    max_episode_steps = 25
    before = ("site_xpos", "sensordata")

    def observe(self, sim: Any) -> Any:
        seen = np.concatenate([sim.qpos[:], sim.qvel[:], sim.before.sensordata["speed"], sim.userdata[:]], axis=1)
        return {"seen": seen, "hidden": np.stack([sim.body_mass["upper"], sim.dof_damping["knee"]], axis=1)}

    def reward(self, sim: Any, action: Any) -> tuple[Any, dict[str, Any]]:
        tip = sim.site_xpos["tip"]
        moved = tip - sim.before.site_xpos["tip"]
        distance = np.abs(tip[:, 2] - sim.userdata[:, 0])
        for data in sim.data:
            data.userdata[1] += 0.01
        return moved[:, 0] - distance, {"distance": distance, "success": distance < 0.1}

    def terminated(self, sim: Any) -> Any:
        return np.abs(sim.qpos["hip"]) > 1.2

    def control(self, sim: Any, action: Any) -> Any:
        return action - 0.1 * sim.qvel[:] * sim.dof_damping["hip"][:, None]

    def reset(self, sim: Any, index: int, generator: Any, options: Any) -> None:
        data = sim.data[index]
        data.qpos[:] = 0.3 * sim.body_mass["upper"] * generator.uniform(-1, 1, 2)
        data.userdata[0] = options.get("height", 1.0) + 0.1 * generator.standard_normal()


class RandomArm(Arm):
    def randomize(self, model: Any, generator: Any, options: Any) -> None:
        model.body("upper").mass *= generator.uniform(0.5, 2.0)
        model.dof_damping[:] *= generator.uniform(0.5, 2.0, 2)
        model.geom("bone").size[0] *= generator.uniform(0.9, 1.1)
        model.opt.gravity[2] += generator.uniform(-1.0, 1.0)


class UnchangedArm(Arm):
    def randomize(self, model: Any, generator: Any, options: Any) -> None:
        pass


class Pushed(Arm):
    """Its `reset` is the only function that reads a force, after it has changed the force."""

    def reset(self, sim: Any, index: int, generator: Any, options: Any) -> None:
        sim.data[index].qfrc_applied[:] = 0.25
        sim.data[index].qpos[:] = sim.qfrc_applied["hip"]


def arm_with_limit(steps: int, wrapped: bool = False, render_mode: str | None = None) -> Any:
    task = Arm()
    task.max_episode_steps = steps
    return gymnasium.wrappers.TransformReward(task.as_gymnasium(render_mode), float) if wrapped else task


class Vanishing(Arm):
    """Some of its episodes begin with a speed at which MuJoCo gives up."""

    def reset(self, sim: Any, index: int, generator: Any, options: Any) -> None:
        sim.data[index].qvel[0] = 1e11 if generator.uniform() < 0.2 else 0.0


class Weights(Arm):
    """Its observations come from a matrix product, which rounds differently for one row."""

    def observe(self, sim: Any) -> Any:
        return super().observe(sim)["seen"] @ np.random.default_rng(0).standard_normal((9, 7))


class Popping(Arm):
    """Its `randomize` changes the options, and a reset reads a field that nothing else does."""

    def randomize(self, model: Any, generator: Any, options: Any) -> None:
        model.body("upper").mass *= options.pop("mass", 1.0) * generator.uniform(0.5, 2.0)

    def reset(self, sim: Any, index: int, generator: Any, options: Any) -> None:
        sim.data[index].qpos[:] = generator.uniform(-1, 1, 2) + sim.qfrc_applied["hip"]


class Indexed(Arm):
    """Its reward depends on the environment, although the simulations share one task."""

    def __init__(self, env_index: int = -1) -> None:
        self.offset = max(env_index, 0)

    def reward(self, sim: Any, action: Any) -> tuple[Any, dict[str, Any]]:
        return sim.qpos["hip"] + self.offset, {}


class Mixing(Arm):
    """Its reward for one simulation depends on another one."""

    def reward(self, sim: Any, action: Any) -> tuple[Any, dict[str, Any]]:
        return sim.qpos["hip"] - sim.qpos[0, 0], {}


class Stateful(Arm):
    """Its target is an attribute, although the simulations share one task."""

    target = 0.0

    def reset(self, sim: Any, index: int, generator: Any, options: Any) -> None:
        super().reset(sim, index, generator, options)
        self.target = generator.uniform()

    def reward(self, sim: Any, action: Any) -> tuple[Any, dict[str, Any]]:
        return sim.qpos["hip"] - self.target, {}


class Cheetah(shmppo.MujocoTask):
    """HalfCheetah-v5."""

    model = ASSETS / "half_cheetah.xml"
    frame_skip = 5
    max_episode_steps = 1000
    before: tuple[str, ...] = ("qpos",)

    def observe(self, sim: Any) -> Any:
        return np.concatenate([sim.qpos[:, 1:], sim.qvel[:]], axis=1)

    def reward(self, sim: Any, action: Any) -> tuple[Any, dict[str, Any]]:
        forward = (sim.qpos[:, 0] - sim.before.qpos[:, 0]) / sim.dt
        return forward - 0.1 * np.square(action).sum(axis=1), {"x_velocity": forward}

    def reset(self, sim: Any, index: int, generator: Any, options: Any) -> None:
        data = sim.data[index]
        data.qpos[:] += generator.uniform(-0.1, 0.1, sim.model.nq)
        data.qvel[:] += 0.1 * generator.standard_normal(sim.model.nv)


class Ant(Cheetah):
    """Ant-v5."""

    model = ASSETS / "ant.xml"
    before = ("xpos",)

    def observe(self, sim: Any) -> Any:
        return np.concatenate([sim.qpos[:, 2:], sim.qvel[:], self.forces(sim)[:, 6:]], axis=1)

    def reward(self, sim: Any, action: Any) -> tuple[Any, dict[str, Any]]:
        velocity = (sim.xpos["torso"][:, 0] - sim.before.xpos["torso"][:, 0]) / sim.dt
        costs = 0.5 * np.square(action).sum(axis=1) + 5e-4 * np.square(self.forces(sim)).sum(axis=1)
        return velocity + ~self.terminated(sim) * 1.0 - costs, {"x_velocity": velocity}

    def terminated(self, sim: Any) -> Any:
        return (sim.qpos[:, 2] < 0.2) | (sim.qpos[:, 2] > 1.0)

    def forces(self, sim: Any) -> Any:
        return np.clip(sim.cfrc_ext[:].reshape(len(sim), -1), -1.0, 1.0)


class Humanoid(Cheetah):
    """Humanoid-v5."""

    model = ASSETS / "humanoid.xml"
    before = ("xipos",)

    def observe(self, sim: Any) -> Any:
        bodies = [sim.cinert[:, 1:], sim.cvel[:, 1:], sim.qfrc_actuator[:, 6:], sim.cfrc_ext[:, 1:]]
        return np.concatenate([part.reshape(len(sim), -1) for part in (sim.qpos[:, 2:], sim.qvel[:], *bodies)], axis=1)

    def reward(self, sim: Any, action: Any) -> tuple[Any, dict[str, Any]]:
        velocity = (self.center(sim) - self.center(sim.before)) / sim.dt
        contact = np.clip(5e-7 * np.square(sim.cfrc_ext[:].reshape(len(sim), -1)).sum(axis=1), -np.inf, 10.0)
        reward = 1.25 * velocity + ~self.terminated(sim) * 5.0
        return reward - (0.1 * np.square(sim.ctrl[:]).sum(axis=1) + contact), {"x_velocity": velocity}

    def terminated(self, sim: Any) -> Any:
        return (sim.qpos[:, 2] <= 1.0) | (sim.qpos[:, 2] >= 2.0)

    def center(self, sim: Any) -> Any:
        masses = sim.model.body_mass
        return np.einsum("b,nb->n", masses, sim.xipos[:, :, 0]) / masses.sum()

    def reset(self, sim: Any, index: int, generator: Any, options: Any) -> None:
        data = sim.data[index]
        data.qpos[:] += generator.uniform(-0.01, 0.01, sim.model.nq)
        data.qvel[:] += generator.uniform(-0.01, 0.01, sim.model.nv)
