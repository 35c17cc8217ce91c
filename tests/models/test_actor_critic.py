"""The recurrent network: fused rows against a masked step loop, and acting against learning."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from gymnasium import spaces
from shmppo.models.inference import (
    MOST_ROWS,
    ActingNetwork,
    InferenceSlice,
    inference_batches,
    is_batch_size_invariant,
    is_row_independent,
)
from torch import Tensor

from shmppo.config.train_config import TrainConfig
from shmppo.models.actor_critic import ActorCritic, move_parameters, parameter_offsets, parameter_views, weights_sha256
from shmppo.models.distributions import DiagonalGaussian
from shmppo.models.observations import observation_spec
from shmppo.ppo.minibatches import cut_sequences, step_indices

D, A = 5, 2
OBSERVATION = observation_spec(spaces.Box(-1, 1, (D,)), "here")
DISTRIBUTION = DiagonalGaussian(spaces.Box(-1, 1, (A,)))
CORES = [("lstm", 1), ("lstm", 2), ("gru", 1), ("gru", 2), ("none", 1)]


def make_model(core: str, layers: int, separate: bool = False) -> tuple[TrainConfig, ActorCritic]:
    config = TrainConfig(
        core=core, num_layers=layers, hidden_size=12, encoder_sizes=(9,), separate_critic=separate, seq_len=6
    )  # type: ignore[arg-type]
    torch.manual_seed(0)
    model = ActorCritic(config, OBSERVATION, DISTRIBUTION)
    with torch.no_grad():  # biases too, so that a gate in the wrong place shows
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return config, model


def step_loop(model: ActorCritic, obs: Tensor, first: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The slow twin: one step after the other over whole columns, the state masked to zero where one begins.

    obs [T, N, D], first [T, N], state [N, S] → (params [T, N, P], values [T, N])
    """
    params, values = [], []
    for t in range(len(obs)):
        state = state * (~first[t]).unsqueeze(-1)
        p, v, state = model([obs[t : t + 1]], state)
        params.append(p)
        values.append(v)
    return torch.cat(params), torch.cat(values)


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize(("core", "layers"), CORES)
def test_rows_agree_with_the_masked_step_loop(core: str, layers: int, separate: bool) -> None:
    _config, model = make_model(core, layers, separate)
    T, N = 15, 3
    generator = torch.Generator().manual_seed(1)
    obs = torch.randn(T, N, D, generator=generator)
    first = np.random.default_rng(0).random((T, N)) < 0.2
    first[0, 0] = True
    start = torch.tanh(torch.randn(N, model.state_size, generator=generator))
    target_p, target_v = torch.randn(T, N, 2 * A, generator=generator), torch.randn(T, N, generator=generator)

    params, values = step_loop(model, obs, torch.from_numpy(first), start)
    loss = (params * target_p).sum() + (values * target_v).sum()
    slow_gradients = torch.autograd.grad(loss, list(model.parameters()))

    rows = cut_sequences(first, T)  # rows as long as episodes: gradients flow as far as in the loop
    indices, real = step_indices(rows, sequence_steps=T, num_envs=N)
    states = torch.stack([start[n] if slot >= 0 else torch.zeros(model.state_size) for _, n, _, slot in rows.tolist()])
    flat = torch.from_numpy(indices)
    fast_p, fast_v, _ = model([obs.flatten(0, 1)[flat]], states)
    mask = torch.from_numpy(real)
    torch.testing.assert_close(fast_p[mask], params.flatten(0, 1)[flat][mask], atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(fast_v[mask], values.flatten()[flat][mask], atol=2e-6, rtol=1e-5)
    weight = mask.float()
    loss = (fast_p * target_p.flatten(0, 1)[flat] * weight.unsqueeze(-1)).sum()
    loss = loss + (fast_v * target_v.flatten()[flat] * weight).sum()
    for fast, slow in zip(torch.autograd.grad(loss, list(model.parameters())), slow_gradients, strict=True):
        torch.testing.assert_close(fast, slow, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize(("core", "layers"), CORES)
def test_acting_is_learning_one_step_at_a_time(core: str, layers: int, separate: bool) -> None:
    _config, model = make_model(core, layers, separate)
    B, T, tile = 8, 7, 1
    generator = torch.Generator().manual_seed(2)
    obs = torch.randn(T, B, D, generator=generator)
    state = torch.tanh(torch.randn(B, model.state_size, generator=generator))
    network = ActingNetwork(model, DISTRIBUTION, tiles=2, rows=B)
    network.load()
    network.state[tile] = state
    params, values = [], []
    with torch.inference_mode():
        for t in range(T):
            network.obs[0][tile] = obs[t]
            network.step(tile)
            params.append(network.params.clone())
            values.append(network.values[:, 0].clone())
    with torch.no_grad():
        expected_p, expected_v, after = model([obs], state)
    torch.testing.assert_close(torch.stack(params), expected_p, atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(torch.stack(values), expected_v, atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(network.state[tile], after, atol=2e-6, rtol=1e-5)
    assert not network.state[0].any(), "another tile's state was touched"


@pytest.mark.parametrize("rows", [8, 16, 32])
@pytest.mark.parametrize(("core", "layers"), CORES)
def test_a_row_does_not_depend_on_the_other_rows(core: str, layers: int, rows: int) -> None:
    _, model = make_model(core, layers)
    network = ActingNetwork(model, DISTRIBUTION, tiles=1, rows=rows)
    network.load()
    assert is_row_independent(network)


def test_the_content_check_can_fail() -> None:
    _, model = make_model("none", 1)
    network = ActingNetwork(model, DISTRIBUTION, tiles=1, rows=8)
    network.load()
    honest = network.step

    def leaking(tile: int) -> None:
        honest(tile)
        network.params.add_(network.params.mean())

    network.step = leaking  # type: ignore[method-assign]
    assert not is_row_independent(network)


@pytest.mark.parametrize(("core", "layers"), CORES)
def test_a_call_of_several_tiles_gives_the_bits_of_each(core: str, layers: int) -> None:
    _, model = make_model(core, layers)
    tiles, rows = inference_batches(model, DISTRIBUTION, 5, 30, 8)
    if torch.backends.mkl.is_available():
        assert (tiles, rows) == ([InferenceSlice(0, slice(5, 30), slice(0, 25))], 32)
    wide, narrow = (ActingNetwork(model, DISTRIBUTION, tiles=count, rows=32 // count) for count in (1, 4))
    obs, state = torch.randn(32, D), torch.randn(32, model.state_size)
    for network in (wide, narrow):
        network.load()
        network.obs[0].flatten(0, 1).copy_(obs)
        network.state.flatten(0, 1).copy_(state)
    with torch.inference_mode():
        wide.step(0)
        for tile in range(4):
            narrow.step(tile)
            part = slice(8 * tile, 8 * tile + 8)
            same = torch.equal(wide.params[part], narrow.params) and torch.equal(wide.values[part], narrow.values)
            assert same or rows == 8
            assert torch.equal(wide.state[0, part], narrow.state[tile]) or rows == 8


def test_calls_have_at_most_so_many_rows_and_cover_the_range() -> None:
    _, model = make_model("none", 1)
    tiles, rows = inference_batches(model, DISTRIBUTION, 3, 210, 8)
    assert rows <= MOST_ROWS
    assert tiles[0].own == slice(0, rows - 3)
    assert [a.own.stop for a in tiles[:-1]] == [b.own.start for b in tiles[1:]]
    assert tiles[-1].own.stop == 207
    assert all(t.rows.stop - t.rows.start == t.own.stop - t.own.start for t in tiles)


def test_the_check_of_several_tiles_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    _, model = make_model("none", 1)
    honest = ActingNetwork.step

    def by_width(network: ActingNetwork, tile: int) -> None:
        honest(network, tile)
        network.params.add_(1e-6 * len(network.params))

    monkeypatch.setattr(ActingNetwork, "step", by_width)
    tiles, rows = inference_batches(model, DISTRIBUTION, 0, 16, 8)
    assert (len(tiles), rows) == (2, 8)


def test_the_check_of_several_tiles_needs_weights() -> None:
    _, model = make_model("lstm", 1)
    for parameter in model.parameters():
        parameter.data.zero_()
    wide, narrow = (ActingNetwork(model, DISTRIBUTION, tiles=1, rows=rows) for rows in (16, 8))
    assert not is_batch_size_invariant(wide, narrow)


def test_layers_and_parts_of_the_packed_state_are_not_scrambled() -> None:
    """Two layers, two rows: the state after a step must be (h of layer 0, h of layer 1, c …) of its own row."""
    _config, model = make_model("lstm", 2)
    obs = torch.randn(1, 2, D, generator=torch.Generator().manual_seed(0))
    state = torch.arange(2 * model.state_size, dtype=torch.float32).view(2, -1) / 100
    _, _, both = model([obs], state)
    for row in range(2):
        _, _, alone = model([obs[:, row : row + 1]], state[row : row + 1])
        torch.testing.assert_close(both[row], alone[0])
    core = model.trunk_list[0].core
    assert core is not None
    x = model.trunk_list[0].encoder_list[0](obs[0])
    h, c = state[:, :24].unflatten(1, (2, 12)).transpose(0, 1), state[:, 24:].unflatten(1, (2, 12)).transpose(0, 1)
    _, (h_after, c_after) = core(x.unsqueeze(0), (h.contiguous(), c.contiguous()))
    torch.testing.assert_close(both, torch.cat([h_after[0], h_after[1], c_after[0], c_after[1]], -1))


def test_parameters_as_views_of_a_flat_vector() -> None:
    _, model = make_model("lstm", 1)
    before = weights_sha256(model.state_dict().values())
    offsets, size = parameter_offsets(model)
    flat = torch.zeros(size)
    move_parameters(model, flat, keep=True)
    assert weights_sha256(model.state_dict().values()) == before
    assert all(offset % 16 == 0 for offset in offsets), "a parameter does not begin at a cache line"
    assert all(
        p.data_ptr() == v.data_ptr() for p, v in zip(model.parameters(), parameter_views(flat, model), strict=True)
    )
    flat[0] += 1
    assert weights_sha256(model.state_dict().values()) != before


def test_every_parameter_learns() -> None:
    for separate in (False, True):
        _, model = make_model("lstm", 2, separate)
        assert all(p.requires_grad for p in model.parameters())
        params, values, _ = model([torch.randn(4, 8, D)], torch.zeros(8, model.state_size))
        for gradient in torch.autograd.grad(params.square().sum() + values.sum(), list(model.parameters())):
            assert gradient.abs().sum() > 0


def test_weights_hash_is_of_float32_bytes_in_state_dict_order() -> None:
    import hashlib

    tensors = [torch.tensor([1.0, 2.0]), torch.tensor([[3.0]])]
    expected = hashlib.sha256(np.array([1, 2, 3], "<f4").tobytes()).hexdigest()
    assert weights_sha256(tensors) == expected


def test_configuration_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        TrainConfig().num_envs = 3  # type: ignore[misc]
