"""The core gtrxl: against a reference in float64 that computes one step at a time, and what its window excludes."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor

from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.models.actor_critic import build_model
from shmppo.models.gtrxl import Gate, Gtrxl, GtrxlLayer, memory_size, positions

INPUTS, HIDDEN, HEADS, WINDOW, STEPS, SEQUENCES = 5, 12, 3, 6, 15, 4
COUNTS = (0, 1, 4, 6)
"""Steps in the memory of each sequence."""


def small_core(layers: int, window: int = WINDOW) -> Gtrxl:
    """A small core with random biases as well as weights."""
    torch.manual_seed(0)
    made = Gtrxl(INPUTS, HIDDEN, layers, HEADS, window)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return made


def inputs(layers: int) -> tuple[Tensor, Tensor]:
    """Inputs of some sequences [L, J, INPUTS], and their first states."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(STEPS, SEQUENCES, INPUTS, generator=generator)
    state = torch.randn(layers, SEQUENCES, memory_size(HIDDEN, WINDOW), generator=generator)
    state[..., -1] = torch.tensor(COUNTS)
    return x, state


def normalized(x: np.ndarray) -> np.ndarray:
    scaled: np.ndarray = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
    return scaled


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def gated(gate: Gate, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The gate, as the paper writes it."""
    w_r, w_z, w_h = np.split(gate.from_y.weight.detach().numpy(), 3)
    b_r, b_z, b_h = np.split(gate.from_y.bias.detach().numpy(), 3)
    u_r, u_z = np.split(gate.from_x.weight.detach().numpy(), 2)
    r = sigmoid(w_r @ y + u_r @ x + b_r)
    z = sigmoid(w_z @ y + u_z @ x + b_z - gate.keep.detach().numpy())
    return (1 - z) * x + z * np.tanh(w_h @ y + b_h + gate.from_reset.weight.detach().numpy() @ (r * x))


def step(layer: GtrxlLayer, x: np.ndarray, memory: list[np.ndarray]) -> np.ndarray:
    """One layer for one step. memory: the inputs that the layer saw, the latest last; the new one is appended."""
    attention, n = layer.attention, normalized(x)
    memory.append(n)
    query, key, value, position = (
        getattr(attention, name).weight.detach().numpy() for name in ("query", "key", "value", "position")
    )
    q, size = query @ n, HIDDEN // HEADS
    result = np.zeros(HIDDEN)
    for head in range(HEADS):
        part = slice(head * size, (head + 1) * size)
        u, v = (b[head, 0].detach().numpy() for b in (attention.content_bias, attention.position_bias))
        scores = []
        for distance, seen in enumerate(reversed(memory[-1 - WINDOW :])):
            encoding = [distance / 10_000 ** (2 * i / HIDDEN) for i in range(HIDDEN // 2)]
            r = (position @ np.concatenate([np.sin(encoding), np.cos(encoding)]))[part]
            scaled = q[part] / np.sqrt(size)
            scores.append((scaled + u) @ (key @ seen)[part] + (scaled + v) @ r)
        weights = np.exp(scores) / np.exp(scores).sum()
        for weight, seen in zip(weights, reversed(memory[-1 - WINDOW :]), strict=True):
            result[part] += weight * (value @ seen)[part]
    after = layer.after_attention
    x = gated(layer.gate, x, np.maximum(after.weight.detach().numpy() @ result + after.bias.detach().numpy(), 0))
    y = normalized(x)
    for linear in (layer.linears[0], layer.linears[2]):
        y = np.maximum(linear.weight.detach().numpy() @ y + linear.bias.detach().numpy(), 0)
    return gated(layer.second_gate, x, y)


def reference(core: Gtrxl, x: Tensor, state: Tensor) -> tuple[np.ndarray, list[list[list[np.ndarray]]]]:
    """The features in float64, and the memories by layer and sequence, without those that were not seen yet."""
    into, features = core.into, np.zeros((STEPS, SEQUENCES, HIDDEN))
    memories = [
        [list(row[:-1].reshape(WINDOW, HIDDEN)[WINDOW - int(row[-1]) :]) for row in of_layer]
        for of_layer in state.numpy()
    ]
    for t in range(STEPS):
        for j in range(SEQUENCES):
            row = into.weight.detach().numpy() @ x[t, j].numpy() + into.bias.detach().numpy()
            for layer, of_layer in zip(core.layer_list, memories, strict=True):
                row = step(layer, row, of_layer[j])
            features[t, j] = row
    return features, memories


@pytest.mark.parametrize("layers", [1, 2])
def test_outputs_agree_with_a_step_loop_in_float64(layers: int) -> None:
    core = small_core(layers)
    x, state = inputs(layers)
    with torch.no_grad():
        expected, memories = reference(copy.deepcopy(core).double(), x.double(), state.double())
        features, after = core(x, state)
    np.testing.assert_allclose(features, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(after[..., -1], np.full((layers, SEQUENCES), WINDOW))
    wanted = [[np.concatenate(seen[-WINDOW:]) for seen in of_layer] for of_layer in memories]
    np.testing.assert_allclose(after[..., :-1], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("length", [1, 2, 8])
def test_calls_with_parts_of_a_sequence_agree_with_one_call(length: int) -> None:
    core = small_core(2)
    x, state = inputs(2)
    expected, expected_state = core(x, state)
    features = []
    for part in x.split(length):
        found, state = core(part, state)
        features.append(found)
    torch.testing.assert_close(torch.cat(features), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(state, expected_state, rtol=1e-5, atol=1e-5)


def test_gradients_agree_with_finite_differences() -> None:
    core = small_core(2).double()
    x, state = (tensor.double() for tensor in inputs(2))
    names = [name for name, _ in core.named_parameters()]

    def features(*values: Tensor) -> Tensor:
        made: Tensor = torch.func.functional_call(core, dict(zip(names, values, strict=True)), (x[:9], state))[0]
        return made

    assert torch.autograd.gradcheck(features, tuple(core.parameters()), fast_mode=True)


@pytest.mark.parametrize("layers", [1, 2])
def test_a_feature_depends_on_the_window_of_each_layer_only(layers: int) -> None:
    """The last step sees layers × K steps back, and a sequence with an empty memory sees nothing of it."""
    core = small_core(layers, window=3)
    x = torch.randn(STEPS, 1, INPUTS, generator=torch.Generator().manual_seed(0)).requires_grad_()
    features, _ = core(x, torch.zeros(layers, 1, memory_size(HIDDEN, 3)))
    (gradient,) = torch.autograd.grad(features[-1].sum(), x)
    seen = gradient.abs().sum((1, 2)).nonzero().flatten().tolist()
    assert seen == list(range(STEPS - 1 - 3 * layers, STEPS))

    zero = torch.zeros(layers, 1, memory_size(HIDDEN, 3))
    garbage = torch.randn_like(zero)
    garbage[..., -1] = 0
    torch.testing.assert_close(core(x, garbage)[0], core(x, zero)[0], rtol=0, atol=0)


def test_the_memory_has_no_gradient() -> None:
    core = small_core(1)
    x, state = inputs(1)
    _, after = core(x.requires_grad_(), state)
    assert not after.requires_grad


def test_a_trunk_keeps_the_bias_of_the_gates_and_sets_the_other_parameters() -> None:
    config = TrainConfig(env="Pendulum-v1", core="gtrxl", num_layers=2)
    task = inspect_task(config)
    core = build_model(config, task.observation, task.distribution).trunk_list[0].core
    assert isinstance(core, Gtrxl)
    for layer in core.layer_list:
        assert (layer.gate.keep == 2).all()
        assert not layer.attention.content_bias.any()
        query = layer.attention.query.weight.detach()
        torch.testing.assert_close(query @ query.T, torch.eye(64), rtol=0, atol=1e-5)


def test_encodings_of_distances_are_sines_and_cosines_the_longest_distance_first() -> None:
    found = positions(2, 4)
    expected = [[np.sin(d), np.sin(d / 100), np.cos(d), np.cos(d / 100)] for d in (2, 1, 0)]
    np.testing.assert_allclose(found, expected, atol=1e-7)
    assert positions(3, 5).shape == (4, 5)
