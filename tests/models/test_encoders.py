"""Encoders: which leaves share one, and what they compute."""

from __future__ import annotations

from typing import Any

import torch
from helpers import DISTRIBUTION
from space_environments import SPACES
from torch import Tensor

from shmppo.config.train_config import TrainConfig
from shmppo.models.actor_critic import ActorCritic, Trunk, build_model
from shmppo.models.encoders import A3cCnn, Mlp, NatureCnn, _ResidualBlock, network_input
from shmppo.spaces.observations import Leaf, observation_spec

LEAVES = observation_spec(SPACES["dict"], "the observation").leaves
KINDS = ["image", "bits", "codes", "vector", "vector"]
ROWS = 8


def network(**fields: Any) -> tuple[ActorCritic, Trunk]:
    """A network for the Dict observation, and its first trunk."""
    config = TrainConfig(hidden_size=12, encoder_sizes=(10,), **fields)
    model = build_model(config, observation_spec(SPACES["dict"], "the observation"), DISTRIBUTION)
    trunk = model.trunk_list[0]
    assert isinstance(trunk, Trunk)
    return model, trunk


def stored(leaf: Leaf, generator: torch.Generator) -> Tensor:
    """Random values [ROWS, …] of a leaf as they are stored."""
    if leaf.kind == "vector":
        return torch.randn(ROWS, *leaf.shape, generator=generator)
    high = {"codes": 4, "bits": 2, "image": 256}[leaf.kind]
    return torch.randint(0, high, (ROWS, *leaf.shape), generator=generator).to(getattr(torch, leaf.dtype))


def test_leaves_without_convolutions_share_an_encoder() -> None:
    assert [leaf.kind for leaf in LEAVES] == KINDS
    first, second = network()[1].encoders
    assert isinstance(first.network, NatureCnn)
    assert isinstance(second.network, Mlp)
    assert (first.indices, second.indices) == ((0,), (1, 2, 3, 4))
    assert second.network.linears[0].in_features == 3 + 4 + 2 + 1
    assert network()[1].encoded == 512 + 10
    assert isinstance(network(encoder="a3c")[1].encoders[0].network, A3cCnn)
    (only,) = network(encoder="mlp")[1].encoders
    assert only.indices == (0, 1, 2, 3, 4)
    assert only.features == 10


def test_the_input_of_a_shared_encoder_has_the_values_of_its_leaves_side_by_side() -> None:
    generator = torch.Generator().manual_seed(0)
    obs = [stored(leaf, generator) for leaf in LEAVES]
    shared = network()[1].encoders[1]
    assert isinstance(shared.network, Mlp)
    joined = torch.cat([obs[1], torch.eye(4)[obs[2][:, 0].long()], obs[3], obs[4]], 1)
    (linear,) = shared.network.linears
    torch.testing.assert_close(shared(obs), torch.tanh(linear(joined)))


def test_the_convolutions_are_those_of_the_papers() -> None:
    for kind, shapes, strides, inputs in (
        (A3cCnn, [(16, 4, 8, 8), (32, 16, 4, 4)], [4, 2], 9 * 9 * 32),
        (NatureCnn, [(32, 4, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3)], [4, 2, 1], 7 * 7 * 64),
    ):
        network = kind((4, 84, 84))
        assert [tuple(layer.weight.shape) for layer in network.convolutions] == shapes
        assert [layer.stride[0] for layer in network.convolutions] == strides
        assert network.linear.in_features == inputs


@torch.no_grad()
def test_a_residual_block_adds_its_input() -> None:
    block, x = _ResidualBlock(4), torch.randn(2, 4, 5, 6)
    block.second.weight.zero_()
    assert block.second.bias is not None
    block.second.bias.zero_()
    assert torch.equal(block(x), x)


def test_codes_become_one_hot_vectors_side_by_side() -> None:
    leaf = Leaf((), "codes", (3,), (3,), "int32", (0, 0, 0), (3, 2, 4))
    rows = torch.tensor([[2, 0, 1], [0, 1, 3]], dtype=torch.int32)
    assert network_input(leaf, rows).tolist() == [[0, 0, 1, 1, 0, 0, 1, 0, 0], [1, 0, 0, 0, 1, 0, 0, 0, 1]]
