"""Record the data of one iteration, and find the first field in which two records differ. `shmppo.verify` uses this.

The fields are compared in the order in which an iteration computes them: the state at its start, the steps of the
rollout, the advantages, the minibatches, and the gradients.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from shmppo.lockstep.action_log import episode_ends
from shmppo.lockstep.learner import Learner
from shmppo.lockstep.worker_pool import WorkerPool
from shmppo.parallel.shared_buffers import Minibatches

_START_FIELDS = ("model", "optimizer", "schedule", "obs_moments", "return_moments", "discounted_return")
"""Keys of `Learner.state`."""
_STEP_FIELDS = (
    "first", "value", "actions", "log_prob", "policy_params", "reward", "terminated", "truncated", "ended_return",
    "ended_length", "ended_episode", "ended_info", "bootstrap",
)  # fmt: skip
"""Fields of `Rollout` in the order in which a step computes them. The observation comes before them, and what
extensions add after them."""


def state_digests(checkpoint: Mapping[str, Any]) -> dict[str, str]:
    """Return digests of the parts of a checkpoint that the next iteration depends on, by name.

    An exported policy has only some of them.
    """
    learner = checkpoint["learner"]
    parts = {name: learner[name] for name in _START_FIELDS if name in learner}
    parts |= {name: checkpoint[name] for name in ("carry", "actions", "episodes") if name in checkpoint}
    return {name: _digest(_leaves(part)) for name, part in parts.items()}


@dataclass
class IterationRecord:
    """The data of one iteration."""

    iteration: int
    """Number of finished iterations before it."""
    start: dict[str, str] = field(default_factory=dict)
    """Digests of the state at its start."""
    steps: dict[str, np.ndarray] = field(default_factory=dict)
    """Fields of the rollout by name, each [T, N, …]. Steps that are not valid are zero."""
    update: dict[str, str] = field(default_factory=dict)
    """Digests of the minibatches, and of the weights before each minibatch and its gradient."""


class RecordingLearner(Learner):
    """A learner that writes the data of one iteration into a record."""

    def __init__(self, record: IterationRecord, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._record = record

    def publish_statistics(self, iteration: int) -> None:
        """Record the state at the start of the iteration."""
        super().publish_statistics(iteration)
        if iteration == self._record.iteration:
            state, carry = self.state(), self._buffers.carries[iteration % 2]
            parts: dict[str, Iterable[np.ndarray]] = {name: _leaves(state[name]) for name in _START_FIELDS}
            parts |= {"recurrent state": [carry.state], "episodes": [carry.first, carry.episode, carry.episode_length]}
            self._record.start = {f"{name} at the start": _digest(arrays) for name, arrays in parts.items()}

    def update(self, iteration: int, pool: WorkerPool) -> dict[str, float]:
        """Record the rollout, its advantages, and its minibatches."""
        self._active = iteration == self._record.iteration
        if self._active:
            rollout, minibatches = self._buffers.rollout, self._buffers.minibatches
            advantages = minibatches.step_targets[:, 0].reshape(rollout.reward.shape)
            valid = np.arange(len(rollout.reward))[:, None] < rollout.valid_steps
            # Other elements of these fields are not written, and contain data of earlier rollouts.
            written = dict.fromkeys([name for name in _STEP_FIELDS if name.startswith("ended_")], episode_ends(rollout))
            names = [leaf.field for leaf in self.model.observation.leaves]
            arrays = dict(zip(names, rollout.obs, strict=True))
            arrays |= {name: getattr(rollout, name) for name in _STEP_FIELDS} | rollout.added
            arrays |= {"advantages": advantages}
            self._record.steps = {name: _compact(array, written.get(name, valid)) for name, array in arrays.items()}
            self._record.update["minibatches"] = _digest(_used_parts(minibatches))
        return super().update(iteration, pool)

    def _reduce_results(self) -> tuple[dict[str, float], float]:
        """Record the weights before a minibatch, and its gradient."""
        result = super()._reduce_results()
        if self._active:
            epoch, minibatch = divmod(len(self._record.update) // 2, self.config.minibatches)
            place = f"(minibatch {minibatch} of epoch {epoch})"
            self._record.update[f"weights before {place}"] = _digest([self._buffers.published.weights])
            self._record.update[f"gradients {place}"] = _digest([self._buffers.shard_results.total])
        return result

    def _device_results(self, row: int) -> tuple[dict[str, float], float, float]:
        """Record the results of a minibatch on a device."""
        if self._active:
            epoch, minibatch = divmod(len(self._record.update) - 1, self.config.minibatches)
            results = self._buffers.shard_results.minibatches[row]
            self._record.update[f"results (minibatch {minibatch} of epoch {epoch})"] = _digest([results])
        return super()._device_results(row)


def first_difference(one: IterationRecord, other: IterationRecord) -> str | None:
    """Name the first field in which two records differ, with its values or digests of them. None: they are equal."""
    return (
        _first_of(one.start, other.start) or _first_step(one.steps, other.steps) or _first_of(one.update, other.update)
    )


def _first_of(one: Mapping[str, str], other: Mapping[str, str]) -> str | None:
    for name in dict.fromkeys([*one, *other]):
        if one.get(name) != other.get(name):
            return f"{name}: {one.get(name)} and {other.get(name)}"
    return None


def _first_step(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> str | None:
    """Find the earliest step at which a field differs, its first such field, and the first such environment.

    Advantages come last, because they depend on later steps.
    """
    found: list[tuple[int, str]] = []
    for name in dict.fromkeys([*one, *other]):
        before, now = one.get(name, np.zeros(0)), other.get(name, np.zeros(0))
        if before.shape != now.shape:
            return f"{name} (shape): {before.shape} and {now.shape}"
        places = np.argwhere((before.view(np.uint8) != now.view(np.uint8)).any(axis=-1))
        if len(places) and (name != "advantages" or not found):
            t, n = places[0].tolist()
            found.append((t, f"{name} (step {t} of environment {n}): {_text(before[t, n])} and {_text(now[t, n])}"))
    return min(found, key=lambda place: place[0])[1] if found else None


def _compact(array: np.ndarray, written: np.ndarray) -> np.ndarray:
    """Copy a field [T, N, …]. Elements that were not written become 0."""
    flat = array.reshape(*array.shape[:2], -1)
    return np.where(written[:, :, None], flat, np.zeros((), flat.dtype))


def _used_parts(minibatches: Minibatches) -> Iterator[np.ndarray]:
    """Yield what the update reads of the minibatches. The memory behind these parts contains earlier minibatches."""
    used = int(minibatches.bounds[0, -1, -1])
    yield from (minibatches.sequences[:used], minibatches.order[:, :used], minibatches.bounds, minibatches.steps)
    yield from (minibatches.advantage_scale, minibatches.coefficients)


def _leaves(value: Any) -> Iterator[np.ndarray]:
    """Yield the arrays and numbers in the state of a learner."""
    if isinstance(value, (Mapping, list, tuple)):
        # A checkpoint of an earlier version may have its arrays in another order.
        for part in (value[name] for name in sorted(value, key=str)) if isinstance(value, Mapping) else value:
            yield from _leaves(part)
    elif isinstance(value, torch.Tensor):
        yield value.detach().cpu().numpy()
    else:
        yield np.frombuffer(repr(value).encode(), np.uint8)


def _digest(arrays: Iterable[np.ndarray]) -> str:
    """Return the first 16 digits of the SHA-256 of the bytes of arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def _text(values: np.ndarray) -> str:
    """Show at most four values of one step of one environment, with all their digits."""
    parts = [repr(value.item()) if values.dtype != np.float32 else str(value) for value in values[:4]]
    return " ".join([*parts, "..."] if len(values) > 4 else parts)
