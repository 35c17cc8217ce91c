"""n simulations of one task, and their fields as arrays with one row per simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import mujoco
import numpy as np

from shmppo.config.checks import nearest

FIELDS = {
    "joint": "qpos qvel qacc qacc_smooth qfrc_actuator qfrc_applied qfrc_bias qfrc_constraint qfrc_passive qfrc_smooth "
    "xanchor xaxis",
    "body": "xpos xquat xmat xipos ximat cinert cvel cacc cfrc_int cfrc_ext subtree_com xfrc_applied",
    "geom": "geom_xpos geom_xmat",
    "site": "site_xpos site_xmat",
    "camera": "cam_xpos cam_xmat",
    "tendon": "ten_length ten_velocity",
    "actuator": "ctrl actuator_force actuator_length actuator_velocity",
    "sensor": "sensordata",
    "": "act userdata",
}
"""Fields of MjData that a task can read, by the kind of object whose name selects columns."""
PREFIXES = {
    "body_": "body", "jnt_": "joint", "dof_": "joint", "geom_": "geom", "site_": "site", "cam_": "camera",
    "ten_": "tendon", "tendon_": "tendon", "actuator_": "actuator", "sensor_": "sensor",
}  # fmt: skip
"""What fields of MjModel that a task can read begin with, and the kind of object."""
STATE = ("qpos", "qvel", "act", "ctrl", "userdata", "qfrc_applied", "xfrc_applied")
"""Fields of the state of a simulation: the only ones that `control` can read."""
_KINDS = {name: kind for kind, names in FIELDS.items() for name in names.split()}
_FORCES = {"cacc", "cfrc_int", "cfrc_ext"}
"""Fields that `mj_step` does not compute."""


class Part:
    """A field of n simulations.

    `part[:]` is the array [n, size…], which is read-only and changes with the next step. Other indices are those of
    NumPy. `part["hip"]` are the numbers of the joint, body, sensor, … with this name: [n] if it has one number,
    otherwise [n, …].
    """

    def __init__(self, owner: Any, name: str) -> None:
        """Create the part. owner: the MjData or MjModel of any of the simulations."""
        self._owner, self._name = owner, name
        self._named: dict[str, np.ndarray] = {}

    def connect(self, rows: np.ndarray) -> None:
        """Set the memory of the part, [n, size]."""
        self._rows = rows
        self._rows.flags.writeable = False
        self._array = rows.reshape(len(rows), *getattr(self._owner, self._name).shape)
        self._named.clear()

    def __getitem__(self, key: Any) -> np.ndarray:
        if not isinstance(key, str):
            return self._array[key]
        if key not in self._named:
            self._named[key] = self._select(key)
        return self._named[key]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._array, dtype, copy=copy)

    def _select(self, name: str) -> np.ndarray:
        """Return the numbers of an object. Raises KeyError with all names if there is none with this name."""
        prefix = next((one for one in PREFIXES if self._name.startswith(one)), "")
        kind = _KINDS.get(self._name) or PREFIXES.get(prefix)
        attribute = "data" if self._name == "sensordata" else self._name.removeprefix(prefix)
        numbers = getattr(getattr(self._owner, kind)(name), attribute, None) if kind else None
        if numbers is None:
            raise KeyError(f"{self._name} has no parts with names; select its numbers by index")
        first, address = (one.__array_interface__["data"][0] for one in (getattr(self._owner, self._name), numbers))
        columns = self._rows[:, (address - first) // numbers.itemsize :][:, : numbers.size]
        return columns[:, 0] if numbers.size == 1 else columns.reshape(len(columns), *numbers.shape)


class Fields:
    """Fields of n simulations as attributes, for example `fields.qpos`. A field is copied from its first use on.

    Attributes:
        model: the model without changes of `randomize`.
        models: [n], the model of each simulation. The same object n times if nothing is randomized.
        data: [n], the MjData of each simulation.
        dt: seconds of a step.
    """

    def __init__(
        self,
        task: Any,
        model: mujoco.MjModel,
        models: Sequence[mujoco.MjModel],
        data: Sequence[mujoco.MjData],
        only: Sequence[str] = tuple(_KINDS),
        rule: str = "sim has",
    ) -> None:
        """Create the fields.

        Args:
            task: the `MujocoTask`.
            model, models, data: see the attributes.
            only: names of the fields of MjData that can be read.
            rule: beginning of the sentence about other fields, which their names follow.
        """
        self.task, self.model, self.models, self.data = task, model, list(models), list(data)
        self.dt = model.opt.timestep * task.frame_skip
        self._only, self._rule = only, rule
        self._parts: dict[str, Part] = {}
        self._rows = np.zeros((len(data), 0))
        self._carried = 0  # width of the fields in `before`, which are the first columns
        self._connect()

    def __len__(self) -> int:
        return len(self.data)

    @property
    def time(self) -> np.ndarray:
        """Seconds since the reset, [n]."""
        return np.array([data.time for data in self.data])

    def __getattr__(self, name: str) -> Part:
        """Add a field, and return it. Called only if there is no such attribute."""
        if name.startswith("_"):
            raise AttributeError(name)
        self._check(name)
        self._parts[name] = part = Part(self.data[0] if name in _KINDS else self.model, name)
        self._connect()
        self.__dict__[name] = part
        return part

    def _check(self, name: str) -> None:
        """Raise AttributeError if there is no such field."""
        value = getattr(self.model, name, None) if name.startswith(tuple(PREFIXES)) and name not in _KINDS else None
        if name not in self._only and not (isinstance(value, np.ndarray) and value.dtype == np.float64):
            raise AttributeError(f"{self._rule} no {name}{nearest(name, self._only)}, but {', '.join(self._only)}")

    def _connect(self) -> None:
        """Make new memory for the fields, and copy them. The simulations or the fields have changed."""
        owners = [(name, self.data if name in _KINDS else self.models) for name in self._parts]
        self._views = [getattr(many[i], name).reshape(-1) for i in range(len(self)) for name, many in owners]
        ends = np.cumsum([view.size for view in self._views[: len(owners)]], dtype=np.int64)
        carried = self._rows[:, : self._carried]
        self._rows = np.zeros((len(self), ends[-1] if owners else 0))
        self.refresh()
        self._rows[:, : carried.shape[1]] = carried
        for part, rows in zip(self._parts.values(), np.split(self._rows, ends[:-1], axis=1), strict=bool(owners)):
            part.connect(rows)

    def refresh(self) -> None:
        """Copy all fields from the simulations."""
        if self._views:
            np.concatenate(self._views, out=self._rows.reshape(-1))


class Simulations(Fields):
    """n simulations of a task, and what the task computes from them.

    Attributes:
        before: the fields that the task names in `before`, with their values after the previous step or the reset.
        state: the fields of the state, for `control`: no others are restored with a simulation.
    """

    def __init__(self, task: Any, model: Any, models: Sequence[Any], data: Sequence[Any]) -> None:
        super().__init__(task, model, models, data)
        self.before = Fields(task, model, models, data, task.before, "the task's `before` has")
        self.state = Fields(task, model, models, data, STATE, "control reads the state, which has")
        for name in task.before:
            getattr(self, name)
            getattr(self.before, name)
        self._carried = self._rows.shape[1]
        self._stepped = False
        self._reconnect()

    def __getattr__(self, name: str) -> Part:
        if name in _FORCES and self._stepped:  # the step that needs it first has not computed it
            self._compute_forces()
        return super().__getattr__(name)

    def replace(self, i: int, model: Any, data: Any) -> None:
        """Replace a simulation."""
        for fields in (self, self.before, self.state):
            fields.models[i], fields.data[i] = model, data
            fields._connect()
        self._reconnect()

    def _reconnect(self) -> None:
        self._stepped_with = [(m, d, d.ctrl) for m, d in zip(self.models, self.data, strict=True)]
        # After these, MuJoCo has replaced the state or the control by another one.
        self._fatal = [int(getattr(mujoco.mjtWarning, f"mjWARN_BAD{of}")) for of in ("QPOS", "QVEL", "QACC", "CTRL")]
        self._warnings = [data.warning.number[self._fatal[0] : self._fatal[-1] + 1] for data in self.data]
        self._counts = np.zeros((len(self), len(self._fatal)), np.int32)

    def load(self, i: int) -> None:
        """Copy the fields of one simulation, after its reset."""
        if size := len(self._parts):
            np.concatenate(self._views[i * size : (i + 1) * size], out=self._rows[i])
            self.before._rows[i] = self._rows[i, : self._carried]

    def controls(self, actions: Any) -> np.ndarray:
        """Return the controls [n, nu] for a batch of actions."""
        self.state.refresh()
        return checked("control", self.task.control(self.state, actions), (len(self), self.data[0].ctrl.size))

    def step(self, actions: Any, idle: Sequence[int] = ()) -> dict[int, Exception]:
        """Step all simulations, except those in `idle`. Return what MuJoCo has raised, by simulation.

        actions: a batch of n actions.
        """
        self.before._rows[:] = self._rows[:, : self._carried]
        controls = self.controls(actions)
        failures: dict[int, Exception] = {}
        steps = self.task.frame_skip
        for i, ((model, data, control), values) in enumerate(zip(self._stepped_with, controls, strict=True)):
            if i in idle:
                continue
            control[:] = values
            try:
                mujoco.mj_step(model, data, steps)
            except Exception as error:
                failures[i] = error
        if _FORCES & self._parts.keys():
            self._compute_forces()
        self._stepped = True
        self.refresh()
        return failures

    def _compute_forces(self) -> None:
        for model, data, _ in self._stepped_with:
            mujoco.mj_rnePostConstraint(model, data)

    def unstable(self) -> dict[int, Exception]:
        """Return an error for each simulation that MuJoCo has reset, because its numbers were invalid."""
        np.concatenate(self._warnings, out=self._counts.reshape(-1))
        if not self._counts.any():
            return {}
        failures: dict[int, Exception] = {}
        for i in np.flatnonzero(self._counts.any(axis=1)).tolist():
            kind = self._fatal[int(np.argmax(self._counts[i]))]
            failures[i] = RuntimeError(mujoco.mju_warningText(kind, self.data[i].warning.lastinfo[kind]))
        return failures

    def outcome(self, actions: Any) -> tuple[np.ndarray, np.ndarray, Mapping[str, np.ndarray]]:
        """Return rewards float64 [n], terminations bool [n], and the numbers for `info`, [n] each."""
        returned = self.task.reward(self, actions)
        if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Mapping)):
            raise ValueError("reward must return (rewards [n], info), where info is a dict of arrays [n]")
        rewards, terminated = returned[0], self.task.terminated(self)
        shape = (len(self),)
        info = {name: checked(f"info[{name!r}] of reward", value, shape) for name, value in returned[1].items()}
        return checked("reward", rewards, shape), checked("terminated", terminated, shape), info

    def get_state(self, i: int) -> np.ndarray:
        """Return everything that the next step of a simulation depends on, float64."""
        size = mujoco.mj_stateSize(self.model, mujoco.mjtState.mjSTATE_INTEGRATION)
        state = np.empty(size + self._carried)
        mujoco.mj_getState(self.models[i], self.data[i], state[:size], mujoco.mjtState.mjSTATE_INTEGRATION)
        state[size:] = self._rows[i, : self._carried]
        return state

    def set_state(self, i: int, state: np.ndarray) -> None:
        """Restore what `get_state` has returned."""
        size = len(state) - self._carried
        mujoco.mj_setState(self.models[i], self.data[i], state[:size], mujoco.mjtState.mjSTATE_INTEGRATION)
        self._rows[i, : self._carried] = state[size:]


def checked(what: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return what a function of a task has returned as an array. Raises ValueError if it has another shape."""
    array = np.asarray(value)
    if array.shape != shape:
        raise ValueError(f"{what} returned shape {array.shape}, but it must return shape {shape}")
    return array
