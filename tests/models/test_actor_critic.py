"""The recurrent network: sequences against a step loop with masked states, packed states, and flat parameters."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
import torch
from helpers import (
    ACTION_SIZE,
    CORES,
    DISTRIBUTION,
    KERNELS,
    OBS_SIZE,
    OBSERVATION,
    learning_network,
    random_states,
    small_network,
)
from torch import Tensor

from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.models.actor_critic import (
    ActorCritic,
    Trunk,
    build_model,
    move_parameters,
    parameter_offsets,
    parameter_shapes,
    parameter_views,
    weights_sha256,
)
from shmppo.models.cores import CORES as CORE_TYPES
from shmppo.ppo.gradients import pack_steps
from shmppo.ppo.minibatches import cut_sequences


def step_loop(model: ActorCritic, obs: Tensor, first: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Slow reference: all environments step by step; at the start of an episode the state is multiplied by zero.

    obs [T, N, D], first [T, N], state [N, S] → (params [T, N, P], values [T, N])
    """
    params, values = [], []
    for t in range(len(obs)):
        state = state * (~first[t]).unsqueeze(-1)
        p, v, state = model([obs[t : t + 1]], state)
        params.append(p)
        values.append(v)
    return torch.cat(params), torch.cat(values)


@KERNELS
@pytest.mark.parametrize("separate", ["none", "all"])
@pytest.mark.parametrize(("core", "layers"), CORES)
def test_sequences_agree_with_the_step_loop(core: str, layers: int, separate: str, kernel: str) -> None:
    config, model = small_network(core, layers, separate)
    T, N = 15, 3
    generator = torch.Generator().manual_seed(1)
    obs = torch.randn(T, N, OBS_SIZE, generator=generator)
    first = np.random.default_rng(0).random((T, N)) < 0.2
    first[0, 0] = True
    start = random_states(model, N, 2)
    target_p, target_v = torch.randn(T, N, 2 * ACTION_SIZE, generator=generator), torch.randn(T, N, generator=generator)

    params, values = step_loop(model, obs, torch.from_numpy(first), start)
    loss = (params * target_p).sum() + (values * target_v).sum()
    slow_gradients = torch.autograd.grad(loss, list(model.parameters()))

    sequences = cut_sequences(first, T)  # as long as episodes, so that gradients flow as far as in the loop
    sequences = sequences[np.argsort(-sequences[:, 2], kind="stable")]
    index, active, *_ = pack_steps(sequences, rows=N)
    states = np.where(sequences[:, 3:] >= 0, start.numpy()[sequences[:, 1]], np.float32(0))
    network, gradients = learning_network(kernel, config, model, obs.numpy())
    for found, expected in zip(network.forward(active, index, states), (params, values), strict=True):
        torch.testing.assert_close(torch.from_numpy(found), expected.flatten(0, 1)[index], atol=5e-6, rtol=1e-5)
    if core == "gtrxl":  # no gradient flows through its memory, but one flows within a sequence
        return
    by_outputs = target_p.flatten(0, 1)[index].numpy(), target_v.flatten()[index].numpy()
    network.backward(range(1), np.arange(len(index)), np.array([0, len(index)]), *by_outputs)
    for fast, slow in zip(parameter_views(torch.from_numpy(gradients[0]), model), slow_gradients, strict=True):
        torch.testing.assert_close(fast, slow, atol=2e-5, rtol=1e-4)


def test_the_order_of_layers_and_parts_in_the_packed_state() -> None:
    """Two layers, two sequences: the state after a step is (h of layer 0, h of layer 1, c …) of its own sequence."""
    _, model = small_network("lstm", 2)
    obs = torch.randn(1, 2, OBS_SIZE, generator=torch.Generator().manual_seed(0))
    state = torch.arange(2 * model.state_size, dtype=torch.float32).view(2, -1) / 100
    _, _, both = model([obs], state)
    for row in range(2):
        _, _, alone = model([obs[:, row : row + 1]], state[row : row + 1])
        torch.testing.assert_close(both[row], alone[0])
    trunk = model.trunk_list[0]
    assert isinstance(trunk, Trunk)
    assert trunk.core is not None
    x = trunk.encoders[0]([obs[0]])
    h, c = (part.reshape(2, 2, 12).transpose(0, 1) for part in state.chunk(2, 1))
    _, (h_after, c_after) = trunk.core(x.unsqueeze(0), (h.contiguous(), c.contiguous()))
    torch.testing.assert_close(both, torch.cat([h_after[0], h_after[1], c_after[0], c_after[1]], -1))


