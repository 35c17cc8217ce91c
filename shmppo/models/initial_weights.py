"""The initial weights of a network: random orthogonal matrices, and biases of 0."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from shmppo.kernels import supported_variants
from shmppo.kernels.functions import orthonormalize


@torch.no_grad()
def initialize(module: nn.Module, gain: float, generator: np.random.Generator) -> None:
    """Fill the weights of all layers of a module with random matrices, and set their biases to 0.

    Other parameters keep their values. On the meta device, nothing happens.

    Args:
        gain: factor of the matrices.
        generator: the source of the random numbers.
    """
    for name, parameter in module.named_parameters():
        if parameter.is_meta:
            continue
        if "weight" in name:
            _fill(parameter, gain, generator)
        elif "bias" in name:
            parameter.zero_()


def _fill(weight: Tensor, gain: float, generator: np.random.Generator) -> None:
    """Fill a weight with a random matrix whose rows or columns are orthonormal, times the gain (arXiv 1312.6120).

    The kernels give the same bits on each processor. Without them, torch does it.
    """
    if not supported_variants():
        nn.init.orthogonal_(weight, gain)
        return
    normal = generator.standard_normal((weight.shape[0], weight[0].numel()))
    wide = normal.shape[1] > len(normal)
    matrix = np.ascontiguousarray(normal.T if wide else normal)
    orthonormalize(matrix)
    weight.copy_(torch.from_numpy((matrix.T if wide else matrix) * gain).reshape(weight.shape))
