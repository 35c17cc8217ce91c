"""A task with a MuJoCo model of the user's own, and its form as an environment of Gymnasium."""

from __future__ import annotations

import copy
import hashlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
from gymnasium import spaces

from shmppo.envs.wrappers import batch_actions
from shmppo.errors import ConfigError
from shmppo.extensions.mujoco.simulations import Fields, Simulations, checked
from shmppo.utils.user_code import FAILURES, reraise_ctrl_c

SHARED: dict[Path, Any] | None = None
"""Models that simulations which are made now share, by file. None: each has its own."""


class MujocoTask(ABC):
    """A task of n simulations of a MuJoCo model, for `--env module:Class`.

    The functions get `sim` (see `Simulations`) and compute arrays with one row per simulation. A row may depend only on
    its own simulation. A task keeps no state of its own between steps: MuJoCo's `userdata` does.

    Attributes:
        model: path of an MJCF file, relative to the file of the class, an MjSpec, or an MjModel.
        frame_skip: steps of the simulation per action.
        max_episode_steps: steps after which an episode is truncated. 0: no limit.
        before: fields of which `sim.before` has the values before the step.
        observation_space: of one simulation. None: unbounded Boxes with the shape of what `observe` returns.
        action_space: of one simulation. None: a Box of the actuators' ctrlrange.
        camera: name of the camera of videos. None: a free one.
    """

    model: Any
    frame_skip: int = 1
    max_episode_steps: int = 0
    before: tuple[str, ...] = ()
    observation_space: gymnasium.Space[Any] | None = None
    action_space: gymnasium.Space[Any] | None = None
    camera: str | None = None

    @abstractmethod
    def observe(self, sim: Simulations) -> Any:
        """Return the observations: an array [n, …], or a dict of arrays by the name of the part."""

    @abstractmethod
    def reward(self, sim: Simulations, action: Any) -> tuple[np.ndarray, Mapping[str, np.ndarray]]:
        """Return the rewards of the last step [n], and the numbers for `info`, [n] each. action: [n, …]."""

    def terminated(self, sim: Simulations) -> np.ndarray:
        """Return whether each episode terminates, [n]. By default, none does."""
        return np.zeros(len(sim), bool)

    def control(self, sim: Fields, action: Any) -> np.ndarray:
        """Return the controls of the actuators [n, nu] for a batch of actions. By default, they are the actions."""
        return action

    def reset(  # noqa: B027
        self, sim: Simulations, index: int, generator: np.random.Generator, options: Mapping[str, Any]
    ) -> None:
        """Change the first state of an episode in `sim.data[index]`, which MuJoCo has reset. `mj_forward` follows.

        options: those of --env-schedule, empty without them.
        """

    def randomize(  # noqa: B027
        self, model: mujoco.MjModel, generator: np.random.Generator, options: Mapping[str, Any]
    ) -> None:
        """Change the model of one episode, before `reset`, which gets the same generator. `mj_setConst` follows.

        The model is the one without changes. If a class has this function, each simulation has its own model.
        """

    def as_gymnasium(self, render_mode: str | None = None) -> gymnasium.Env:
        """Return the task as an environment of Gymnasium, which gives the same bits as n simulations together.

        Raises:
            ConfigError: if the model cannot be compiled, or if the task does not fit it.
        """
        env = TaskEnv(self, render_mode)
        return gymnasium.wrappers.TimeLimit(env, self.max_episode_steps) if self.max_episode_steps else env

    @property
    def is_randomized(self) -> bool:
        """Whether the class has `randomize`."""
        return type(self).randomize is not MujocoTask.randomize


