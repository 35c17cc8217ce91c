"""The update on a GPU: whole minibatches with their loss, and the optimizer.

At the start of an update, everything that it reads is copied to the device. Minibatches then follow each other without
waiting for the device: the device itself finds the steps of each minibatch, and does not change the weights any more
after a minibatch that ends the update. The learner reads the results of an epoch afterwards. At the end of the update,
the weights and the optimizer's moments return to shared memory.

Sequences are padded to L steps, and their number J to one of a few sizes, for each of which a CUDA graph is recorded.

Axes: J padded sequences, R = L·J rows, P parameters; the others are those of `shmppo.parallel.shared_buffers`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shmppo.config.train_config import TrainConfig
from shmppo.envs.spec import EnvSpec
from shmppo.errors import memory_errors
from shmppo.models.actor_critic import ActorCritic, build_model, move_parameters, parameter_views
from shmppo.models.devices import copy_to, deterministic_algorithms, own_device
from shmppo.models.user_module import user_modules
from shmppo.parallel.shared_buffers import SharedBuffers
from shmppo.ppo.gradients import feature_losses
from shmppo.ppo.loss import Loss, LossInputs
from shmppo.ppo.optimizer import BETA1, BETA2
from shmppo.ppo.torch_gradients import StoredObservations, run_network
from shmppo.spaces.distributions import Distribution
from shmppo.utils.device_arrays import as_array, as_tensor

SIZE_RATIO = 1.125
"""Ratio of successive sizes of J."""


class DeviceUpdate:
    """Computes minibatches on a device, from copies of the shared memory."""

    def __init__(
        self, config: TrainConfig, distribution: Distribution, model: ActorCritic, buffers: SharedBuffers
    ) -> None:
        """Allocate the memory on the device of the configuration.

        Args:
            model: the network that learns. A copy of it is moved to the device.
        """
        self._config, self._distribution, self._buffers = config, distribution, buffers
        self._device, self._loss = own_device(config), Loss(config, distribution)
        self._copies: dict[str, Tensor] = {}
        self._model, self._user_modules = copy_to(model, self._device), user_modules(model)
        self._weights, self._moments = self._copy("published.weights"), self._copy("optimizer.moments")
        move_parameters(self._model, self._weights, keep=False)
        self._parameters = self._model.network_parameters
        self._gradient = torch.zeros_like(self._weights)
        self._views = parameter_views(self._gradient, self._model)[: len(self._parameters)]
        self._observations = StoredObservations(config, model, buffers, self._copy)
        self._feature_losses = feature_losses(self._model, self._observations, self._gradient.unsqueeze(0))
        self._minibatches = config.epochs * config.minibatches
        number = functools.partial(torch.zeros, (), device=self._device)
        self._next = number(dtype=torch.int64)  # index of the next minibatch
        self._running = number(dtype=torch.bool)  # whether no minibatch has ended the update
        self._first_limit = number(dtype=torch.float64)  # of |log ratio| in the first minibatch
        size = self._minibatches, len(self._loss.metrics) + 2
        self._results = torch.zeros(size, dtype=torch.float64, device=self._device)
        self._steps, self._rate = self._copy("optimizer.steps"), self._copy("optimizer.learning_rate")
        self._changed = [self._weights, self._moments, self._gradient, self._results]
        self._changed += [self._next, self._running, self._steps]
        self._graphs: dict[Any, Any] = {}

    def compute(self, epoch: int, minibatch: int, shards: range) -> None:
        """Compute one minibatch, and write its gradient and results to the shared memory, as the only shard."""
        first = epoch == minibatch == 0
        with self.modes():
            self._load(self._copies if first else ["published.weights"])
            self._next.fill_(epoch * self._config.minibatches + minibatch)
            terms, largest = self.compute_gradients(self._size_of(epoch, minibatch))
            results = self._buffers.shard_results
            torch.from_numpy(results.gradients)[0].copy_(self._gradient)
            results.loss_terms[0], results.max_log_ratio[0] = terms.tolist(), float(largest)

    def update(self, begin: int, end: int, first_limit: float) -> None:
        """Carry out some minibatches of an update, and write their results to the shared memory.

        Args:
            begin, end: the minibatches begin … end − 1 of all epochs.
            first_limit: limit of |log ratio| in the first minibatch, see `Learner`.
        """
        with self.modes():
            if begin == 0:
                self._load(self._copies)
                self._next.zero_()
                self._running.fill_(True)
                self._first_limit.fill_(first_limit)
            for k in range(begin, end):
                self._run(self._size_of(*divmod(k, self._config.minibatches)))
            self._buffers.shard_results.minibatches[: end - begin] = self._results[begin:end].cpu().numpy()
            if end == self._minibatches or end - begin == 1 or not self._running:
                torch.from_numpy(self._buffers.published.weights).copy_(self._weights)
                torch.from_numpy(self._buffers.optimizer.moments).copy_(self._moments)

    def _run(self, size: int) -> None:
        """Carry out the next minibatch. size: J."""
        if self._device.type != "cuda" or self._user_modules:  # code of the user may wait for the device
            self._step(*self.compute_gradients(size))
            return
        key = size, *(isinstance(x, float) for x in self._coefficients().values())
        if key not in self._graphs:
            before = [tensor.clone() for tensor in self._changed]
            self._step(*self.compute_gradients(size))  # libraries are loaded, and constants are copied
            torch._foreach_copy_(self._changed, before)
            graph = torch.cuda.CUDAGraph()
            pool = next(iter(self._graphs.values())).pool() if self._graphs else None
            with torch.cuda.graph(graph, pool=pool, stream=torch.cuda.current_stream()):
                self._step(*self.compute_gradients(size))
            self._graphs[key] = graph
        self._graphs[key].replay()

    def _size_of(self, epoch: int, minibatch: int) -> int:
        """Return J of a minibatch."""
        begin, end = self._buffers.minibatches.bounds[epoch, minibatch].tolist()
        return padded_size(self._config, end - begin)

    def compute_gradients(self, size: int) -> tuple[Tensor, Tensor]:
        """Compute the gradient of the next minibatch.

        Returns:
            (terms of the loss float64 [terms], largest |log ratio|).
        """
        config, rows = self._config, self._config.rows
        arange = functools.partial(torch.arange, device=self._device)
        begin, end = self._of_minibatch("bounds").unbind()
        place = begin + arange(size)
        order = self._copy("minibatches.order").index_select(0, (self._next // config.minibatches).view(1))[0]
        chosen = order.index_select(0, torch.where(place < end, place, begin))
        first, column, length, slot = self._copy("minibatches.sequences").index_select(0, chosen).long().unbind(1)
        offset = arange(config.sequence_steps).unsqueeze(1)
        counts = ((offset < length) & (place < end)).flatten()  # [R]
        index = ((first + torch.minimum(offset, length - 1)) * rows + column).flatten()  # padding repeats the last step
        state = self._copy("rollout.sequence_state").flatten(0, 1).index_select(0, slot.clamp(min=0) * rows + column)
        state = torch.where((slot < 0).unsqueeze(1), 0, state)

        def steps_of(path: str) -> Tensor:
            return self._copy(path).view(rows * config.rollout_steps, -1).index_select(0, index)

        obs = self._observations.at(index.view(config.sequence_steps, size))
        outputs = [output.flatten(0, 1) for output in run_network(self._model, obs, state, config.autocast)]
        params, values, *features = (output.detach() for output in outputs)
        targets = steps_of("minibatches.step_targets")
        inputs = LossInputs(
            config=config,
            distribution=self._distribution,
            coefficients=self._coefficients(),
            params=as_array(params),
            values=as_array(values),
            step_targets=as_array(targets),
            advantage_scale=as_array(self._of_minibatch("advantage_scale")),
            rollout=functools.cache(lambda name: as_array(steps_of(f"rollout.{name}"))),
        )
        by_params, by_values, found, log_ratios = map(as_tensor, self._loss.compute(inputs))
        steps = self._of_minibatch("steps")
        by_outputs = [by_params / steps, by_values / steps, *map(torch.zeros_like, features)]
        for one in self._feature_losses:
            read = features[0], index, steps_of("rollout.actions"), targets[:, 1], counts
            found[:, self._loss.metrics.index(one.metric)], by_features = one.compute(0, *read, steps)
            by_outputs[2] += by_features
        pairs = zip(outputs, by_outputs, strict=True)
        masked = [(output, torch.where(counts.view(-1, *[1] * (by.ndim - 1)), by, 0)) for output, by in pairs]
        loss = torch.stack([(output * by).sum() for output, by in masked]).sum()  # see `TorchGradients.backward`
        gradients = torch.autograd.grad(loss, self._parameters, materialize_grads=True)
        with torch.no_grad():
            torch._foreach_copy_(self._views, list(gradients))
        terms = torch.where(counts.unsqueeze(1), found, 0).sum(0, dtype=torch.float64) / steps
        return terms, torch.where(counts, log_ratios, 0).amax()

    @torch.no_grad()
    def _step(self, terms: Tensor, largest: Tensor) -> None:
        """Step the optimizer, as `Optimizer` does, unless this minibatch or one before it ends the update."""
        config, metrics = self._config, self._loss.metrics
        norm = self._gradient.double().square().sum().sqrt()
        numbers = torch.stack([terms[metrics.index("policy_loss")], terms[metrics.index("value_loss")], norm])
        self._running &= numbers.isfinite().all() & ((largest <= self._first_limit) | (self._next > 0))
        if config.target_kl is not None:
            self._running &= ~(terms[metrics.index("approx_kl")] > config.target_kl)
        self._steps += self._running
        factor = torch.where(norm > config.max_grad_norm, config.max_grad_norm / norm, 1.0).float()
        gradient, rate = self._gradient * factor, self._rate
        if config.optimizer == "adam":
            m, v = torch.where(self._steps == 1, 0.0, self._moments)
            m = m + (1 - BETA1) * (gradient - m)
            v = BETA2 * v + (1 - BETA2) * gradient.square()
            rate, scale = rate / (1 - BETA1**self._steps), (1 - BETA2**self._steps).rsqrt()
            gradient = m / (v.sqrt() * scale.float() + config.adam_eps)
            self._moments.copy_(torch.where(self._running, torch.stack([m, v]), self._moments))
        self._weights.copy_(torch.where(self._running, self._weights - rate.float() * gradient, self._weights))
        if config.log_std_min is not None and self._model.log_std is not None:
            self._model.log_std.clamp_(min=config.log_std_min)
        here = (torch.arange(self._minibatches, device=self._device) == self._next).unsqueeze(1)
        row = torch.cat([terms, largest.double().view(1), norm.view(1)])
        self._results.copy_(torch.where(here, row, self._results))
        self._next += 1

    def _of_minibatch(self, name: str) -> Tensor:
        """Return the entry of the next minibatch in an array [K, M, …] of the minibatches."""
        return self._copy(f"minibatches.{name}").flatten(0, 1).index_select(0, self._next.view(1))[0]

    def _coefficients(self) -> dict[str, Any]:
        """Return the coefficients of the loss by metric: numbers on the device, or 0.0."""
        known, copied = self._buffers.minibatches.coefficients, self._copy("minibatches.coefficients").float()
        values = [as_array(copied[k]) if known[k] else 0.0 for k in range(len(known))]
        return dict(zip(self._loss.coefficient_metrics, values, strict=True))

    def _copy(self, path: str) -> Tensor:
        """Return the copy of a shared array on the device. It is made at the first call."""
        if path not in self._copies:
            self._copies[path] = torch.from_numpy(self._buffers.arrays[path]).to(self._device, copy=True)
        return self._copies[path]

    def _load(self, paths: Iterable[str]) -> None:
        """Copy shared arrays to the device."""
        for path in paths:
            self._copies[path].copy_(torch.from_numpy(self._buffers.arrays[path]))

    @contextmanager
    def modes(self) -> Iterator[None]:
        """Compute with deterministic algorithms in float32, on a stream of its own, while the context is open."""
        with ExitStack() as stack:
            stack.enter_context(deterministic_algorithms(self._user_modules))
            stack.enter_context(torch.enable_grad())  # the code of an environment may have disabled gradients
            if self._device.type == "cuda":
                stack.enter_context(torch.cuda.stream(self._stream))
            yield

    @functools.cached_property
    def _stream(self) -> torch.cuda.Stream:
        """The stream of all work but the first copies, which it waits for."""
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.default_stream(self._device))
        return stream


def padded_size(config: TrainConfig, sequences: int) -> int:
    """Return J for a number of sequences: one of a few sizes, the first of which is that of whole sequences."""
    size = -(-config.rows * config.rollout_steps // (config.minibatches * config.sequence_steps))
    while size < sequences:
        size = max(size + 1, int(size * SIZE_RATIO))
    return size


def padded_share(config: TrainConfig, buffers: SharedBuffers) -> float:
    """Return the share of padding in the steps that the minibatches of an update have on a device."""
    sequences = np.diff(buffers.minibatches.bounds[..., [0, -1]]).ravel().tolist()
    steps = config.sequence_steps * sum(padded_size(config, count) for count in sequences)
    return 1 - config.epochs * int(buffers.rollout.valid_steps.sum()) / steps


def check_memory(config: TrainConfig, task: EnvSpec, buffers: SharedBuffers) -> None:
    """Compute a minibatch of zeros with twice as many sequences as whole ones, before workers are started.

    Raises ShmppoError if the memory of the device does not suffice.
    """
    if config.device != "cpu":
        buffers.minibatches.sequences[:, 2] = 1  # steps; the first plan replaces it
        model = build_model(config, task.observation, task.distribution)
        with memory_errors():
            update = DeviceUpdate(config, task.distribution, model, buffers)
            with update.modes():
                update.compute_gradients(2 * padded_size(config, 0))
