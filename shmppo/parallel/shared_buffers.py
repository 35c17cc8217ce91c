"""The shared memory of a run, written as data: every field with its shape, type, writer, and phase.

The learner and its workers exchange rollouts, weights, and gradients through one block of shared memory. The
dataclasses below are typed views of it. Each field declares who may write it and in which phase. This declaration is
the only source: the memory is allocated from it, the views are made from it, `docs/internals` shows it, and a test
checks it.

The ownership rule: in each phase every element has one writer, and no process reads what another may write.

Phases: START (a worker makes its environments), PUBLISH, COLLECT, PLAN (the learner alone), LEARN, and REFRESH between
two epochs (with --refresh-states). Control fields may be written at any time.

Axes: T steps, N environments, W workers (at least 1), K epochs, M minibatches, G gradient shards, D normalized numbers
of an observation, A numbers of an action, P parameters, S numbers of a recurrent state, C stored states per
environment.
"""

# ruff: noqa: RUF009 (_shared returns a dataclasses.field, which is what a dataclass needs)

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from shmppo.config.train_config import TrainConfig
from shmppo.models.actor_critic import build_meta_model, parameter_offsets
from shmppo.models.distributions import Distribution
from shmppo.models.observations import Leaf, ObservationSpec
from shmppo.utils.phase_timer import PHASES
from shmppo.utils.torch_utils import ALIGNMENT

LEARNER, WORKER, SHARD_OWNER = "learner", "worker, own row", "process of the shard"
OWN_ENVS = "worker, own environments"
ANY = "any; read at any time"


class LossCoefficients(NamedTuple):
    """The coefficients of the loss in one update."""

    clip_range: float
    """ε of PPO-Clip."""
    entropy_coef: float
    penalty_coef: float
    """β of PPO-Penalty."""


class LossTerms(NamedTuple):
    """Means over the steps of a minibatch. Each shard stores its part of them, and the parts add up to the means."""

    policy_loss: float
    value_loss: float
    entropy: float
    approx_kl: float
    clip_fraction: float


class Progress(NamedTuple):
    """Columns of `Control.progress`. A worker with a changing number is slow; one without is stalled."""

    steps: int
    """Steps begun since the start of the run. It shows at which step an environment failed."""
    replayed: int
    """Environments restored, steps replayed for that, and steps whose recurrent states were refreshed."""


class Sequence(NamedTuple):
    """Columns of `Minibatches.sequences`."""

    start: int
    """First step t."""
    env: int
    """Environment n."""
    length: int
    """Steps."""
    slot: int
    """Index of the stored initial state; −1 where the sequence begins an episode, so that its state is zero."""


def _shared(writer: str, phase: str, dtype: Any, axes: str, meaning: str) -> Any:
    """Declare a shared array. `axes` are names or numbers; "T*N" and "G+1" are computed."""
    layout = {"writer": writer, "phase": phase, "dtype": np.dtype(dtype), "axes": axes, "meaning": meaning}
    return dataclasses.field(metadata=layout)


def _per_leaf(writer: str, phase: str, axes: str, meaning: str) -> Any:
    """Declare one shared array for each leaf of the observation, of the leaf's type; its shape follows `axes`."""
    return _shared(writer, phase, np.void, axes, meaning)


@dataclass(frozen=True)
class Published:
    """What the learner publishes for acting and for the gradients."""

    weights: np.ndarray = _shared(
        LEARNER, "PUBLISH, between minibatches", "f4", "P", "all parameters; the optimizer updates them in place"
    )
    version: np.ndarray = _shared(LEARNER, "PUBLISH, between minibatches", "i8", "1", "number of the weights")
    obs_mean: np.ndarray = _shared(LEARNER, "PUBLISH", "f4", "D", "mean of the observations")
    obs_scale: np.ndarray = _shared(LEARNER, "PUBLISH", "f4", "D", "1 / standard deviation of the observations")


