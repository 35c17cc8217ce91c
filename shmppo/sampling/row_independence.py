"""Check that the outputs for an environment do not depend on the other rows of its inference batch.

The built-in networks compute each row on its own. A custom network may not, for example if it normalizes over a batch.
"""

from __future__ import annotations

import numpy as np
import torch

from shmppo.models.actor_critic import ActorCritic
from shmppo.sampling.actor import TorchActing
from shmppo.spaces.observations import Leaf


def _random_leaf(leaf: Leaf, rows: int, generator: np.random.Generator) -> np.ndarray:
    """Draw stored values of a leaf, [rows, …]."""
    if leaf.kind == "vector":
        return generator.standard_normal((rows, *leaf.shape), np.float32)
    limit = {"codes": min(leaf.sizes, default=1), "bits": 2, "mask": 2, "image": leaf.max_value + 1}[leaf.kind]
    return generator.integers(0, limit, (rows, *leaf.shape)).astype(leaf.dtype)


@torch.inference_mode()
def is_row_independent(model: ActorCritic, rows: int) -> bool:
    """Whether the outputs of each row keep their bits when all other rows are zero. The inputs are random numbers.

    If they do not, the division of environments among workers may change the actions.

    Args:
        rows: B, rows of an inference batch.
    """
    generator = np.random.default_rng(0)
    inputs = [_random_leaf(leaf, rows, generator) for leaf in model.observation.leaves]
    inputs.append(np.tanh(generator.standard_normal((rows, model.state_size), np.float32)))
    obs = [np.zeros_like(leaf) for leaf in inputs[:-1]]
    network = TorchActing(model, obs, [None] * len(obs), low=0, rows=rows)

    def outputs(chosen: slice) -> bytes:
        for memory, values in zip([*obs, network.state], inputs, strict=True):
            memory[:] = 0
            memory[chosen] = values[chosen]
        network.forward()
        return np.hstack([network.params, network.values, network.state])[chosen].tobytes()

    alone = b"".join(outputs(slice(i, i + 1)) for i in range(rows))
    return outputs(slice(None)) == alone
