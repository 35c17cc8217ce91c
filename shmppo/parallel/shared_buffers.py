"""The shared memory as data: every field with its shape, type, writer and phase; one arena holds them all.

The table is the contract between the learner and the workers, and the whole of the ownership rule:
in each phase a field has one writer per element, and nobody reads what another may write in that phase.

Phases: START (a worker's environments are made), PUBLISH, COLLECT, PLAN (the learner alone), LEARN, and
between its epochs REFRESH (with --refresh-states). What signals between phases is written in any of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from shmppo.config.train_config import TrainConfig
from shmppo.models.observations import ObservationSpec
from shmppo.utils.phase_timer import PHASES
from shmppo.utils.torch_utils import ALIGNMENT

SHARD_STATISTICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clipped", "max_abs_log_ratio", "steps")
PROGRESS = ("steps", "replayed")
"""The columns of "progress": steps begun since the start of the run, which tells where one failed; environments brought
back since the start of the process, steps replayed for that, and steps whose stored states were refreshed. That either
moves tells slow from stalled."""
ORDER = ("turn", "kind", "first", "second", "third")
"""The columns of "orders": the number of the order, counted for each worker; which it is, and its fields."""
STEP_TARGETS = ("advantage", "value_target", "value", "log_prob")
"""The columns of "step_targets": what the loss needs of each step; the last is Q columns, see "log_prob"."""


class UpdateNumbers(NamedTuple):
    """What the loss weighs its terms with in one update; the columns of "update_numbers"."""

    clip_range: float
    """ε"""
    entropy_coef: float
    penalty_coef: float
    """β"""


@dataclass(frozen=True)
class Sizes:
    """What the environment and the network add to the configuration."""

    observation: ObservationSpec  # its leaves, and D
    action: int  # A
    params: int  # width of the policy's parameters
    state: int  # S, the packed recurrent state of one environment; 0 without a core
    parameters: int  # P, the flat parameter vector, padding included
    snapshot: int = 0  # bytes of an environment's own state, where it offers it


@dataclass(frozen=True)
class Field:
    """One shared array. `writer` is who may write it, in `phase` only; in every other phase it is read-only."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    writer: str
    phase: str

    @property
    def carried(self) -> bool:
        """Whether it lives on from one rollout to the next."""
        return self.name.startswith("carry_")

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def shared_fields(config: TrainConfig, sizes: Sizes) -> tuple[Field, ...]:
    """The layout table of a run."""
    T, N, W = config.rollout_steps, config.num_envs, config.num_workers
    K, M, G = config.epochs, config.minibatches, config.shards
    D, A, S, P = sizes.observation.numbers, sizes.action, sizes.state, sizes.parameters
    leaves = sizes.observation.leaves
    Q = A if config.ratio == "per-dimension" else 1  # ratios per step
    old_params = sizes.params if config.objective == "penalty" else 0
    f32, f64, i64, i32, flag = torch.float32, torch.float64, torch.int64, torch.int32, torch.bool

    def field(writer: str, phase: str, name: str, dtype: torch.dtype, *shape: int) -> Field:
        return Field(name, shape, dtype, writer, phase)

    own = "worker, own columns"
    return (
        # what the learner publishes
        field("learner", "PUBLISH, between minibatches", "weights", f32, P),  # the learner's own, stepped in place
        field("learner", "PUBLISH, between minibatches", "version", i64, 1),
        field("learner", "PUBLISH", "obs_mean", f32, D),
        field("learner", "PUBLISH", "obs_scale", f32, D),  # 1 / standard deviation
        # the rollout
        *(field(own, "COLLECT", leaf.field, getattr(torch, leaf.dtype), T, N, *leaf.shape) for leaf in leaves),  # raw
        field(own, "COLLECT", "actions", f32, T, N, A),  # as sampled, before clipping
        field(own, "COLLECT", "log_prob", f32, T, N, Q),  # of the action, or of each of its dimensions
        field(own, "COLLECT", "policy_params", f32, T, N, old_params),  # for the closed-form KL
        field(own, "COLLECT", "value", f32, T, N),
        field(own, "COLLECT", "bootstrap", f32, T, N),  # V after a truncated step, and after step T − 1
        field(own, "COLLECT", "reward", f64, T, N),  # raw
        field(own, "COLLECT", "first", flag, T, N),  # obs[t] begins an episode
        field(own, "COLLECT", "terminated", flag, T, N),
        field(own, "COLLECT", "truncated", flag, T, N),
        field(own, "COLLECT, REFRESH", "sequence_state", f32, config.state_slots, N, S),  # of rows that go on
        field(own, "REFRESH", "state_drift", f64, N, 2),  # sum of squared changes of stored states, and numbers in it
        field(own, "COLLECT", "ended_return", f64, T, N),  # raw return of the episode that ended with step t
        field(own, "COLLECT", "ended_length", i64, T, N),
        field(own, "COLLECT", "taken", i64, N),  # steps of the rollout that exist: T, or fewer if it was ended early
        field(own, "COLLECT", "obs_moments", f64, N, 2, D),  # mean and M2 of this rollout's observations
        # the carry: read [i mod 2], written [(i + 1) mod 2]
        *(
            field(own, "START, COLLECT", f"carry_{leaf.field}", getattr(torch, leaf.dtype), 2, N, *leaf.shape)
            for leaf in leaves
        ),
        field(own, "START, COLLECT", "carry_state", f32, 2, N, S),
        field(own, "START, COLLECT", "carry_first", flag, 2, N),
        field(own, "START, COLLECT", "carry_episode", i64, 2, N),  # number of the episode in progress
        field(own, "START, COLLECT", "carry_return", f64, 2, N),
        field(own, "START, COLLECT", "carry_length", i64, 2, N),
        field(own, "START, COLLECT", "carry_hash", i64, 2, N),  # of the episode so far, to check a replay by
        field(own, "START, COLLECT", "carry_snapshot", torch.uint8, 2, N, sizes.snapshot),
        # the plan of an update
        field("learner", "PLAN", "step_targets", f32, T * N, len(STEP_TARGETS) - 1 + Q),
        field("learner", "PLAN", "rows", i32, N * T, 4),  # SEQUENCE_FIELDS of sequences.py
        field("learner", "PLAN", "order", i32, K, N * T),  # rows in the order of each epoch
        field("learner", "PLAN", "bounds", i32, K, M, G + 1),  # shard g is order[k, bounds[g]:bounds[g + 1]]
        field("learner", "PLAN", "minibatch_steps", i64, K, M),
        field("learner", "PLAN", "advantage_scale", f64, K, M, 2),  # mean and 1 / standard deviation
        field("learner", "PLAN", "update_numbers", f64, len(UpdateNumbers._fields)),
        # gradients
        field("process of the shard", "LEARN", "gradients", f32, G, P),  # the learner adds them up in the first
        field("process of the shard", "LEARN", "shard_statistics", f64, G, len(SHARD_STATISTICS)),
        # measurement, one row per worker (row 0 where the learner samples by itself)
        field("worker, own row", "COLLECT, REFRESH, LEARN", "phase_seconds", f64, max(W, 1), len(PHASES)),
        field(own, "COLLECT", "step_seconds", f32, T if config.step_times else 0, N),
        field("worker, own row", "COLLECT, REFRESH, LEARN", "stamps", f64, max(W, 1), 2),  # monotonic start and end
        # the control table: fields that are read while they may be written
        field("learner", "any; read at any time", "orders", i64, max(W, 1), len(ORDER)),
        field("worker, own row", "any; read at any time", "answers", i64, max(W, 1)),  # turns carried out
        field("worker, own row", "any; read at any time", "worker_asleep", i64, max(W, 1)),  # 1: has to be rung
        field("learner", "any; read at any time", "learner_asleep", i64, 1),  # likewise
        field(own, "COLLECT; read at any time", "rollouts", i64, N),  # finished since the start of the run
        field("learner", "COLLECT; read at any time", "halt", i64, 1),  # rollouts of this number end early
        field(
            "worker, own row", "START, COLLECT, REFRESH; read at any time", "progress", i64, max(W, 1), len(PROGRESS)
        ),
    )


