"""The optimizers, for all parameters or for a part of them. Their state is in shared memory.

Adam (Kingma and Ba, arXiv 1412.6980), AdamW (Loshchilov and Hutter, arXiv 1711.05101), and plain gradient descent. All
of them are elementwise, so each process can step a part of the parameters.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from shmppo.config.train_config import TrainConfig
from shmppo.parallel.shared_buffers import SharedBuffers
from shmppo.utils.partition import partition

BETA1, BETA2 = 0.9, 0.999
"""Decay of the moments of Adam."""
BLOCK = 64
"""Parts begin at multiples of this number, so torch's vectors contain the same numbers for each division."""


class Optimizer:
    """Steps the optimizer for a part of the parameters."""

    def __init__(self, config: TrainConfig, buffers: SharedBuffers, part: int = 0, parts: int = 1) -> None:
        """Create views of the shared memory. part, parts: which part of how many."""
        self._name, self._eps, self._decay = config.optimizer, config.adam_eps, config.weight_decay
        self._scalars, size = buffers.optimizer.scalars, buffers.published.weights.size
        blocks = partition(-(-size // BLOCK), parts, part)
        own = slice(blocks.start * BLOCK, min(blocks.stop * BLOCK, size))
        arrays = buffers.published.weights, buffers.shard_results.total, *buffers.optimizer.moments
        self._arrays = [torch.from_numpy(array[own]) for array in arrays]
        self._count = torch.zeros(())

    @torch.no_grad()
    def step(self) -> None:
        """Scale the gradient, and step, with the numbers that the learner has written to `OptimizerState.scalars`."""
        weights, gradient, *moments = self._arrays
        rate, scale, steps = self._scalars.tolist()
        if scale != 1:
            gradient.mul_(scale)
        if self._name == "sgd":
            weights.add_(gradient.add(weights, alpha=self._decay) if self._decay else gradient, alpha=-rate)
            return
        fused = torch._fused_adam_ if self._name == "adam" else torch._fused_adamw_
        fused(
            [weights], [gradient], [moments[0]], [moments[1]], [], [self._count.fill_(steps)], lr=rate, beta1=BETA1,
            beta2=BETA2, weight_decay=self._decay, eps=self._eps, amsgrad=False, maximize=False,
        )  # fmt: skip


def optimizer_state(buffers: SharedBuffers) -> dict[str, Any]:
    """Return what a checkpoint stores of the optimizer, in the format of torch.optim."""
    moments, steps = torch.from_numpy(buffers.optimizer.moments.copy()), buffers.optimizer.scalars[2]
    if not moments.any():  # there was no step, or the optimizer has no moments
        return {"state": {}}
    return {"state": {0: {"step": torch.tensor(steps), "exp_avg": moments[0], "exp_avg_sq": moments[1]}}}


def load_optimizer_state(buffers: SharedBuffers, state: dict[str, Any]) -> None:
    """Restore what `optimizer_state` returned."""
    for own in state["state"].values():
        buffers.optimizer.scalars[2] = float(own["step"])
        buffers.optimizer.moments[:] = np.stack([own["exp_avg"].numpy(), own["exp_avg_sq"].numpy()])
