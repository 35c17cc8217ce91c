"""The shared memory of a run: a declaration of every array with its shape, type, writer, and phase.

The learner and its workers exchange rollouts, weights, gradients, and commands through one block of shared memory. The
dataclasses below are typed views of it. Each field declares which process may write it, and in which phase. The memory
is allocated from these declarations, and `docs/internals/shared-memory.md` is generated from them. A test checks that
only the declared writer writes.

The ownership rule: in each phase every element has one writer, and no process reads what another may write. The fields
of `Control` are the exception.

Phases: START (a worker creates its environments), PUBLISH, COLLECT, PLAN (the learner alone), LEARN, REDUCE, and STEP
for each minibatch, and EVALUATE after an update (with --eval-every).

Axes: T steps, N columns (of all environments), W workers (at least 1), K epochs, M minibatches, G gradient
shards, C stored states per column, E episodes of an evaluation, X = N if columns may be idle, otherwise 0. Sizes: D
normalized part of an observation, A action, I keys of `info`, P flat vector of all parameters, S recurrent state. Per
step: Q log_probs (1, or A with --ratio per-dimension), Z policy parameters, O = Z, or 0 with --objective clip. B = M
with --device cuda, otherwise 0. Y = N with --act-on device, otherwise 0.
Extensions have further arrays and axes (`config.extensions`, place `arrays`).
"""

# ruff: noqa: RUF009 (shared returns a dataclasses.field, which is what a dataclass needs)

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

import numpy as np
import torch
from torch import Tensor

from shmppo.config.extensions import added
from shmppo.spaces.observations import Leaf
from shmppo.utils.torch_utils import ALIGNMENT

LEARNER, WORKER, SHARD_OWNER = "learner", "worker, own row", "process of the shard"
PART_OWNER = "process, own part of the parameters"
OWN_ENVS, OWN_EPISODES = "worker, own environments", "worker, own episodes"
ANY = "any; read at any time"
COUNTED = "COLLECT, LEARN, EVALUATE"
ANY_COMMAND = f"{COUNTED}, REDUCE, STEP"


def shared(writer: str, phase: str, dtype: Any, axes: str, meaning: str) -> Any:
    """Declare a shared array. `axes` are separated by spaces: names, numbers, or terms such as "T*N" and "G+1"."""
    layout = {"writer": writer, "phase": phase, "dtype": np.dtype(dtype), "axes": axes, "meaning": meaning}
    return dataclasses.field(metadata=layout)


collected = functools.partial(shared, OWN_ENVS, "COLLECT")
carried = functools.partial(shared, OWN_ENVS, "START, COLLECT")
_planned = functools.partial(shared, LEARNER, "PLAN")
_ADDED: Any = dataclasses.field(default_factory=dict, kw_only=True)
"""The arrays that extensions add to a group, by name (ARRAYS in their module `arrays`)."""
PER_LEAF = np.void
"""Declares one shared array per leaf of the observation. It has the leaf's type, and its shape after `axes`."""


@dataclass(frozen=True)
class Published:
    """What the learner publishes for acting and for the gradients: weights and normalization statistics."""

    weights: np.ndarray = shared(PART_OWNER, "STEP", "f4", "P", "parameters; the learner then applies --log-std-min")
    obs_mean: np.ndarray = shared(LEARNER, "PUBLISH", "f4", "D", "mean of the observations")
    obs_scale: np.ndarray = shared(LEARNER, "PUBLISH", "f4", "D", "1 / standard deviation of the observations")
    reset_options: np.ndarray = shared(LEARNER, "PUBLISH", "u1", "options", "options of reset, as JSON text")
    added: dict[str, np.ndarray] = _ADDED


