"""A task with a MuJoCo model of the user's own, and its form as an environment of Gymnasium."""

from __future__ import annotations

import copy
import hashlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
from gymnasium import spaces

from shmppo.config.checks import require
from shmppo.envs.wrappers import batch_actions
from shmppo.errors import ConfigError
from shmppo.extensions.mujoco.simulations import Fields, Simulations, checked

COMPILED: ContextVar[dict[Any, Any]] = ContextVar("COMPILED")
"""The models that tasks share while they are made together, by file and MjSpec."""


class MujocoTask(ABC):
    """A task of n simulations of a MuJoCo model, for `--env module:Class`, or `module:function` if it returns a task.

    The functions get `sim` (see `Simulations`) and compute arrays with one row per simulation. A row may depend only on
    its own simulation. A task keeps no state of its own between steps: MuJoCo's `userdata` does.

    After a step, what MuJoCo derives from `qpos` and `qvel`, such as `xpos` and `sensordata`, is one `timestep` older
    than they are, as in Gymnasium's tasks.

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

        `sim` shows the state before the change.

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


def compiled_model(task: MujocoTask) -> mujoco.MjModel:
    """Return the model of a task. Raises ConfigError if it has none, or if it does not compile."""
    where = f"{type(task).__name__}.model"
    source: Any = getattr(task, "model", None)
    if isinstance(source, mujoco.MjModel):
        return copy.copy(source)  # a function of the task may change its model
    if isinstance(source, (str, Path)):
        owner = next(one for one in (task, *type(task).__mro__) if "model" in vars(one))
        folder = Path(getattr(sys.modules[owner.__module__], "__file__", None) or ".").parent
        source = folder / Path(source).expanduser()
    is_file = isinstance(source, Path)
    known = is_file or isinstance(source, mujoco.MjSpec)
    require(known, f"{where} is {source!r}; set it to the path of an MJCF file, an MjSpec, or an MjModel")
    models = COMPILED.get({})
    if source not in models:
        try:
            models[source] = mujoco.MjModel.from_xml_path(str(source)) if is_file else source.compile()
        except Exception as error:
            raise ConfigError(f"{where} {source} does not compile: {' '.join(str(error).split())}") from error
    return models[source]


IMAGE_SIZE = 480
_UNCHANGED = ("_", "mesh_", "tex_", "skin_", "bvh_", "oct_", "name")
"""Fields of MjModel that begin like this are not restored."""


def _values(struct: Any, excluded: tuple[str, ...] = ("_",)) -> dict[str, Any]:
    """Return the numbers and arrays of a structure of MuJoCo, by name. excluded: what other names begin with."""
    named = {name: getattr(struct, name) for name in dir(struct) if not name.startswith(excluded)}
    return {name: value for name, value in named.items() if isinstance(value, (int, float, np.ndarray))}


class TaskEnv(gymnasium.Env):
    """One simulation of a task.

    Attributes:
        task: the task.
        nominal: the model without changes of `randomize`.
        model, data: the simulation.
        sim: what the functions of the task get.
    """

    def __init__(self, task: MujocoTask, render_mode: str | None = None) -> None:
        """Create the simulation.

        Raises:
            ConfigError: if the model cannot be compiled or has no such camera, or if an actuator needs an action space
                of the task.
        """
        self.task, self.render_mode = task, render_mode
        self.nominal = compiled_model(task)
        known = task.camera is None or mujoco.mj_name2id(self.nominal, mujoco.mjtObj.mjOBJ_CAMERA, task.camera) >= 0
        require(known, f"{type(task).__name__}.camera is {task.camera!r}; set it to the name of a camera of the model")
        self._is_randomized = type(task).randomize is not MujocoTask.randomize
        self.model = copy.copy(self.nominal) if self._is_randomized else self.nominal
        fields = _values(self.model, _UNCHANGED).items() if self._is_randomized else ()
        self._fields = [(own, getattr(self.nominal, name)) for name, own in fields if np.ndim(own)]
        self._options = _values(self.nominal.opt)
        self.data = mujoco.MjData(self.model)
        mujoco.mj_forward(self.model, self.data)  # so that `observe` gets numbers
        self.sim = Simulations(task, self.nominal, [self.model], [self.data])
        self.metadata = {"render_modes": ["human", "rgb_array", "depth_array", "rgbd_tuple"]}
        self.metadata["render_fps"] = max(1, round(1 / self.sim.dt))
        self._renderer: Any = None
        self.action_space = task.action_space or _control_space(task, self.nominal)
        space = copy.deepcopy(self.action_space)
        space.seed(0)
        self.sim.outcome(batch_actions(space, [space.sample()]))  # so that the fields are known before the first step
        self.observation_space = task.observation_space or _space_of(task.observe(self.sim))

    @property
    def content_sha256(self) -> str:
        """Digest of the compiled model without changes of `randomize`, for the fingerprint of a run."""
        values = _values(self.nominal, ("_", "npaths", "nbuffer")) | _values(self.nominal.opt)
        names = [name for name in values if not name.endswith("pathadr")]  # the folder of the files may be another one
        content = b"".join(name.encode() + np.asarray(values[name]).tobytes() for name in names)
        return hashlib.sha256(content).hexdigest()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; see `gymnasium.Env.reset`."""
        super().reset(seed=seed)
        begun, given = self.np_random.bit_generator.state, copy.deepcopy(options or {})
        if self._is_randomized:
            for own, nominal in self._fields:
                own[...] = nominal
            for name, value in self._options.items():
                setattr(self.model.opt, name, value)
            self.task.randomize(self.model, self.np_random, given)
            mujoco.mj_setConst(self.model, self.data)
        mujoco.mj_resetData(self.model, self.data)
        self.sim.load(0)  # `reset` must not read the last episode
        known = len(self.sim.names)
        self.task.reset(self.sim, 0, self.np_random, given)
        if len(self.sim.names) > known:  # it may have changed the data before it first read a field
            self.np_random.bit_generator.state = begun
            return self.reset(options=options)
        mujoco.mj_forward(self.model, self.data)
        self.sim.load(0)
        if self.render_mode == "human":
            self.render()
        return self._observation(self.observation_space, self.task.observe(self.sim)), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the simulation; see `gymnasium.Env.step`.

        Raises:
            RuntimeError: if the simulation is unstable.
        """
        actions = batch_actions(self.action_space, [action])
        for error in (self.sim.step(actions) or self.sim.unstable()).values():
            raise error
        rewards, terminated, info = self.sim.outcome(actions)
        if self.render_mode == "human":
            self.render()
        numbers = {name: checked(f"info[{name!r}] of reward", values, (1,))[0] for name, values in info.items()}
        observation = self._observation(self.observation_space, self.task.observe(self.sim))
        return observation, float(rewards[0]), bool(terminated[0]), False, numbers

    def _observation(self, space: gymnasium.Space[Any], batch: Any) -> Any:
        """Return the only row of a batch of observations. Raises ValueError if it does not fit the space."""
        if isinstance(space, spaces.Dict):
            if not isinstance(batch, dict) or batch.keys() != space.keys():
                raise ValueError(f"observe must return a dict with {', '.join(space.keys())}")
            return {name: self._observation(part, batch[name]) for name, part in space.items()}
        return checked("observe", batch, (1, *(space.shape or ())))[0].astype(space.dtype)

    def get_state(self) -> np.ndarray:
        """Return the state of the simulation, for a snapshot."""
        return self.sim.get_state(0)

    def set_state(self, state: np.ndarray) -> None:
        """Restore what `get_state` has returned. The episode must have been reset before."""
        self.sim.set_state(0, state)

    def render(self) -> Any:
        """Return a picture of the simulation; see `gymnasium.Env.render`."""
        from gymnasium.envs.mujoco.mujoco_rendering import MujocoRenderer

        if self._renderer is None:
            size = min(IMAGE_SIZE, self.model.vis.global_.offwidth, self.model.vis.global_.offheight)
            self._renderer = MujocoRenderer(self.model, self.data, None, size, size, camera_name=self.task.camera)
        return self._renderer.render(self.render_mode)

    def close(self) -> None:
        """Close the window."""
        if self._renderer is not None:
            self._renderer.close()


def _control_space(task: MujocoTask, model: mujoco.MjModel) -> spaces.Box:
    """Return the space of the controls. Raises ConfigError if one has no limits."""
    free = ", ".join(model.actuator(i).name or str(i) for i in np.flatnonzero(model.actuator_ctrllimited == 0))
    require(not free, f"{type(task).__name__}: actuators {free} have no ctrlrange; add one, or set action_space")
    low, high = model.actuator_ctrlrange.astype(np.float32).T
    return spaces.Box(low, high, dtype=np.float32)


def _space_of(observation: Any) -> gymnasium.Space[Any]:
    """Return the space of a batch of observations: unbounded Boxes."""
    if isinstance(observation, dict):
        return spaces.Dict({name: _space_of(part) for name, part in observation.items()})
    return spaces.Box(-np.inf, np.inf, np.shape(observation)[1:], np.float64)
