"""Adds the gradients of the shards and steps the optimizer, for all parameters or for a part of them.

The optimizers are Adam (Kingma and Ba, arXiv 1412.6980), AdamW (Loshchilov and Hutter, arXiv 1711.05101), and plain
gradient descent. They are elementwise, as is the sum of the gradients, so each process can do this for a part of the
parameters. All numbers are in shared memory.
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


class Optimizer:
    """Adds the gradients of the shards, and steps the optimizer, for a part of the parameters."""

    def __init__(self, config: TrainConfig, buffers: SharedBuffers, part: int = 0, parts: int = 1) -> None:
        """Create views of the shared memory. part, parts: which part of how many."""
        self._name, self._eps, self._decay = config.optimizer, config.adam_eps, config.weight_decay
        self._state, size = buffers.optimizer, buffers.published.weights.size
        blocks = partition(-(-size // BLOCK), parts, part)
        own = slice(blocks.start * BLOCK, min(blocks.stop * BLOCK, size))
        arrays = buffers.published.weights, buffers.shard_results.total, *buffers.optimizer.moments
        self._arrays = [torch.from_numpy(array[own]) for array in arrays]
        self._shards = torch.from_numpy(buffers.shard_results.gradients[:, own]).unbind(0)
        self._count = torch.zeros(())

    def add_gradients(self) -> None:
        """Write the sum of the gradients of all shards, in order."""
        add_rows(self._shards, self._arrays[1])

    @torch.no_grad()
    def step(self) -> None:
        """Scale the gradient, and step, with the numbers that the learner has written to `OptimizerState`."""
        weights, gradient, *moments = self._arrays
        rate, factor = float(self._state.learning_rate[0]), float(self._state.gradient_factor[0])
        if factor != 1:
            gradient.mul_(factor)
        if self._name == "sgd":
            weights.add_(gradient.add(weights, alpha=self._decay) if self._decay else gradient, alpha=-rate)
            return
        if self._state.steps[0] == 1:  # of the run, or after --critic-warmup-steps
            torch._foreach_zero_(moments)
        fused = torch._fused_adam_ if self._name == "adam" else torch._fused_adamw_
        fused(
            [weights], [gradient], [moments[0]], [moments[1]], [], [self._count.fill_(float(self._state.steps[0]))],
            lr=rate, beta1=BETA1, beta2=BETA2, weight_decay=self._decay, eps=self._eps, amsgrad=False, maximize=False,
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
