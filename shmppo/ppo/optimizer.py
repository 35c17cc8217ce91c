"""Adds the gradients of the shards and steps the optimizer, for all parameters or for a part of them.

The optimizers are Adam (Kingma and Ba, arXiv 1412.6980) and plain gradient descent. They are elementwise, as is the sum
of the gradients, so each process can do this for a part of the parameters. All numbers are in shared memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from shmppo.config.train_config import TrainConfig
from shmppo.parallel.process_group import add_rows
from shmppo.parallel.shared_buffers import SharedBuffers
from shmppo.utils.partition import partition

BETA1, BETA2 = 0.9, 0.999
"""Decay of the moments of Adam."""
BLOCK = 64
"""Parts begin at multiples of this number, so torch's vectors hold the same numbers with any division into parts."""


def divide_parameters(parameters: int, parts: int, index: int) -> range:
    """Divide all parameters into `parts` ranges of nearly equal size, and return range `index`."""
    blocks = partition(-(-parameters // BLOCK), parts, index)
    return range(blocks.start * BLOCK, min(blocks.stop * BLOCK, parameters))


class Optimizer:
    """Adds the gradients of the shards, and steps the optimizer, for a part of the parameters."""

    def __init__(self, config: TrainConfig, buffers: SharedBuffers, sums: range, steps: range) -> None:
        """Create views of the shared memory.

        Args:
            sums: the parameters whose gradients it adds.
            steps: the parameters that it steps.
        """
        self._name, self._eps = config.optimizer, config.adam_eps
        self._state, results = buffers.optimizer, buffers.shard_results
        added, stepped = slice(sums.start, sums.stop), slice(steps.start, steps.stop)
        self._shards = torch.from_numpy(results.gradients[:, added]).unbind(0)
        self._total = torch.from_numpy(results.total[added])
        arrays = buffers.published.weights, results.total, *buffers.optimizer.moments
        self._arrays = [torch.from_numpy(array[stepped]) for array in arrays]
        self._count = torch.zeros(())

    def add_gradients(self) -> None:
        """Write the sum of the gradients of all shards, in order."""
        add_rows(self._shards, self._total)

    @torch.no_grad()
    def step(self) -> None:
        """Scale the gradient, and step, with the numbers that the learner has written to `OptimizerState`."""
        weights, gradient, *moments = self._arrays
        rate, factor = float(self._state.learning_rate[0]), float(self._state.gradient_factor[0])
        if factor != 1:
            gradient.mul_(factor)
        if self._name == "sgd":
            weights.add_(gradient, alpha=-rate)
            return
        if self._state.steps[0] == 1:  # of the run, or after --critic-warmup-steps
            torch._foreach_zero_(moments)
        torch._fused_adam_(
            [weights], [gradient], [moments[0]], [moments[1]], [], [self._count.fill_(float(self._state.steps[0]))],
            lr=rate, beta1=BETA1, beta2=BETA2, weight_decay=0.0, eps=self._eps, amsgrad=False, maximize=False,
        )  # fmt: skip


def optimizer_state(buffers: SharedBuffers) -> dict[str, Any]:
    """Return what a checkpoint stores of the optimizer, in the format of torch.optim."""
    steps, moments = buffers.optimizer.steps[0], torch.from_numpy(buffers.optimizer.moments.copy())
    state = {"step": torch.tensor(steps), "exp_avg": moments[0], "exp_avg_sq": moments[1]}
    return {"state": {0: state} if steps else {}}


def load_optimizer_state(buffers: SharedBuffers, state: dict[str, Any]) -> None:
    """Restore what `optimizer_state` returned."""
    for own in state["state"].values():
        buffers.optimizer.steps[0] = float(own["step"])
        buffers.optimizer.moments[:] = np.stack([own["exp_avg"].numpy(), own["exp_avg_sq"].numpy()])