def aligned(size: int) -> int:
    """`size` in bytes, rounded up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def total_bytes(fields: Iterable[Field]) -> int:
    """Bytes of the arena that holds `fields`."""
    return sum(aligned(field.bytes) for field in fields)


def allocate(fields: Iterable[Field]) -> Tensor:
    """One zeroed shared tensor for the whole table, uint8 [total_bytes]. Its segment has no name to leak."""
    return torch.zeros(total_bytes(fields), dtype=torch.uint8).share_memory_()


class SharedBuffers:
    """Views of one arena: `tensor(name)` and `array(name)` share its memory."""

    def __init__(self, fields: Iterable[Field], memory: Tensor) -> None:
        self.memory = memory
        self.fields = tuple(fields)
        self._tensors: dict[str, Tensor] = {}
        offset = 0
        for field in self.fields:
            flat = memory[offset : offset + field.bytes]
            self._tensors[field.name] = flat.view(field.dtype).view(field.shape)
            offset += aligned(field.bytes)
        self._arrays = {name: tensor.numpy() for name, tensor in self._tensors.items()}

    @property
    def carry_names(self) -> list[str]:
        """The fields of the carry."""
        return [field.name for field in self.fields if field.carried]

    def tensor(self, name: str) -> Tensor:
        return self._tensors[name]

    def array(self, name: str) -> np.ndarray:
        return self._arrays[name]
