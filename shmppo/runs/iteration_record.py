"""Record the data of one iteration, and find the first field in which two records differ. `shmppo.verify` uses this.

The fields are compared in the order in which an iteration computes them: the state at its start, the steps of the
rollout, the advantages, the minibatches, and the gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from shmppo.config.checks import require
from shmppo.lockstep.action_log import episode_ends
from shmppo.lockstep.learner import Learner
from shmppo.lockstep.worker_pool import WorkerPool
from shmppo.models.actor_critic import parameter_views
from shmppo.parallel.shared_buffers import Minibatches
from shmppo.ppo.gradients import ShardGradients, pack_steps
from shmppo.ppo.loss import Loss
from shmppo.runs.train_state import START_FIELDS, digest, leaves
from shmppo.utils.files import make_parent_directory, write_file

_STEP_FIELDS = (
    "first", "value", "actions", "log_prob", "policy_params", "reward", "terminated", "truncated", "ended_return",
    "ended_length", "ended_episode", "ended_info", "bootstrap",
)  # fmt: skip
"""Fields of `Rollout` in the order in which a step computes them. The observation comes before them, and what
extensions add after them."""


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
            parts: dict[str, Iterable[np.ndarray]] = {name: leaves(state[name]) for name in START_FIELDS}
            parts |= {"recurrent state": [carry.state], "episodes": [carry.first, carry.episode, carry.episode_length]}
            self._record.start = {f"{name} at the start": digest(arrays) for name, arrays in parts.items()}

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
            self._record.update["minibatches"] = digest(_used_parts(minibatches))
        return super().update(iteration, pool)

    def _reduce_results(self) -> tuple[dict[str, float], float]:
        """Record the weights before a minibatch, and its gradient."""
        result = super()._reduce_results()
        if self._active:
            self._place = divmod(len(self._record.update) // 2, self.config.minibatches)
            place = "(minibatch {1} of epoch {0})".format(*self._place)
            self._record.update[f"weights before {place}"] = digest([self._buffers.published.weights])
            self._record.update[f"gradients {place}"] = digest([self._buffers.shard_results.total])
        return result

    def _device_results(self, row: int) -> tuple[dict[str, float], float, float]:
        """Record the results of a minibatch on a device."""
        if self._active:
            epoch, minibatch = divmod(len(self._record.update) - 1, self.config.minibatches)
            results = self._buffers.shard_results.minibatches[row]
            self._record.update[f"results (minibatch {minibatch} of epoch {epoch})"] = digest([results])
        return super()._device_results(row)


class DumpLearner(RecordingLearner):
    """What training computed in some iterations. `shmppo verify --dump` wrote this text and the files that it explains.

    `numpy.load` opens a file. Axes: T steps of the rollout, N its columns (environments), R steps of a minibatch in the
    order of (step, sequence), without padding, so that they need no mask, J sequences, G gradient shards, P parameters,
    S recurrent state, A action, O policy parameters. Indices begin with 0.

    000001-rollout.npz: the first iteration.

        obs, reward, ...     [T, N, ...]  docs/internals/shared-memory.md explains them; 0 where no step is valid
        advantages           [T, N, 1]    in the unit of values
        obs_mean, obs_scale  the network gets (obs - obs_mean) * obs_scale, clipped to +-10 (with --normalize-obs)
        weights              [P]          after the iteration
        index/NAME           where a parameter is: weights[index["NAME"]] has its shape

    000001-minibatch-0-1.npz: minibatch 1 of epoch 0 of the first iteration.

        sequences        [J, 4]    of each sequence: first step, column, number of steps, slot of its state or -1
        shards           [G + 1]   shard g has the sequences shards[g]:shards[g + 1]
        states           [J, S]    recurrent state before the first step of each sequence
        sequence         [R]       index of the sequence of a step
        step             [R]       index of the step in arrays [T * N, ...]
        actions          [R, A]    as sampled, before clipping
        params, value    [R, O], [R]  what the network computed with `weights`; values are discounted returns
        log_prob         [R, A]    log-probability of each dimension of the action, in nats
        entropy          [R]       of the policy, in nats
        targets          [R, 3+Q]  advantage, value target, and the value and log_prob from when the step was taken
                                   (Q = A with --ratio per-dimension, else 1)
        advantage_scale  [2]       mean of the advantages, and the factor that normalizes them
        clip, value_clip, ..._coef                  numbers of the loss; infinite: no clipping
        training/...               terms of the loss, which training computed with float32
        weights          [P]       before the optimizer step; those after it are in the next file
        gradient         [P]       sum of the gradients of the shards, before --max-grad-norm
        shard_gradients  [G, P]    gradient of each shard

    These lines compute the loss of a minibatch with float64:

        import numpy as np

        m = {name: np.asarray(array, "f8") for name, array in np.load("000001-minibatch-0-0.npz").items()}
        advantage, target, old_value, *old_log_prob = m["targets"].T
        advantage = (advantage - m["advantage_scale"][0]) * m["advantage_scale"][1]
        log_prob = m["log_prob"].T if len(old_log_prob) > 1 else m["log_prob"].sum(1)
        ratio = np.exp(log_prob - np.stack(old_log_prob))
        smaller, larger = np.minimum(ratio, 1 + m["clip"]), np.maximum(ratio, 1 - m["clip"])
        policy_loss = -advantage * np.where(advantage > 0, smaller, larger).prod(0)
        clipped = old_value + np.clip(m["value"] - old_value, -m["value_clip"], m["value_clip"])
        value_loss = np.maximum((m["value"] - target) ** 2, (clipped - target) ** 2) / 2
        print(policy_loss.mean(), m["training/policy_loss"], value_loss.mean(), m["training/value_loss"])
        loss = m["policy_coef"] * policy_loss + m["value_coef"] * value_loss - m["entropy_coef"] * m["entropy"]
        print(loss.mean())
    """

    def __init__(self, out: Path, first: int, *arguments: Any) -> None:
        """Write the docstring of this class to README.md.

        Args:
            out: directory of the files.
            first: number of finished iterations before the first one that is written.
            arguments: of `Learner`.

        Raises:
            ConfigError: if README.md does not explain the loss of the run, or if it cannot be written.
        """
        super().__init__(IterationRecord(first), *arguments)
        plain = self.config.device == "cpu" and self.config.objective == "clip" and len(Loss(self.config).metrics) == 5
        require(plain, "--dump needs a run with --device cpu, --objective clip, and no further losses; leave it out")
        self._out, self._distribution = out, arguments[1].distribution
        self._shards = ShardGradients(self.config, self._distribution, self.model, self._buffers)
        make_parent_directory(out / "README.md", "--dump")
        write_file(out / "README.md", str(self.__doc__).replace("\n    ", "\n").encode())

    def update(self, iteration: int, pool: WorkerPool) -> dict[str, float]:
        """Write the minibatches, and then the rollout and the weights at the end."""
        self._record = IterationRecord(max(iteration, self._record.iteration))
        result, published = super().update(iteration, pool), self._buffers.published
        if self._active:
            parts = parameter_views(torch.arange(len(published.weights)), self.model)
            index = {f"index/{n}": part for n, part in zip(dict(self.model.named_parameters()), parts, strict=True)}
            after = {"obs_mean": published.obs_mean, "obs_scale": published.obs_scale, "weights": published.weights}
            arrays = cast(Any, self._record.steps | index | after)
            np.savez_compressed(self._out / f"{iteration + 1:06d}-rollout.npz", **arrays)
        return result

    def _reduce_results(self) -> tuple[dict[str, float], float]:
        """Write a minibatch, before its optimizer step."""
        terms, largest = super()._reduce_results()
        if self._active:
            config, planned, results = self.config, self._buffers.minibatches, self._buffers.shard_results
            cuts = planned.bounds[self._place]
            sequences = planned.sequences[planned.order[self._place[0], cuts[0] : cuts[-1]]].astype(np.int64)
            index, _, member = pack_steps(sequences, config.rows)
            params, values, *_ = self._shards.outputs(sequences)
            policy = self._distribution.normalized(params)
            actions = self._buffers.rollout.actions.reshape(-1, self._distribution.action_size)[index]
            arrays = {
                "sequences": sequences, "shards": cuts - cuts[0], "states": self._shards.initial_states(sequences),
                "sequence": member, "step": index, "actions": actions, "params": params, "value": values,
                "log_prob": self._distribution.log_prob(policy, actions), "entropy": self._distribution.entropy(policy),
                "targets": planned.step_targets[index], "advantage_scale": planned.advantage_scale[self._place],
                "clip": config.clip, "value_clip": config.clip if config.value_clip else np.inf,
                "value_coef": config.value_coef, "weights": self._buffers.published.weights, "gradient": results.total,
                "shard_gradients": results.gradients, **{f"training/{name}": value for name, value in terms.items()},
                **dict(zip(self._loss.coefficient_metrics, planned.coefficients, strict=True)),
            }  # fmt: skip
            name = "{:06d}-minibatch-{}-{}.npz".format(self._record.iteration + 1, *self._place)
            np.savez_compressed(self._out / name, **arrays)
        return terms, largest


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


def _text(values: np.ndarray) -> str:
    """Show at most four values of one step of one environment, with all their digits."""
    parts = [repr(value.item()) if values.dtype != np.float32 else str(value) for value in values[:4]]
    return " ".join([*parts, "..."] if len(values) > 4 else parts)
