"""Encoders: which leaves share one, what they compute, and that acting agrees with learning on mixed observations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import DISTRIBUTION, assert_acting_agrees
from space_environments import SPACES
from torch import Tensor

from shmppo.config.train_config import TrainConfig
from shmppo.models.actor_critic import ActorCritic, Trunk, build_model
from shmppo.models.encoders import A3cCnn, Mlp, NatureCnn, network_input
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
    first, second = network()[1].encoder_list
    assert isinstance(first.network, NatureCnn)
    assert isinstance(second.network, Mlp)
    assert (first.indices, second.indices) == ((0,), (1, 2, 3, 4))
    assert second.network.linears[0].in_features == 3 + 4 + 2 + 1
    assert network()[1].encoded == 512 + 10
    assert isinstance(network(encoder="a3c")[1].encoder_list[0].network, A3cCnn)
    (only,) = network(encoder="mlp")[1].encoder_list
    assert only.indices == (0, 1, 2, 3, 4)
    assert only.features == 10


def test_the_input_of_a_shared_encoder_has_the_values_of_its_leaves_side_by_side() -> None:
    generator = torch.Generator().manual_seed(0)
    obs = [stored(leaf, generator) for leaf in LEAVES]
    shared = network()[1].encoder_list[1]
    assert isinstance(shared.network, Mlp)
    joined = torch.cat([obs[1], torch.eye(4)[obs[2][:, 0].long()], obs[3], obs[4]], 1)
    (linear,) = shared.network.linears
    torch.testing.assert_close(shared(obs), torch.tanh(linear(joined)))


@pytest.mark.parametrize(
    ("kernel", "fields"),
    [
        ("torch", {}),
        ("native", {"encoder": "mlp", "core": "none"}),
        ("torch", {"core": "gru", "layer_norm": True}),
        ("native", {"core": "gru", "layer_norm": True, "encoder": "mlp"}),
        ("torch", {"core": "lru", "activation": "relu", "encoder": "mlp"}),
        ("native", {"core": "lru", "activation": "relu", "encoder": "mlp"}),
        ("torch", {"core": "gru", "separate_critic": "core"}),
        ("native", {"core": "lmu", "separate_critic": "core", "encoder": "mlp"}),
        ("native", {"core": "lstm", "separate_critic": "all", "encoder": "mlp"}),
    ],
)
def test_acting_on_mixed_observations_agrees_with_learning(kernel: str, fields: dict[str, Any]) -> None:
    model, _ = network(**fields)
    generator = torch.Generator().manual_seed(1)
    steps = [[stored(leaf, generator).numpy() for leaf in LEAVES] for _ in range(3)]
    assert_acting_agrees(kernel, model, steps, torch.zeros(ROWS, model.state_size))


def test_one_hot_input_has_a_part_for_each_code() -> None:
    leaf = observation_spec(SPACES["multidiscrete"], "the observation").leaves[0]
    values = torch.tensor([[2, 0], [0, 3]], dtype=torch.int32)
    expected = torch.tensor([[0.0, 0, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0, 1]])
    torch.testing.assert_close(network_input(leaf, values), expected)
