"""Checks that results do not depend on how environments are divided into inference batches."""

from __future__ import annotations

import torch
from torch import Tensor

from shmppo.models.actor_critic import ActorCritic
from shmppo.models.distributions import Distribution
from shmppo.models.observations import Leaf
from shmppo.sampling.actor import ActingNetwork, InferenceBatches, inference_slices

MAX_ROWS = 64  # of one call: the cost of a row does not fall any further beyond


def _random_leaf(leaf: Leaf, rows: int, generator: torch.Generator) -> Tensor:
    """Values of a leaf as an acting network gets them, [rows, …]."""
    if leaf.kind == "vector":
        return torch.randn(rows, *leaf.shape, generator=generator)
    limit = {"codes": min(leaf.sizes, default=1), "bits": 2, "mask": 2, "image": leaf.max_value + 1}[leaf.kind]
    return torch.randint(0, limit, (rows, *leaf.shape), generator=generator).to(getattr(torch, leaf.dtype))


def _random_inputs(network: ActingNetwork, rows: int) -> list[Tensor]:
    """Observations per leaf [rows, …], states [rows, S], and noise for the actions [rows, noise size]."""
    generator = torch.Generator().manual_seed(0)
    obs = [_random_leaf(leaf, rows, generator) for leaf in network.leaves]
    state = torch.randn(rows, network.state.shape[-1], generator=generator).tanh()
    return [*obs, state, torch.randn(rows, network.distribution.noise_size, generator=generator)]


@torch.inference_mode()
def _outputs(network: ActingNetwork, inputs: list[Tensor], rows: slice) -> Tensor:
    """Parameters, values, states, and actions [R, …] of these rows, on the last batch; all other rows are zero."""
    batch, noise = len(network.state) - 1, torch.zeros_like(inputs[-1])
    memory = (*network.obs, network.state)
    for stored, given in zip(memory, inputs[:-1], strict=True):
        stored[batch].zero_()
        stored[batch, rows] = given[rows]
    noise[rows] = inputs[-1][rows]
    network.step(batch)
    actions = network.distribution.sample(network.params, noise)
    outputs = torch.cat([network.params, network.values, network.state[batch], actions], 1)[rows].clone()
    for stored in memory:
        stored[batch].zero_()
    return outputs


def is_row_independent(network: ActingNetwork) -> bool:
    """Whether each row's outputs keep their bits when all other rows are zero. It is tried on the last batch.

    Only then may any worker own any part of an inference batch.
    """
    rows = network.state.shape[1]
    inputs = _random_inputs(network, rows)
    whole = _outputs(network, inputs, slice(None))
    return all(torch.equal(whole[i : i + 1], _outputs(network, inputs, slice(i, i + 1))) for i in range(rows))


def is_batch_size_invariant(network: ActingNetwork, narrow: ActingNetwork) -> bool:
    """Whether `narrow`, which has fewer rows, gives each row the same bits. Both must have loaded nonzero weights."""
    rows, width = network.state.shape[1], narrow.state.shape[1]
    inputs = _random_inputs(network, rows)
    whole = _outputs(network, inputs, slice(None))
    parts = [_outputs(narrow, [one[i : i + width] for one in inputs], slice(None)) for i in range(0, rows, width)]
    return bool(network.values.any()) and torch.equal(whole, torch.cat(parts))


def inference_batches(
    model: ActorCritic, distribution: Distribution, low: int, high: int, rows: int
) -> InferenceBatches:
    """Divide environments low … high − 1 into calls of `rows` rows, or of several times as many.

    Larger calls are faster. They are used only if a trial with the model's present weights changes no bit of any row.
    """
    begin = low - low % rows
    batches = -(-(high - begin) // rows)
    calls = -(-batches * rows // MAX_ROWS)
    merged = -(-batches // calls) * rows
    if merged > rows:
        networks = [ActingNetwork(model, distribution, batches=1, rows=width) for width in (merged, rows)]
        for network in networks:
            network.load()
        if not is_batch_size_invariant(*networks):
            merged = rows
    return InferenceBatches(inference_slices(low - begin, high - begin, merged), merged)
