"""Check that the outputs for an environment do not depend on the other rows of its inference batch.

The built-in networks compute each row on its own. A custom network may not, for example if it normalizes over a batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shmppo.sampling.actor import ActingNetwork
from shmppo.spaces.observations import Leaf


def _random_leaf(leaf: Leaf, rows: int, generator: torch.Generator) -> Tensor:
    """Draw values of a leaf in the form that an acting network reads, [rows, …]."""
    if leaf.kind == "vector":
        return torch.randn(rows, *leaf.shape, generator=generator)
    limit = {"codes": min(leaf.sizes, default=1), "bits": 2, "mask": 2, "image": leaf.max_value + 1}[leaf.kind]
    return torch.randint(0, limit, (rows, *leaf.shape), generator=generator).to(getattr(torch, leaf.dtype))


def _random_inputs(network: ActingNetwork, rows: int) -> list[Tensor]:
    """Draw observations [rows, …] per leaf, then states [rows, S], then noise for the actions [rows, noise_size]."""
    generator = torch.Generator().manual_seed(0)
    obs = [_random_leaf(leaf, rows, generator) for leaf in network.leaves]
    state = torch.randn(rows, network.state.shape[-1], generator=generator).tanh()
    return [*obs, state, torch.randn(rows, network.distribution.noise_size, generator=generator)]


@torch.inference_mode()
def _outputs(network: ActingNetwork, inputs: list[Tensor], rows: slice) -> Tensor:
    """Compute policy parameters, values, states, and actions of `rows`, side by side. All other rows are zero.

    The last batch of the network is used, and is zero afterwards.
    """
    batch, noise = len(network.state) - 1, torch.zeros_like(inputs[-1])
    memory = (*network.obs, network.state)
    for stored, values in zip(memory, inputs[:-1], strict=True):
        stored[batch].zero_()
        stored[batch, rows] = values[rows]
    noise[rows] = inputs[-1][rows]
    network.step(batch)
    actions = torch.from_numpy(network.distribution.sample(network.params.numpy(), noise.numpy()))
    outputs = torch.cat([network.params, network.values, network.state[batch], actions], 1)[rows].clone()
    for stored in memory:
        stored[batch].zero_()
    return outputs


def is_row_independent(network: ActingNetwork) -> bool:
    """Whether the outputs of each row keep their bits when all other rows are zero. The inputs are random numbers.

    If they do not, the division of environments among workers may change the actions. The last batch is overwritten.
    """
    rows = network.state.shape[1]
    inputs = _random_inputs(network, rows)
    whole = _outputs(network, inputs, slice(None))
    return all(torch.equal(whole[i : i + 1], _outputs(network, inputs, slice(i, i + 1))) for i in range(rows))
