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
from shmppo.sampling.row_independence import is_row_independent
from shmppo.spaces.normalization import leaf_statistics
from shmppo.utils.torch_utils import set_numeric_modes


class ActingServer:
    """Acts for all environments of a rank on the learner's device (--act-on device)."""

    def __init__(self, config: TrainConfig, model: ActorCritic, buffers: SharedBuffers) -> None:
        """Copy the model to the device."""
        self._acting, self._columns, self._own = buffers.acting, config.columns_by_worker, model
        self._copy, self._user_modules = copy_to(model, own_device(config)), user_modules(model)
        slices, published = model.observation.normalized_slices, buffers.published
        statistics = leaf_statistics(slices, published.obs_mean, published.obs_scale, config.normalize_obs)
        self._network = TorchActing(self._copy, self._acting.obs, statistics, low=0, rows=config.rows)

    def is_row_independent(self) -> bool:
        """Whether the outputs for an environment do not depend on the others, see `is_row_independent`."""
        with deterministic_algorithms(self._user_modules):
            return is_row_independent(self._copy, len(self._network.state))

    @torch.inference_mode()
    def load(self) -> None:
        """Copy the current weights to the device."""
        torch._foreach_copy_(list(self._copy.parameters()), list(self._own.parameters()))

    @torch.inference_mode()
    def act(self, workers: Sequence[int]) -> None:
        """Compute the current step for all rows, and write those of some workers.

        The rows of the others may be of another step. They do not matter (see `is_row_independent`).
        """
        network, acting = self._network, self._acting
        network.state[:] = acting.state
        with deterministic_algorithms(self._user_modules):
            network.forward()
        set_numeric_modes()  # the network may be the user's
        results = (network.params, acting.params), (network.values, acting.values), (network.state, acting.after)
        for columns in (self._columns[w] for w in workers):
            own = slice(columns.start, columns.stop)
            for source, target in results:
                target[own] = source[own]