@dataclass(frozen=True)
class Rollout:
    """One rollout: T steps of N columns. Steps from `valid_steps[n]` on are not valid (early stop, idle steps)."""

    obs: tuple[np.ndarray, ...] = collected(PER_LEAF, "T N", "observations, not normalized; hidden indices are 0")
    actions: np.ndarray = collected("f4", "T N A", "actions as sampled, before clipping")
    log_prob: np.ndarray = collected("f4", "T N Q", "log_prob of the action (Q = 1) or of each dimension (Q = A)")
    policy_params: np.ndarray = collected("f4", "T N O", "policy parameters, for the closed-form KL")
    value: np.ndarray = collected("f4", "T N", "V(obs[t])")
    bootstrap: np.ndarray = collected("f4", "T N", "V after a truncated step, and after the last valid step")
    reward: np.ndarray = collected("f8", "T N", "rewards as the environment returned them")
    first: np.ndarray = collected("?", "T N", "obs[t] begins an episode")
    terminated: np.ndarray = collected("?", "T N", "the episode terminated with the step")
    truncated: np.ndarray = collected("?", "T N", "the episode was truncated after the step")
    sequence_state: np.ndarray = collected("f4", "C N S", "initial states of sequences that continue an episode")
    joint_actions: np.ndarray = collected("f4", "T X A", "actions at each step, also of idle columns")
    joint_end: np.ndarray = collected("?", "T X", "the episode of all columns ended with the step")
    ended_return: np.ndarray = collected("f8", "T N", "return of the episode that ended with the step")
    ended_length: np.ndarray = collected("i8", "T N", "its length; 0 if it failed, −1 if it does not count")
    ended_episode: np.ndarray = collected("i8", "T N 2", "its number, and its CRC-32 (see `VectorEnv.hashes`)")
    ended_info: np.ndarray = collected("f8", "T N I", "its numbers of `info` (--info-keys); NaN where it had none")
    failed_starts: np.ndarray = collected("i8", "N", "number of episodes whose reset has failed")
    unrepeated: np.ndarray = collected("?", "N", "a skipped episode did not fail again, or one hung")
    valid_steps: np.ndarray = collected("i8", "N", "number of valid steps, at most T")
    obs_moments: np.ndarray = collected("f8", "N 2 D", "mean and sum of squared deviations of the observations")
    added: dict[str, np.ndarray] = _ADDED


@dataclass(frozen=True)
class Acting:
    """The current step, with --act-on device: what the learner reads, and what it computes."""

    obs: tuple[np.ndarray, ...] = collected(PER_LEAF, "Y", "observations")
    state: np.ndarray = collected("f4", "Y S", "recurrent states before the step")
    params: np.ndarray = shared(LEARNER, "COLLECT", "f4", "Y Z", "policy parameters")
    values: np.ndarray = shared(LEARNER, "COLLECT", "f4", "Y 1", "values")
    after: np.ndarray = shared(LEARNER, "COLLECT", "f4", "Y S", "recurrent states after the step")


@dataclass(frozen=True)
class Carry:
    """What a rollout needs from the one before. Iteration i reads carry i mod 2 and writes carry (i + 1) mod 2."""

    obs: tuple[np.ndarray, ...] = carried(PER_LEAF, "N", "the current observation")
    state: np.ndarray = carried("f4", "N S", "recurrent state")
    first: np.ndarray = carried("?", "N", "the current observation begins an episode")
    episode: np.ndarray = carried("i8", "N", "number of the episode in progress")
    episode_return: np.ndarray = carried("f8", "N", "return of the episode so far")
    episode_length: np.ndarray = carried("i8", "N", "length of the episode so far")
    episode_hash: np.ndarray = carried("i8", "N", "CRC-32 of the episode so far, to check a replay")
    episode_info: np.ndarray = carried("f8", "N I 2", "numbers of `info` of it so far (`EpisodeInfo.combined`)")
    snapshot: np.ndarray = carried("u1", "N snapshot", "snapshot of the environment")
    held: np.ndarray = carried("f8", "X 4+A+Z+S", "the step that is held back (`sampling/idle_steps.py`)")
    held_obs: tuple[np.ndarray, ...] = carried(PER_LEAF, "X", "the observation of this step")
    added: dict[str, np.ndarray] = _ADDED


@dataclass(frozen=True)
class Minibatches:
    """The minibatches of one update: K epochs of M minibatches of G shards."""

    step_targets: np.ndarray = _planned("f4", "T*N 3+Q", "advantage, value target, old value, and old log_prob")
    sequences: np.ndarray = _planned("i4", "N*T 4", "of each: first step, environment, steps, slot of its state or −1")
    order: np.ndarray = _planned("i4", "K N*T", "indices of the sequences in the order of each epoch")
    bounds: np.ndarray = _planned("i4", "K M G+1", "shard g is order[k, bounds[k, m, g]:bounds[k, m, g + 1]]")
    steps: np.ndarray = _planned("i8", "K M", "valid steps of each minibatch, over all ranks")
    advantage_scale: np.ndarray = _planned("f8", "K M 2", "mean and 1 / standard deviation of advantages")
    coefficients: np.ndarray = _planned("f8", "coefficients", "coefficients of the loss in this update")


