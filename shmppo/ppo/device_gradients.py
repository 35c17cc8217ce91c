"""Gradients on another device than the workers' memory: a GPU learns from the rollout of CPU workers.

Each field that the update reads is copied there once an iteration, from pinned shared memory; per minibatch the weights
go there and the gradient comes back. Acting and the optimizer stay where the shared memory is.
"""

from __future__ import annotations

import copy
import logging
import warnings
import weakref
from collections.abc import Iterable

import torch
from torch import Tensor

from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError
from shmppo.models.actor_critic import ActorCritic, move_parameters
from shmppo.models.distributions import Distribution
from shmppo.parallel.shared_buffers import SharedBuffers
from shmppo.ppo.gradients import ShardGradients

log = logging.getLogger(__name__)

GRADIENTS = "gradients"  # the field that comes back


def check_device(device: str) -> None:
    """Raises ConfigError if torch cannot use the device."""
    if device == "cpu":
        return
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:  # a torch without CUDA asserts
        reason = str(error).splitlines()[0]
        raise ConfigError(f"--device {device} cannot be used here ({reason}); use --device cpu") from error


class DeviceArena(SharedBuffers):
    """An arena whose tensors are copies on a device; its arrays are those of the shared memory."""

    def __init__(self, arena: SharedBuffers, device: str) -> None:
        super().__init__(arena.fields, arena.memory)
        self._device = device
        self._copies: dict[str, Tensor] = {}

    def tensor(self, name: str) -> Tensor:
        """The copy of a field. Asking for it is what makes it one of those that `upload` brings up to date."""
        if name not in self._copies:
            self._copies[name] = torch.zeros_like(super().tensor(name), device=self._device)
        return self._copies[name]

    def upload(self, names: Iterable[str] | None = None) -> None:
        """Copy fields to the device. None: all that were asked for, but those that come back."""
        for name in self._copies.keys() - {GRADIENTS} if names is None else names:
            self.tensor(name).copy_(super().tensor(name), non_blocking=True)

    def download(self, name: str) -> None:
        """Copy a field back."""
        super().tensor(name).copy_(self.tensor(name))


class DeviceGradients:
    """`ShardGradients` on a device, of all shards of a minibatch at once."""

    def __init__(
        self, config: TrainConfig, distribution: Distribution, model: ActorCritic, arena: SharedBuffers
    ) -> None:
        if config.device.startswith("cuda"):
            # Acting is in float32 too, and the first ratio of an update must be 1.
            torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
            warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
            self._pin(arena.memory)
        self._there = DeviceArena(arena, config.device)
        twin = copy.deepcopy(model).to(config.device)
        move_parameters(twin, self._there.tensor("weights"), keep=False)
        self._gradients = ShardGradients(config, distribution, twin, self._there)
        self._each_epoch = ("weights", "sequence_state") if config.refresh_states else ("weights",)

    def compute(self, epoch: int, minibatch: int, shards: Iterable[int]) -> None:
        """Write the gradients and the statistics of shards of a minibatch."""
        if epoch == minibatch == 0:
            self._there.upload()
        else:
            self._there.upload(("weights",) if minibatch else self._each_epoch)
        self._gradients.compute(epoch, minibatch, shards)
        self._there.download(GRADIENTS)

    def _pin(self, memory: Tensor) -> None:
        """Lock shared memory in place, so that the GPU copies from it directly; without that copies are only slower."""
        runtime = torch.cuda.cudart()
        failed = int(runtime.cudaHostRegister(memory.data_ptr(), memory.numel(), 0))
        if failed:
            log.info("the shared memory could not be pinned: error %d", failed)
        else:
            weakref.finalize(self, runtime.cudaHostUnregister, memory.data_ptr())
