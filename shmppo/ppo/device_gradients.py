"""Gradients on a GPU. Acting and the optimizer stay on the CPU.

Once per iteration, the observations and their statistics are copied from pinned shared memory to the device. For each
minibatch, the weights are copied to the device, and the gradient is copied back.
"""

from __future__ import annotations

import copy
import logging
import warnings
import weakref
from typing import Any

import torch
from torch import Tensor

from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError
from shmppo.models.actor_critic import ActorCritic, move_parameters, parameter_offsets
from shmppo.parallel.shared_buffers import SharedBuffers
from shmppo.ppo.gradients import ShardGradients
from shmppo.ppo.torch_gradients import GradientInputs, TorchGradients
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


class DeviceGradients(ShardGradients):
    """Computes the gradients of shards on a device."""

    def __init__(
        self, config: TrainConfig, distribution: Distribution, model: ActorCritic, buffers: SharedBuffers
    ) -> None:
        """Allocate the memory on the device of the configuration.

        Args:
            model: the network that learns. A copy of it is moved to the device.
            buffers: the shared buffers. With CUDA their memory is pinned.
        """
        device = config.device
        if device.startswith("cuda"):
            # Without TF32, gradients have the precision of acting. The first ratio of an update must be close to 1.
            torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
            warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
            self._pin(buffers.memory)
        self._host = host = GradientInputs.of(buffers)
        obs = tuple(torch.zeros_like(leaf, device=device) for leaf in host.obs)
        self._inputs = GradientInputs(obs, *(torch.zeros_like(tensor, device=device) for tensor in host[1:]))
        self._host_gradients = torch.from_numpy(buffers.shard_results.gradients)
        self._device_gradients = torch.zeros_like(self._host_gradients, device=device)
        offsets, size = parameter_offsets(model)
        self._size = [*offsets, size][len(model.network_parameters)]  # extensions compute the rest on the CPU
        device_model = copy.deepcopy(model).to(device)
        move_parameters(device_model, self._inputs.weights, keep=False)
        network = TorchGradients(config, device_model, self._inputs, self._device_gradients)
        super().__init__(config, distribution, model, buffers, network)

    def compute(self, epoch: int, minibatch: int, shards: range) -> None:
        """Copy what has changed to the device, compute the gradients of some shards there, and copy them back."""
        inputs, host = self._inputs, self._host
        pairs = [(inputs.weights, host.weights)]
        if epoch == minibatch == 0:  # the observations and their statistics
            pairs += zip([*inputs.obs, *inputs[1:3]], [*host.obs, *host[1:3]], strict=True)
        for target, source in pairs:
            target.copy_(source, non_blocking=True)
        self._device_gradients.zero_()
        super().compute(epoch, minibatch, shards)
        self._host_gradients[:, : self._size].copy_(self._device_gradients[:, : self._size])

    def _pin(self, memory: Tensor) -> None:
        """Pin the shared memory, so that the GPU copies from it directly. If this fails, copies are slower."""
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        error = int(runtime.cudaHostRegister(memory.data_ptr(), memory.numel(), 0))
        if error:
            log.info("the shared memory could not be pinned: CUDA error %d", error)
        else:
            weakref.finalize(self, runtime.cudaHostUnregister, memory.data_ptr())