def compiled_model(task: MujocoTask) -> mujoco.MjModel:
    """Return the model of a task. Raises ConfigError if it has none, or if it does not compile."""

    name = type(task).__name__
    model = getattr(task, "model", None)
    if isinstance(model, mujoco.MjModel):
        return model
    if isinstance(model, mujoco.MjSpec):
        return _compile(model.compile, name)
    if not isinstance(model, (str, Path)):
        raise ConfigError(
            f"{name}.model is {model!r:.80}; set it to the path of an MJCF file, an MjSpec, or an MjModel"
        )
    owner = next((kind for kind in type(task).__mro__ if "model" in vars(kind)), type(task))
    path = Path(getattr(sys.modules[owner.__module__], "__file__", None) or ".").parent / Path(model).expanduser()
    if not path.is_file():
        raise ConfigError(
            f"{name}.model: there is no file {path}; name an MJCF file, relative to the file of the class"
        )
    if SHARED is not None and path in SHARED:
        return SHARED[path]
    made = _compile(lambda: mujoco.MjModel.from_xml_path(str(path)), f"{name}.model {path}")
    if SHARED is not None:
        SHARED[path] = made
    return made


def _compile(compile_: Any, where: str) -> mujoco.MjModel:
    try:
        return compile_()
    except FAILURES as error:
        reraise_ctrl_c(error)
        raise ConfigError(f"{where} does not compile: {' '.join(str(error).split())}") from error


IMAGE_SIZE = 480
_RENDER_MODES = ["human", "rgb_array", "depth_array", "rgbd_tuple"]
_UNCHANGED = ("_", "mesh_", "tex_", "skin_", "bvh_", "oct_", "name")
"""Fields of MjModel that begin like this are not restored."""
_INTEGERS = ("contype", "conaffinity", "condim", "priority", "limited", "group", "active", "active0", "matid")
"""Endings of the integer fields of MjModel that do not describe its structure."""


class RandomizedModel:
    """A copy of a model that a task changes for each episode.

    Attributes:
        model: the copy.
    """

    def __init__(self, nominal: mujoco.MjModel) -> None:
        self.model = copy.copy(nominal)
        names = [name for name in dir(nominal) if not name.startswith(_UNCHANGED)]
        arrays = {name: value for name in names if isinstance(value := getattr(nominal, name), np.ndarray)}
        self._arrays = {name: (getattr(self.model, name), value) for name, value in arrays.items() if value.size}
        self._options = {name: getattr(nominal.opt, name) for name in dir(nominal.opt) if not name.startswith("_")}
        self._structure = [
            (name, own, nominal.tobytes())
            for name, (own, nominal) in self._arrays.items()
            if own.dtype.kind in "iu" and not name.endswith(_INTEGERS)
        ]

    def restore(self) -> None:
        """Undo all changes, except those of meshes, skins, and textures."""
        for own, nominal in self._arrays.values():
            own[...] = nominal
        for name, value in self._options.items():
            setattr(self.model.opt, name, value)

    def check(self) -> None:
        """Raise ValueError if an integer has changed that describes the structure of the model."""
        for name, own, nominal in self._structure:
            if own.tobytes() != nominal:
                raise ValueError(f"randomize has changed {name}, which is part of the model's structure")


