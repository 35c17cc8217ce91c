"""n simulations of one task, and their fields as arrays with one row per simulation."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import mujoco
import numpy as np

from shmppo.config.checks import nearest

FIELDS = {
    "joint": "qpos qvel qacc qacc_smooth qfrc_actuator qfrc_applied qfrc_bias qfrc_constraint qfrc_passive xaxis",
    "body": "xpos xquat xmat xipos ximat cinert cvel cacc cfrc_int cfrc_ext subtree_com xfrc_applied",
    "geom": "geom_xpos geom_xmat",
    "site": "site_xpos site_xmat",
    "camera": "cam_xpos cam_xmat",
    "tendon": "ten_length ten_velocity",
    "actuator": "ctrl actuator_force actuator_length actuator_velocity",
    "sensor": "sensordata",
    "": "act userdata mocap_pos mocap_quat",
}
"""Fields of MjData that a task can read, by the kind of object whose name selects columns."""
PREFIXES = {
    "body_": "body", "jnt_": "joint", "dof_": "joint", "geom_": "geom", "site_": "site", "cam_": "camera",
    "ten_": "tendon", "tendon_": "tendon", "actuator_": "actuator",
}  # fmt: skip
"""What fields of MjModel that a task can read begin with, and the kind of object."""
STATE = ("qpos", "qvel", "act", "ctrl", "userdata", "qfrc_applied", "xfrc_applied")
"""Fields of the state of a simulation: the only ones that `control` can read."""
_KINDS = {name: kind for kind, names in FIELDS.items() for name in names.split()}
_FORCES = {"cacc", "cfrc_int", "cfrc_ext"}
"""Fields that `mj_step` does not compute."""
_FATAL = [int(getattr(mujoco.mjtWarning, f"mjWARN_BAD{of}")) for of in ("QPOS", "QVEL", "QACC", "CTRL")]
"""Warnings after which MuJoCo has replaced the state or the control by another one."""


class Part:
    """A field of n simulations.

    `part[:]` is the array [n, size…], which is read-only and changes with the next step. Other indices are those of
    NumPy. `part["hip"]` are the numbers of the joint, body, sensor, … with this name: [n] if it has one number,
    otherwise [n, …].
    """

    def __init__(self, owner: Any, name: str, rows: np.ndarray) -> None:
        """Create the part.

        Args:
            owner: the MjData or MjModel of any of the simulations.
            name: of the field.
            rows: its memory, [n, size].
        """
        rows.flags.writeable = False
        self._owner, self._name, self._rows = owner, name, rows
        self._array = rows.reshape(len(rows), *getattr(owner, name).shape)
        self._named: dict[str, np.ndarray] = {}

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
        names: of the fields that have been used.
    """

    def __init__(self, task: Any, model: Any, models: list[Any], data: list[Any], only: Sequence[str], of: str) -> None:
        """Create the fields.

        Args:
            task: the `MujocoTask`.
            model, models, data: see the attributes.
            only: names of the fields of MjData that can be read.
            of: what has no other fields, in an error message.
        """
        self.task, self.model, self.models, self.data = task, model, models, data
        self.dt = model.opt.timestep * task.frame_skip
        self._only, self._of = only, of
        self.names: list[str] = []
        self._rows = np.zeros((len(data), 0))
        self._connect()

    def __len__(self) -> int:
        return len(self.data)

    def __getattr__(self, name: str) -> Any:
        """Add a field, and return it. Called only if there is no such attribute."""
        of_model = name.startswith(tuple(PREFIXES)) and name not in _KINDS and hasattr(self.model, name)
        if (not of_model or self._only is self.task.before) and name not in self._only:
            hint = nearest(name, self._only) or f"; it has {', '.join(self._only) or 'none'}"
            raise AttributeError(f"{self._of} has no field {name}{hint}")
        self.names.append(name)
        self._connect()
        return vars(self)[name]

    def _connect(self) -> None:
        """Make new memory for the fields, and copy them. The simulations or the fields have changed."""
        owners = [(name, self.data if name in _KINDS else self.models) for name in self.names]
        self._views = [getattr(many[i], name).reshape(-1) for i in range(len(self)) for name, many in owners]
        ends = np.cumsum([0, *(view.size for view in self._views[: len(owners)])])
        known, self._rows = self._rows, np.zeros((len(self), ends[-1]))
        self.refresh()
        self._rows[:, : known.shape[1]] = known  # a function of the task may have changed the data since the step
        for (name, many), begin, end in zip(owners, ends[:-1], ends[1:], strict=True):
            vars(self)[name] = Part(many[0], name, self._rows[:, begin:end])

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

    def __init__(self, task: Any, model: Any, models: list[Any], data: list[Any], names: Sequence[str] = ()) -> None:
        """Create the simulations.

        Args:
            task, model, models, data: see `Fields`.
            names: of fields that are known from the start, as functions may change the data before they read them.
        """
        super().__init__(task, model, models, data, tuple(_KINDS), "sim")
        self.before = Fields(task, model, models, data, task.before, "`before` of the task")
        self.state = Fields(task, model, models, data, STATE, "the state, which control reads,")
        for name in (*task.before, *names):
            getattr(self, name)
        for name in task.before:
            getattr(self.before, name)
        self._carried = self.before._rows.shape[1]  # width of its fields, which are the first columns here

    def copied(self, steps: Sequence[Simulations], task: Any) -> Simulations:
        """Return copies of the first simulation of each of `steps`, for another object of the task's class."""
        models, data = [one.models[0] for one in steps], [copy.copy(one.data[0]) for one in steps]
        copies = Simulations(task, self.model, models, data, self.names)
        copies.before._rows[:] = [one.before._rows[0] for one in steps]
        return copies

    def refresh(self) -> None:
        if not _FORCES.isdisjoint(self.names):
            for model, data in zip(self.models, self.data, strict=True):
                if data.time > 0:  # as in Gymnasium, they are 0 after a reset
                    mujoco.mj_rnePostConstraint(model, data)
        super().refresh()

    def replace(self, i: int, model: Any, data: Any) -> None:
        """Replace a simulation."""
        self.models[i], self.data[i] = model, data
        for fields in (self, self.before, self.state):
            fields._connect()

    def _connect(self) -> None:
        super()._connect()
        self._controlled = [(m, d, d.ctrl) for m, d in zip(self.models, self.data, strict=True)]
        self._warnings = [data.warning.number[_FATAL[0] : _FATAL[-1] + 1] for data in self.data]

    def load(self, i: int) -> None:
        """Copy the fields of one simulation, after its reset."""
        if size := len(self.names):
            np.concatenate(self._views[i * size : (i + 1) * size], out=self._rows[i])
            self.before._rows[i] = self._rows[i, : self._carried]

    def controls(self, actions: Any) -> np.ndarray:
        """Return the controls [n, nu] for a batch of actions."""
        self.state.refresh()
        return checked("control", self.task.control(self.state, actions), (len(self), self._controlled[0][2].size))

    def step(self, actions: Any, idle: Sequence[int] = ()) -> dict[int, Exception]:
        """Step all simulations, except those in `idle`. Return what MuJoCo has raised, by simulation.

        actions: a batch of n actions.
        """
        if self._carried:
            self.before._rows[:] = self._rows[:, : self._carried]
        controls = self.controls(actions)
        failures: dict[int, Exception] = {}
        step, steps = mujoco.mj_step, self.task.frame_skip
        for i, (model, data, control), values in zip(range(len(self)), self._controlled, controls, strict=True):
            if idle and i in idle:
                continue
            control[...] = values  # faster than [:]
            try:
                step(model, data, steps)
            except Exception as error:
                failures[i] = error
        self.refresh()
        return failures

    def unstable(self) -> dict[int, Exception]:
        """Return an error for each simulation that MuJoCo has reset, because its numbers were invalid."""
        counts = np.concatenate(self._warnings)
        if not np.count_nonzero(counts):  # faster than any()
            return {}
        found = [(k // len(_FATAL), _FATAL[k % len(_FATAL)]) for k in np.flatnonzero(counts).tolist()]
        return {i: RuntimeError(mujoco.mju_warningText(kind, self.data[i].warning.lastinfo[kind])) for i, kind in found}

    def outcome(self, actions: Any) -> tuple[np.ndarray, np.ndarray, Mapping[str, np.ndarray]]:
        """Return rewards float64 [n], terminations bool [n], and the numbers for `info`, [n] each."""
        returned = self.task.reward(self, actions)
        if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], dict)):
            raise ValueError("reward must return (rewards [n], info), where info is a dict of arrays [n]")
        shape = (len(self),)
        terminated = checked("terminated", self.task.terminated(self), shape)
        return checked("reward", returned[0], shape), terminated, returned[1]

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