@dataclass(frozen=True)
class Rollout:
    """One rollout: T steps of N environments. Steps from `valid_steps[n]` on are absent (early stop)."""

    obs: tuple[np.ndarray, ...] = _per_leaf(OWN_ENVS, "COLLECT", "T N", "observations as the environment returned them")
    actions: np.ndarray = _shared(OWN_ENVS, "COLLECT", "f4", "T N A", "actions as sampled, before clipping")
    log_prob: np.ndarray = _shared(
        OWN_ENVS, "COLLECT", "f4", "T N Q", "log-probability of the action (Q = 1) or of each dimension"
    )
    policy_params: np.ndarray = _shared(OWN_ENVS, "COLLECT", "f4", "T N O", "policy parameters, for the closed-form KL")
    value: np.ndarray = _shared(OWN_ENVS, "COLLECT", "f4", "T N", "V(obs[t])")
    bootstrap: np.ndarray = _shared(
        OWN_ENVS, "COLLECT", "f4", "T N", "V after a truncated step, and after the last step"
    )
    reward: np.ndarray = _shared(OWN_ENVS, "COLLECT", "f8", "T N", "rewards as the environment returned them")
    first: np.ndarray = _shared(OWN_ENVS, "COLLECT", "?", "T N", "obs[t] begins an episode")
    terminated: np.ndarray = _shared(OWN_ENVS, "COLLECT", "?", "T N", "the episode terminated with the step")
    truncated: np.ndarray = _shared(OWN_ENVS, "COLLECT", "?", "T N", "the episode was truncated after the step")
    sequence_state: np.ndarray = _shared(
        OWN_ENVS,
        "COLLECT, REFRESH",
        "f4",
        "C N S",
        "recurrent states at the start of sequences that continue an episode",
    )
    state_drift: np.ndarray = _shared(
        OWN_ENVS, "REFRESH", "f8", "N 2", "sum of squared changes of stored states, and how many numbers changed"
    )
    ended_return: np.ndarray = _shared(
        OWN_ENVS, "COLLECT", "f8", "T N", "return of the episode that ended with the step"
    )
    ended_length: np.ndarray = _shared(OWN_ENVS, "COLLECT", "i8", "T N", "length of that episode; 0 if it failed")
    valid_steps: np.ndarray = _shared(
        OWN_ENVS, "COLLECT", "i8", "N", "steps of the rollout: T, or fewer after an early stop"
    )
    obs_moments: np.ndarray = _shared(OWN_ENVS, "COLLECT", "f8", "N 2 D", "mean and M2 of this rollout's observations")


@dataclass(frozen=True)
class Carry:
    """What a rollout needs from the one before. Iteration i reads carry i mod 2 and writes carry (i + 1) mod 2."""

    obs: tuple[np.ndarray, ...] = _per_leaf(OWN_ENVS, "START, COLLECT", "N", "the present observation")
    state: np.ndarray = _shared(OWN_ENVS, "START, COLLECT", "f4", "N S", "recurrent state")
    first: np.ndarray = _shared(OWN_ENVS, "START, COLLECT", "?", "N", "the present observation begins an episode")
    episode: np.ndarray = _shared(OWN_ENVS, "START, COLLECT", "i8", "N", "number of the episode in progress")
    episode_return: np.ndarray = _shared(OWN_ENVS, "START, COLLECT", "f8", "N", "return of the episode so far")
    episode_length: np.ndarray = _shared(OWN_ENVS, "START, COLLECT", "i8", "N", "length of the episode so far")
    episode_hash: np.ndarray = _shared(
        OWN_ENVS, "START, COLLECT", "i8", "N", "hash of the episode so far, to check a replay"
    )
    snapshot: np.ndarray = _shared(OWN_ENVS, "START, COLLECT", "u1", "N snapshot", "the environment's own state")


@dataclass(frozen=True)
class Minibatches:
    """The minibatches of one update: K epochs of M minibatches of G shards."""

    step_targets: np.ndarray = _shared(
        LEARNER, "PLAN", "f4", "T*N 3+Q", "advantage, value target, old value, old log_prob of each step"
    )
    sequences: np.ndarray = _shared(LEARNER, "PLAN", "i4", "N*T 4", "the sequences of the rollout (see Sequence)")
    order: np.ndarray = _shared(LEARNER, "PLAN", "i4", "K N*T", "indices of sequences in the order of each epoch")
    bounds: np.ndarray = _shared(
        LEARNER, "PLAN", "i4", "K M G+1", "shard g is order[k, bounds[k, m, g]:bounds[k, m, g + 1]]"
    )
    steps: np.ndarray = _shared(LEARNER, "PLAN", "i8", "K M", "steps of each minibatch, over all ranks")
    advantage_scale: np.ndarray = _shared(
        LEARNER, "PLAN", "f8", "K M 2", "mean and 1 / standard deviation of advantages"
    )
    coefficients: np.ndarray = _shared(LEARNER, "PLAN", "f8", "3", "LossCoefficients of this update")