def test_a_critic_with_its_own_core_shares_the_encoder() -> None:
    """The outputs are those of two networks with the encoder of one: the actor's, and one with the critic's core."""
    _, model = small_network("lstm", 1, "core")
    names = {name.rpartition(".")[0].split(".core")[0] for name, _ in model.named_parameters() if "trunks" in name}
    assert names == {"trunks.0.encoders.0.network.linears.0", "trunks.0", "trunks.1"}
    obs, state = torch.randn(4, 3, OBS_SIZE), torch.randn(3, model.state_size)
    params, values, after = model([obs], state)
    _, other = small_network("lstm", 1, "all")
    weights = model.state_dict()
    encoder = {name.replace("trunks.0", "trunks.1"): value for name, value in weights.items() if "encoders" in name}
    other.load_state_dict(weights | encoder)
    for found, expected in zip((params, values, after), other([obs], state), strict=True):
        torch.testing.assert_close(found, expected)


def test_parameters_as_views_of_a_flat_vector() -> None:
    _, model = small_network("lstm", 1)
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


def test_every_parameter_has_a_gradient() -> None:
    for separate in ("none", "core", "all"):
        _, model = small_network("lstm", 2, separate)
        assert all(p.requires_grad for p in model.parameters())
        params, values, _ = model([torch.randn(4, 8, OBS_SIZE)], torch.zeros(8, model.state_size))
        for gradient in torch.autograd.grad(params.square().sum() + values.sum(), list(model.parameters())):
            assert gradient.abs().sum() > 0


def test_weights_hash_is_of_float32_bytes_in_state_dict_order() -> None:
    tensors = [torch.tensor([1.0, 2.0]), torch.tensor([[3.0]])]
    expected = hashlib.sha256(np.array([1, 2, 3], "<f4").tobytes()).hexdigest()
    assert weights_sha256(tensors) == expected


@pytest.mark.parametrize("network", [None, "networks:leaky"])
def test_making_a_network_does_not_change_the_random_numbers_of_torch(network: str | None) -> None:
    config = TrainConfig(env="CartPole-v1", network=network, workers=0)
    task = inspect_task(config)
    before = torch.get_rng_state()
    shapes = parameter_shapes(config, task.observation, task.distribution)
    model = build_model(config, task.observation, task.distribution)
    assert torch.equal(torch.get_rng_state(), before)
    assert shapes == {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("core", ["none", *CORE_TYPES])
def test_initial_weights_depend_only_on_the_seed_and_are_orthogonal(core: str) -> None:
    models = []
    for torch_seed, seed in ((0, 1), (7, 1), (0, 2)):
        torch.manual_seed(torch_seed)
        sizes: dict[str, Any] = {"hidden_size": 12, "encoder_sizes": (9,), "seq_len": 6, "attention_window": 5}
        models.append(ActorCritic(TrainConfig(core=core, seed=seed, **sizes), OBSERVATION, DISTRIBUTION))
    one, same, other = (weights_sha256(model.state_dict().values()) for model in models)
    assert one == same != other
    gains = {"trunks.0.encoders": 2**0.5, "trunks.0.core": 1.0, "policy_head": 0.01, "value_head": 1.0}
    for name, parameter in models[0].named_parameters():
        if "weight" in name:
            matrix = parameter.detach().flatten(1)
            matrix = matrix if len(matrix) <= matrix.shape[1] else matrix.T
            gain = next(gain for part, gain in gains.items() if name.startswith(part))
            torch.testing.assert_close(matrix @ matrix.T, gain**2 * torch.eye(len(matrix)), atol=1e-5 * gain, rtol=0)
        elif "bias" in name:
            assert not parameter.any()