@dataclass(frozen=True)
class ShardResults:
    """The results of the gradient computation for each shard of a minibatch."""

    gradients: np.ndarray = shared(SHARD_OWNER, "LEARN", "f4", "G P", "gradients")
    total: np.ndarray = shared(PART_OWNER, "REDUCE", "f4", "P", "sum over the shards")
    loss_terms: np.ndarray = shared(SHARD_OWNER, "LEARN", "f8", "G terms", "the shard's part of the terms of the loss")
    max_log_ratio: np.ndarray = shared(SHARD_OWNER, "LEARN", "f8", "G", "largest |log ratio| of a step")
    minibatches: np.ndarray = shared(
        LEARNER, "LEARN", "f8", "B terms+2", "terms, |log ratio|, and norm of each, by GPU"
    )


@dataclass(frozen=True)
class OptimizerState:
    """What an optimizer step reads besides the gradient, and the state that it changes."""

    learning_rate: np.ndarray = shared(LEARNER, "PLAN", "f8", "1", "learning rate of the iteration")
    gradient_factor: np.ndarray = shared(LEARNER, "before STEP", "f8", "1", "scales the gradient to --max-grad-norm")
    steps: np.ndarray = shared(LEARNER, "before STEP", "f8", "1", "number of optimizer steps, including this one")
    moments: np.ndarray = shared(PART_OWNER, "STEP", "f4", "2 P", "moments of Adam")


@dataclass(frozen=True)
class EvaluationResults:
    """The results of the episodes of one evaluation that this rank plays."""

    returns: np.ndarray = shared(OWN_EPISODES, "EVALUATE", "f8", "E", "undiscounted returns")
    lengths: np.ndarray = shared(OWN_EPISODES, "EVALUATE", "i8", "E", "numbers of steps; 0 if the episode failed")
    info: np.ndarray = shared(OWN_EPISODES, "EVALUATE", "f8", "E I", "numbers of `info`; NaN where there are none")
    unrepeated: np.ndarray = shared(OWN_EPISODES, "EVALUATE", "?", "E", "whether it had another result when repeated")


@dataclass(frozen=True)
class Timings:
    """Times of the last commands, which the workers measure."""

    phase_seconds: np.ndarray = shared(WORKER, ANY_COMMAND, "f8", "W phases", "seconds of the last one by phase")
    command_interval: np.ndarray = shared(WORKER, ANY_COMMAND, "f8", "W 2", "start of the first, end of the last one")


@dataclass(frozen=True)
class Control:
    """Commands, acknowledgements, and progress. Other processes may read these fields while they are written."""

    commands: np.ndarray = shared(
        LEARNER, ANY, "i8", "W 12", "times sent, numbers of the first and last command; each: kind, two arguments"
    )
    begun: np.ndarray = shared(WORKER, ANY, "i8", "W", "number of the last command that it began")
    acknowledged: np.ndarray = shared(WORKER, ANY, "i8", "W", "number of the last command that it completed")
    learner_completed: np.ndarray = shared(LEARNER, ANY, "i8", "1", "the same for the learner's part")
    asked: np.ndarray = shared(WORKER, ANY, "i8", "W", "number of steps for which it has asked the learner to act")
    answered: np.ndarray = shared(LEARNER, ANY, "i8", "W", "number of them that the learner has answered")
    worker_blocked: np.ndarray = shared(WORKER, ANY, "i8", "W", "1 while it blocks on its queue and must be woken up")
    learner_blocked: np.ndarray = shared(LEARNER, ANY, "i8", "1", "1 while the learner blocks and must be woken up")
    finished_rollouts: np.ndarray = shared(
        OWN_ENVS, "COLLECT; read at any time", "i8", "N", "number of finished rollouts since iteration 0"
    )
    stop_early: np.ndarray = shared(
        LEARNER, "COLLECT; read at any time", "i8", "1", "iteration + 1 of the rollout that ends early"
    )
    drawn: np.ndarray = shared(
        WORKER, "START, COLLECT, EVALUATE", "?", "W 3", "whether an environment has drawn from a global generator"
    )
    progress: np.ndarray = shared(
        WORKER, f"START, {COUNTED}; read at any time", "i8", "W 2", "steps since iteration 0, and all other work"
    )
    """A change shows that the worker is not stalled. The steps are those that were begun. Other work is counted:
    restored environments and the steps replayed for them, steps of evaluations and extensions, and batches of gradient
    shards."""


@dataclass(frozen=True)
class Field:
    """One shared array. Its elements are written in `phase` only."""

    group: str
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    phase: str

    @property
    def path(self) -> str:
        """The name with its group: `group.name`."""
        return f"{self.group}.{self.name}"

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


