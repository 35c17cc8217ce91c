"""Acting on the learner's device."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from shmppo.config.train_config import TrainConfig
from shmppo.models.actor_critic import ActorCritic
from shmppo.models.devices import copy_to, deterministic_algorithms, own_device
from shmppo.models.user_module import user_modules
from shmppo.parallel.shared_buffers import SharedBuffers
from shmppo.sampling.actor import TorchActing
from shmppo.spaces.normalization import leaf_statistics
from shmppo.utils.torch_utils import set_numeric_modes


class ActingServer:
    """Acts for all environments of a rank on the learner's device (--act-on device)."""

    def __init__(self, config: TrainConfig, model: ActorCritic, buffers: SharedBuffers) -> None:
        """Copy the model to the device."""
        self._acting, self._columns, self._own = buffers.acting, config.columns_by_worker, model
        self._copy = copy_to(model, own_device(config))
        slices, published = model.observation.normalized_slices, buffers.published
        statistics = leaf_statistics(slices, published.obs_mean, published.obs_scale, config.normalize_obs)
        self._network = TorchActing(self._copy, self._acting.obs, statistics, low=0, rows=config.rows)

    @torch.inference_mode()
    def load(self) -> None:
        """Copy the current weights to the device."""
        set_numeric_modes()  # a callback may have changed them
        torch._foreach_copy_(list(self._copy.parameters()), list(self._own.parameters()))

    @torch.inference_mode()
    def act(self, workers: Sequence[int]) -> None:
        """Compute the current step for all rows, and write those of some workers.

        The rows of the others contain anything, and do not matter (`is_row_independent`).
        """
        network, acting = self._network, self._acting
        network.state[:] = acting.state
        with deterministic_algorithms(user_modules(self._own)):
            network.forward()
        results = (network.params, acting.params), (network.values, acting.values), (network.state, acting.after)
        for columns in (self._columns[w] for w in workers):
            own = slice(columns.start, columns.stop)
            for source, target in results:
                target[own] = source[own]