@dataclass(frozen=True)
class ShardResults:
    """What the gradient computation of each shard of a minibatch returns."""

    gradients: np.ndarray = _shared(
        SHARD_OWNER, "LEARN", "f4", "G P", "gradients; the learner sums them into the first"
    )
    loss_terms: np.ndarray = _shared(SHARD_OWNER, "LEARN", "f8", "G 5", "the shard's part of LossTerms")
    max_log_ratio: np.ndarray = _shared(SHARD_OWNER, "LEARN", "f8", "G", "largest |log ratio| of a step")


@dataclass(frozen=True)
class Timings:
    """What the workers measure. Without workers the learner uses row 0."""

    phase_seconds: np.ndarray = _shared(
        WORKER, "COLLECT, REFRESH, LEARN", "f8", "W phases", "seconds of the last command by phase"
    )
    command_interval: np.ndarray = _shared(
        WORKER, "COLLECT, REFRESH, LEARN", "f8", "W 2", "monotonic start and end of the last command"
    )
    step_seconds: np.ndarray = _shared(
        OWN_ENVS, "COLLECT", "f4", "timed_steps N", "seconds of each environment step (--step-times)"
    )


@dataclass(frozen=True)
class Control:
    """Commands and acknowledgements. These fields may be read while they are written."""

    commands: np.ndarray = _shared(LEARNER, ANY, "i8", "W 5", "sequence number, kind, and up to three arguments")
    acknowledged: np.ndarray = _shared(
        WORKER, ANY, "i8", "W", "sequence number of the last command that was carried out"
    )
    worker_blocked: np.ndarray = _shared(
        WORKER, ANY, "i8", "W", "1: the worker blocks on its queue and must be woken up"
    )
    learner_blocked: np.ndarray = _shared(LEARNER, ANY, "i8", "1", "1: the learner blocks and must be woken up")
    finished_rollouts: np.ndarray = _shared(
        OWN_ENVS, "COLLECT; read at any time", "i8", "N", "rollouts finished since the start of the run"
    )
    stop_early: np.ndarray = _shared(
        LEARNER, "COLLECT; read at any time", "i8", "1", "rollouts of this number end early"
    )
    progress: np.ndarray = _shared(
        WORKER,
        "START, COLLECT, REFRESH; read at any time",
        "i8",
        "W 2",
        "numbers that change while a worker works (Progress)",
    )


GROUPS: dict[str, type] = {
    "published": Published,
    "rollout": Rollout,
    "carry_even": Carry,
    "carry_odd": Carry,
    "minibatches": Minibatches,
    "shard_results": ShardResults,
    "timings": Timings,
    "control": Control,
}
"""The views in the order in which they lie in memory."""


@dataclass(frozen=True)
class Field:
    """One shared array. `writer` is the only process that may write an element, and only in `phase`."""

    group: str
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    writer: str
    phase: str
    axes: str
    """Names of the axes, for documentation."""
    meaning: str

    @property
    def path(self) -> str:
        """`group.name`"""
        return f"{self.group}.{self.name}"

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def axis_sizes(
    config: TrainConfig, observation: ObservationSpec, distribution: Distribution, snapshot_bytes: int = 0
) -> dict[str, int]:
    """The length of each axis of a run."""
    model = build_meta_model(config, observation, distribution)
    _, parameters = parameter_offsets(model)
    return {
        "T": config.rollout_steps,
        "N": config.num_envs,
        "W": max(config.num_workers, 1),
        "K": config.epochs,
        "M": config.minibatches,
        "G": config.shards,
        "C": config.state_slots,
        "D": observation.normalized_size,
        "A": distribution.action_size,
        "P": parameters,
        "S": model.state_size,
        "Q": distribution.action_size if config.ratio == "per-dimension" else 1,
        "O": distribution.num_params if config.objective == "penalty" else 0,
        "snapshot": snapshot_bytes,
        "timed_steps": config.rollout_steps if config.step_times else 0,
        "phases": len(PHASES),
    }