def declared_arrays(view: type) -> dict[str, Mapping[str, Any]]:
    """Return what `shared` has declared for each array of a group, with those of extensions, by name."""
    own: dict[str, Mapping[str, Any]] = {
        field.name: field.metadata for field in dataclasses.fields(view) if field.metadata
    }
    for module in added("arrays"):
        own |= {name: field.metadata for name, field in module.ARRAYS.get(view, {}).items()}
    return own


def _length(axis: str, sizes: dict[str, int]) -> int:
    """The length of an axis such as "T", "T*N", "G+1", or "2"."""
    terms = (term.split("*") for term in axis.split("+"))
    return sum(math.prod(sizes[name] if name in sizes else int(name) for name in term) for term in terms)


def layout(sizes: dict[str, int], leaves: tuple[Leaf, ...]) -> tuple[Field, ...]:
    """Return the layout table of a run: all fields in the order of their memory.

    Args:
        sizes: length of each axis, by name.
        leaves: of the observation.
    """
    return tuple(field for group, view in GROUPS.items() for field in _group_fields(group, view, sizes, leaves))


def _group_fields(group: str, view: type, sizes: dict[str, int], leaves: tuple[Leaf, ...]) -> Iterator[Field]:
    for name, declared in declared_arrays(view).items():
        dtype, phase = declared["dtype"], declared["phase"]
        shape = tuple(_length(axis, sizes) for axis in declared["axes"].split())
        if dtype == PER_LEAF:
            for leaf in leaves:
                path = leaf.field.replace("obs", name, 1)
                yield Field(group, path, (*shape, *leaf.shape), np.dtype(leaf.dtype), phase)
        else:
            yield Field(group, name, shape, dtype, phase)


def aligned(size: int) -> int:
    """Round a size in bytes up to a multiple of ALIGNMENT."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def total_bytes(fields: Iterable[Field]) -> int:
    """Return the size in bytes of the shared memory for `fields`."""
    return sum(aligned(field.bytes) for field in fields)


def allocate(fields: Iterable[Field]) -> Tensor:
    """Allocate the shared memory for `fields`: zeros, uint8 [total_bytes]. Its memory segment has no name."""
    memory = torch.zeros(total_bytes(fields), dtype=torch.uint8)
    memory.share_memory_()  # type: ignore[no-untyped-call]
    return memory


class SharedBuffers:
    """Typed views of the shared memory of one run.

    The views of the groups of arrays are attributes of their own, in the order of their memory.

    Attributes:
        memory: the shared memory, uint8 [bytes].
        fields: the layout table.
        carries: the carry that even iterations read, and the carry that odd iterations read.
        arrays: every array by its path `group.name`, for code that handles all fields in the same way.
    """

    published: Published
    rollout: Rollout
    acting: Acting
    carry_even: Carry
    carry_odd: Carry
    minibatches: Minibatches
    shard_results: ShardResults
    optimizer: OptimizerState
    evaluation: EvaluationResults
    timings: Timings
    control: Control

    def __init__(self, fields: Iterable[Field], memory: Tensor) -> None:
        """Create the views.

        Args:
            fields: the layout table.
            memory: the result of `allocate(fields)` in this process or another one.
        """
        self.memory = memory
        self.fields = tuple(fields)
        self.arrays: dict[str, np.ndarray] = {}
        whole, offset = memory.numpy(), 0
        for field in self.fields:
            self.arrays[field.path] = whole[offset : offset + field.bytes].view(field.dtype).reshape(field.shape)
            offset += aligned(field.bytes)
        for group, view in GROUPS.items():
            arrays = self._arrays_of(group)
            own = {field.name: field.metadata for field in dataclasses.fields(view)}
            parts: dict[str, Any] = {name: array for name, array in arrays.items() if name in own}
            for leaves in (name for name, declared in own.items() if declared.get("dtype") == PER_LEAF):
                parts[leaves] = tuple(array for name, array in arrays.items() if name.partition("/")[0] == leaves)
            if "added" in own:
                parts["added"] = {name: arrays[name] for name in declared_arrays(view) if name not in own}
            setattr(self, group, view(**parts))
        self.carries = (self.carry_even, self.carry_odd)

    def carry_arrays(self, iteration: int) -> dict[str, np.ndarray]:
        """Return the arrays of the carry that `iteration` reads, by name. Each leaf of the observation has its own."""
        return self._arrays_of("carry_odd" if iteration % 2 else "carry_even")

    def _arrays_of(self, group: str) -> dict[str, np.ndarray]:
        return {field.name: self.arrays[field.path] for field in self.fields if field.group == group}


GROUPS: dict[str, type] = get_type_hints(SharedBuffers)
"""The views by group name, in the order of their memory."""