class TaskEnv(gymnasium.Env):
    """One simulation of a task.

    Attributes:
        task: the task.
        nominal: the model without changes of `randomize`.
        model, data: the simulation.
        content: what identifies the model, for the fingerprint of a run.
    """

    def __init__(self, task: MujocoTask, render_mode: str | None = None) -> None:
        """Create the simulation.

        Raises:
            ConfigError: if the model cannot be compiled, or if an actuator needs an action space of the task.
        """
        self.task, self.render_mode = task, render_mode
        self.nominal = compiled_model(task)
        self._copy = RandomizedModel(self.nominal) if task.is_randomized else None
        self.model = self._copy.model if self._copy is not None else self.nominal
        self.data = mujoco.MjData(self.model)
        mujoco.mj_forward(self.model, self.data)  # so that `observe` gets numbers
        self._sim = Simulations(task, self.nominal, [self.model], [self.data])
        self.metadata = {"render_modes": _RENDER_MODES, "render_fps": max(1, round(1 / self._sim.dt))}
        self._renderer: Any = None
        self.action_space = task.action_space or _control_space(task, self.nominal)
        self.observation_space = task.observation_space or _space_of(task.observe(self._sim))
        saved = np.zeros(mujoco.mj_sizeModel(self.nominal), np.uint8)
        mujoco.mj_saveModel(self.nominal, None, saved)
        self.content = {"model": hashlib.sha256(saved.data).hexdigest()}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; see `gymnasium.Env.reset`."""
        super().reset(seed=seed)
        if self._copy is not None:
            self._copy.restore()
            self.task.randomize(self.model, self.np_random, options or {})
            self._copy.check()
            mujoco.mj_setConst(self.model, self.data)
        mujoco.mj_resetData(self.model, self.data)
        self.task.reset(self._sim, 0, self.np_random, options or {})
        mujoco.mj_forward(self.model, self.data)
        self._sim.load(0)
        self._render_for_human()
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the simulation; see `gymnasium.Env.step`.

        Raises:
            RuntimeError: if the simulation is unstable.
        """
        actions = batch_actions(self.action_space, [action])
        for error in (self._sim.step(actions) or self._sim.unstable()).values():
            raise error
        rewards, terminated, info = self._sim.outcome(actions)
        self._render_for_human()
        numbers = {name: values[0] for name, values in info.items()}
        return self._observation(), float(rewards[0]), bool(terminated[0]), False, numbers

    def _observation(self) -> Any:
        return rows(self.task.observe(self._sim), self.observation_space, 1, 0)

    def get_state(self) -> np.ndarray:
        """Return the state of the simulation, for a snapshot."""
        return self._sim.get_state(0)

    def set_state(self, state: np.ndarray) -> None:
        """Restore what `get_state` has returned. The episode must have been reset before."""
        self._sim.set_state(0, state)

    def render(self) -> Any:
        """Return a picture of the simulation; see `gymnasium.Env.render`."""
        from gymnasium.envs.mujoco.mujoco_rendering import MujocoRenderer

        if self._renderer is None:
            width, height = (
                min(IMAGE_SIZE, size) for size in (self.model.vis.global_.offwidth, self.model.vis.global_.offheight)
            )
            self._renderer = MujocoRenderer(
                self.model, self.data, width=width, height=height, camera_name=self.task.camera
            )
        return self._renderer.render(self.render_mode)

    def _render_for_human(self) -> None:
        if self.render_mode == "human":
            self.render()

    def close(self) -> None:
        """Close the window."""
        if self._renderer is not None:
            self._renderer.close()


def _control_space(task: MujocoTask, model: mujoco.MjModel) -> spaces.Box:
    """Return the space of the controls. Raises ConfigError if one has no limits."""
    for i in np.flatnonzero(model.actuator_ctrllimited == 0).tolist():
        raise ConfigError(
            f"{type(task).__name__}: actuator {model.actuator(i).name or i} has no ctrlrange; add it to the model, or "
            "set action_space"
        )
    low, high = model.actuator_ctrlrange.astype(np.float32).T
    return spaces.Box(low, high, dtype=np.float32)


def _space_of(observation: Any) -> gymnasium.Space[Any]:
    """Return the space of a batch of observations: unbounded Boxes."""
    if isinstance(observation, dict):
        return spaces.Dict({name: _space_of(part) for name, part in observation.items()})
    array = np.asarray(observation)
    dtype = array.dtype if array.dtype.kind == "f" else np.dtype(np.float64)
    return spaces.Box(-np.inf, np.inf, array.shape[1:], dtype.type)


def rows(observation: Any, space: gymnasium.Space[Any], count: int, i: Any) -> Any:
    """Return row i of a batch of `count` observations, in the types of their space.

    Raises:
        ValueError: if a part is missing or has another shape.
    """
    if isinstance(space, spaces.Dict):
        if not isinstance(observation, dict) or observation.keys() != space.keys():
            raise ValueError(f"observe must return a dict with {', '.join(space.keys())}")
        return {name: rows(observation[name], part, count, i) for name, part in space.items()}
    return checked("observe", observation, (count, *(space.shape or ())))[i].astype(space.dtype)