def _length(axis: str, sizes: dict[str, int]) -> int:
    """The length of an axis such as "T", "T*N", "G+1", or "2"."""

    def number(name: str) -> int:
        return sizes[name] if name in sizes else int(name)

    return sum(math.prod(number(name) for name in term.split("*")) for term in axis.split("+"))


def shared_fields(sizes: dict[str, int], leaves: Iterable[Leaf]) -> tuple[Field, ...]:
    """The layout table of a run: every field in the order in which it lies in memory."""
    leaves = tuple(leaves)
    return tuple(field for group, view in GROUPS.items() for field in _group_fields(group, view, sizes, leaves))


def _group_fields(group: str, view: type, sizes: dict[str, int], leaves: tuple[Leaf, ...]) -> Iterator[Field]:
    for declared in dataclasses.fields(view):
        layout = declared.metadata
        shape = tuple(_length(axis, sizes) for axis in layout["axes"].split())
        text = (layout["writer"], layout["phase"], layout["axes"], layout["meaning"])
        if layout["dtype"] != np.void:
            yield Field(group, declared.name, shape, layout["dtype"], *text)
            continue
        for leaf in leaves:
            yield Field(group, leaf.field, (*shape, *leaf.shape), np.dtype(leaf.dtype), *text)


def run_fields(
    config: TrainConfig, observation: ObservationSpec, distribution: Distribution, snapshot_bytes: int = 0
) -> tuple[Field, ...]:
    """The layout table of a run with this configuration and these spaces."""
    return shared_fields(axis_sizes(config, observation, distribution, snapshot_bytes), observation.leaves)


def aligned(size: int) -> int:
    """`size` in bytes, rounded up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def total_bytes(fields: Iterable[Field]) -> int:
    """Bytes of the shared memory that holds `fields`."""
    return sum(aligned(field.bytes) for field in fields)


def allocate(fields: Iterable[Field]) -> Tensor:
    """One zeroed shared tensor for the whole table, uint8 [total_bytes]. Its memory segment has no name."""
    memory = torch.zeros(total_bytes(fields), dtype=torch.uint8)
    memory.share_memory_()  # type: ignore[no-untyped-call]
    return memory


_View = TypeVar("_View")


class SharedBuffers:
    """Typed views of the shared memory of one run.

    Attributes:
        carries: the carry that even iterations read, and the one that odd iterations read.
        arrays: every array by its path `group.name`, for code that treats all fields alike.
    """

    def __init__(self, fields: Iterable[Field], memory: Tensor) -> None:
        """memory: what `allocate(fields)` returned, possibly in another process."""
        self.memory = memory
        self.fields = tuple(fields)
        self.arrays: dict[str, np.ndarray] = {}
        whole, offset = memory.numpy(), 0
        for field in self.fields:
            self.arrays[field.path] = whole[offset : offset + field.bytes].view(field.dtype).reshape(field.shape)
            offset += aligned(field.bytes)
        self.published = self._view("published", Published)
        self.rollout = self._view("rollout", Rollout)
        self.carries = (self._view("carry_even", Carry), self._view("carry_odd", Carry))
        self.minibatches = self._view("minibatches", Minibatches)
        self.shard_results = self._view("shard_results", ShardResults)
        self.timings = self._view("timings", Timings)
        self.control = self._view("control", Control)

    def _view(self, group: str, view: Callable[..., _View]) -> _View:
        arrays = {field.name: self.arrays[field.path] for field in self.fields if field.group == group}
        obs = tuple(array for name, array in arrays.items() if name.partition("/")[0] == "obs")
        plain: dict[str, Any] = {name: array for name, array in arrays.items() if name.partition("/")[0] != "obs"}
        return view(**plain, obs=obs) if obs else view(**plain)
