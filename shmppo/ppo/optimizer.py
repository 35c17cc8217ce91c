"""Adds the gradients of the shards and steps the optimizer, for all parameters or for a part of them.

The optimizers are Adam (Kingma and Ba, arXiv 1412.6980) and plain gradient descent. They are elementwise, as is the sum
of the gradients, so each process can do this for a part of the parameters. All numbers are in shared memory.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from shmppo.config.train_config import TrainConfig
from shmppo.kernels.functions import adam, add_rows
from shmppo.parallel.shared_buffers import SharedBuffers

BETA1, BETA2 = 0.9, 0.999
"""Decay of the moments of Adam."""


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
        self._shards, self._total = results.gradients[:, added], results.total[added]
        arrays = buffers.published.weights, results.total, *buffers.optimizer.moments
        self._arrays = [array[stepped] for array in arrays]

    def add_gradients(self) -> None:
        """Write the sum of the gradients of all shards, in order."""
        add_rows(self._shards, self._total)

    def step(self) -> None:
        """Scale the gradient, and step, with the numbers that the learner has written to `OptimizerState`."""
        weights, gradient, *moments = self._arrays
        rate, factor = float(self._state.learning_rate[0]), float(self._state.gradient_factor[0])
        if self._name == "sgd":
            weights -= np.float32(rate) * (np.float32(factor) * gradient)
            return
        steps = int(self._state.steps[0])
        if steps == 1:  # of the run, or after --critic-warmup-steps
            for moment in moments:
                moment.fill(0)
        rate, scale = rate / (1 - _power(BETA1, steps)), 1 / math.sqrt(1 - _power(BETA2, steps))
        adam(self._arrays, factor, 1 - BETA1, 1 - BETA2, rate, scale, self._eps)


def _power(base: float, exponent: int) -> float:
    """Return base ** exponent by multiplications, because the bits of `**` depend on the C library."""
    result = 1.0
    while exponent:
        result = result * base if exponent % 2 else result
        base, exponent = base * base, exponent // 2
    return result


def optimizer_state(buffers: SharedBuffers) -> dict[str, Any]:
    """Return what a checkpoint stores of the optimizer, in the format of torch.optim. The moments are no copies."""
    steps, moments = buffers.optimizer.steps[0], torch.from_numpy(buffers.optimizer.moments)
    state = {"step": torch.tensor(steps), "exp_avg": moments[0], "exp_avg_sq": moments[1]}
    return {"state": {0: state} if steps else {}}


def load_optimizer_state(buffers: SharedBuffers, state: dict[str, Any]) -> None:
    """Restore what `optimizer_state` returned."""
    for own in state["state"].values():
        buffers.optimizer.steps[0] = float(own["step"])
        buffers.optimizer.moments[:] = np.stack([own["exp_avg"].numpy(), own["exp_avg_sq"].numpy()])
