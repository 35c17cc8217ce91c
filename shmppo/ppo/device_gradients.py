"""Gradients on a GPU. Acting and the optimizer stay on the CPU.

Once per iteration, every field that the update reads is copied from pinned shared memory to the device. For each
minibatch, the weights are copied to the device, and the gradient is copied back.
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
from shmppo.parallel.shared_buffers import SharedBuffers
from shmppo.ppo.losses import GradientInputs, ShardGradients
from shmppo.spaces.distributions import Distribution

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
        inputs: the copies. `upload` updates them.
    """

    def __init__(self, host: GradientInputs, device: str) -> None:
        """Allocate the copies.

        Args:
            host: the tensors to copy, on the CPU.
            device: name of the device for torch.
        """
        self._host = host
        values: dict[str, Any] = {
            name: tuple(torch.zeros_like(leaf, device=device) for leaf in value)
            if isinstance(value, tuple)
            else torch.zeros_like(value, device=device)
            for name, value in vars(host).items()
        }
        self.inputs = GradientInputs(**values)

    def upload(self, names: Iterable[str] | None = None) -> None:
        """Copy fields to the device. names: names of the fields of `GradientInputs`. None: all of them."""
        for name in [f.name for f in dataclasses.fields(GradientInputs)] if names is None else names:
            for target, source in zip(_tensors(self.inputs, name), _tensors(self._host, name), strict=True):
                target.copy_(source, non_blocking=True)


def _tensors(inputs: GradientInputs, name: str) -> tuple[Tensor, ...]:
    """Return the tensors of a field."""
    value = getattr(inputs, name)
    return value if isinstance(value, tuple) else (value,)


class DeviceGradients:
    """Computes the gradients of shards on a device. It has the interface of `ShardGradients`."""

    def __init__(
        self, config: TrainConfig, distribution: Distribution, model: ActorCritic, buffers: SharedBuffers
    ) -> None:
        """Allocate the memory on the device of the configuration.

        Args:
            model: the network that learns. A copy of it is moved to the device.
            buffers: the shared buffers. With CUDA their memory is pinned.
        """
        if config.device.startswith("cuda"):
            # Without TF32, gradients have the precision of acting. The first ratio of an update must be close to 1.
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
        """Copy what has changed to the device, compute the gradients of some shards there, and copy them back."""
        if epoch == minibatch == 0:
            self._copies.upload()
        else:
            self._copies.upload(("weights",) if minibatch else self._each_epoch)
        self._gradients.compute(epoch, minibatch, shards)
        self._host_gradients.copy_(self._device_gradients)

    def _pin(self, memory: Tensor) -> None:
        """Pin the shared memory, so that the GPU copies from it directly. If this fails, copies are slower."""
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        error = int(runtime.cudaHostRegister(memory.data_ptr(), memory.numel(), 0))
        if error:
            log.info("the shared memory could not be pinned: CUDA error %d", error)
        else:
            weakref.finalize(self, runtime.cudaHostUnregister, memory.data_ptr())
