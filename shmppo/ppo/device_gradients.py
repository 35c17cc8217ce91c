"""Gradients on a GPU, from the rollout of CPU workers.

Each field that the update reads is copied to the device once an iteration, from pinned shared memory. For each
minibatch the weights are copied there, and the gradient back. Acting and the optimizer stay on the CPU.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import warnings
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError
from shmppo.models.actor_critic import ActorCritic, move_parameters
from shmppo.models.distributions import Distribution
from shmppo.parallel.shared_buffers import SharedBuffers
from shmppo.ppo.gradients import GradientInputs, ShardGradients

log = logging.getLogger(__name__)


def check_device(device: str) -> None:
    """Raise ConfigError if torch cannot use the device."""
    if device == "cpu":
        return
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA raises an AssertionError
        reason = str(error).splitlines()[0]
        raise ConfigError(f"--device {device} cannot be used here ({reason}); use --device cpu") from error


class DeviceCopies:
    """Copies of the gradient inputs on a device.

    Attributes:
        inputs: the copies; they change in `upload`.
    """

    def __init__(self, host: GradientInputs, device: str) -> None:
        self._host = host
        values: dict[str, Any] = {
            name: tuple(torch.zeros_like(leaf, device=device) for leaf in value)
            if isinstance(value, tuple)
            else torch.zeros_like(value, device=device)
            for name, value in vars(host).items()
        }
        self.inputs = GradientInputs(**values)

    def upload(self, names: Iterable[str] | None = None) -> None:
        """Copy fields to the device. None: all of them."""
        for name in [f.name for f in dataclasses.fields(GradientInputs)] if names is None else names:
            for target, source in zip(_tensors(self.inputs, name), _tensors(self._host, name), strict=True):
                target.copy_(source, non_blocking=True)


def _tensors(inputs: GradientInputs, name: str) -> tuple[Tensor, ...]:
    value = getattr(inputs, name)
    return value if isinstance(value, tuple) else (value,)


class DeviceGradients:
    """`ShardGradients` on a device, for all shards of a minibatch at once."""

    def __init__(
        self, config: TrainConfig, distribution: Distribution, model: ActorCritic, buffers: SharedBuffers
    ) -> None:
        if config.device.startswith("cuda"):
            # Acting is in float32, too, and the first ratio of an update must be 1.
            torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
            warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
            self._pin(buffers.memory)
        self._copies = DeviceCopies(GradientInputs.of(buffers), config.device)
        self._host_gradients = torch.from_numpy(buffers.shard_results.gradients)
        self._device_gradients = torch.zeros_like(self._host_gradients, device=config.device)
        device_model = copy.deepcopy(model).to(config.device)
        move_parameters(device_model, self._copies.inputs.weights, keep=False)
        self._gradients = ShardGradients(
            config, distribution, device_model, buffers, self._copies.inputs, self._device_gradients
        )
        self._each_epoch = ("weights", "sequence_state") if config.refresh_states else ("weights",)

    def compute(self, epoch: int, minibatch: int, shards: Iterable[int]) -> None:
        """Write the gradients and the loss terms of shards of a minibatch."""
        if epoch == minibatch == 0:
            self._copies.upload()
        else:
            self._copies.upload(("weights",) if minibatch else self._each_epoch)
        self._gradients.compute(epoch, minibatch, shards)
        self._host_gradients.copy_(self._device_gradients)

    def _pin(self, memory: Tensor) -> None:
        """Pin the shared memory, so that the GPU copies from it directly. Without that, copies are slower."""
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        failed = int(runtime.cudaHostRegister(memory.data_ptr(), memory.numel(), 0))
        if failed:
            log.info("the shared memory could not be pinned: error %d", failed)
        else:
            weakref.finalize(self, runtime.cudaHostUnregister, memory.data_ptr())
