"""The core gtrxl: against a reference in float64 that computes one step at a time, and what its window excludes."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from helpers import with_noise
from torch import Tensor, nn

from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.models.actor_critic import build_model
from shmppo.models.gtrxl import Gtrxl, GtrxlLayer, linears, memory_size

INPUTS, HIDDEN, HEADS, WINDOW, STEPS, SEQUENCES = 5, 12, 4, 6, 15, 4
COUNTS = (0, 1, 4, 6)
"""Steps in the memory of each sequence."""


def small_core(layers: int, window: int = WINDOW) -> Gtrxl:
    """A small core with random biases as well as weights."""
    torch.manual_seed(0)
    return with_noise(Gtrxl(INPUTS, HIDDEN, layers, window), 0.3)


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


def applied(linear: nn.Linear, x: np.ndarray) -> np.ndarray:
    bias = 0.0 if linear.bias is None else linear.bias.detach().numpy()
    result: np.ndarray = linear.weight.detach().numpy() @ x + bias
    return result


def gated(gate: nn.GRUCell, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """A GRU, as torch documents it."""
    of_y = np.split(gate.weight_ih.detach().numpy() @ y + gate.bias_ih.detach().numpy(), 3)
    of_x = np.split(gate.weight_hh.detach().numpy() @ x + gate.bias_hh.detach().numpy(), 3)
    r, z = sigmoid(of_y[0] + of_x[0]), sigmoid(of_y[1] + of_x[1])
    return (1 - z) * np.tanh(of_y[2] + r * of_x[2]) + z * x


def step(layer: GtrxlLayer, x: np.ndarray, memory: list[np.ndarray]) -> np.ndarray:
    """One layer for one step. memory: the inputs that the layer saw, the latest last; the new one is appended."""
    attention, n = layer.attention, normalized(x)
    memory.append(n)
    queries = np.split(applied(attention.query, n), HEADS)
    heads = zip(queries, *map(linears, (attention.keys, attention.distances, attention.values)), strict=True)
    results = []
    for query, key, distances, value in heads:
        by_distance = applied(distances, query)
        window = list(enumerate(reversed(memory[-1 - WINDOW :])))
        key_of = applied(key, query) / np.sqrt(HIDDEN // HEADS)
        scores = [key_of @ seen + by_distance[WINDOW - distance] for distance, seen in window]
        weights = np.exp(np.array(scores))
        mean = sum(weight * seen for weight, (_, seen) in zip(weights, window, strict=True)) / weights.sum()
        results.append(applied(value, mean))
    x = gated(layer.gate, np.maximum(applied(layer.after_attention, np.concatenate(results)), 0), x)
    y = normalized(x)
    for linear in linears(layer.linears):
        y = np.maximum(applied(linear, y), 0)
    return gated(layer.second_gate, y, x)


def reference(core: Gtrxl, x: Tensor, state: Tensor) -> tuple[np.ndarray, list[list[list[np.ndarray]]]]:
    """The features in float64, and the memories by layer and sequence, without those that were not seen yet."""
    features = np.zeros((STEPS, SEQUENCES, HIDDEN))
    memories = [
        [list(row[:-1].reshape(WINDOW, HIDDEN)[WINDOW - int(row[-1]) :]) for row in of_layer]
        for of_layer in state.numpy()
    ]
    for t in range(STEPS):
        for j in range(SEQUENCES):
            row = applied(core.into, x[t, j].numpy())
            for layer, of_layer in zip(core.layers, memories, strict=True):
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


def test_the_weights_of_each_head_are_orthogonal_at_first() -> None:
    config = TrainConfig(env="Pendulum-v1", core="gtrxl", num_layers=2)
    task = inspect_task(config)
    core = build_model(config, task.observation, task.distribution).trunk_list[0].core
    assert isinstance(core, Gtrxl)
    for layer in core.layers:
        query, key = layer.attention.query.weight.detach(), linears(layer.attention.keys)[3].weight.detach()
        torch.testing.assert_close(query @ query.T, torch.eye(64), rtol=0, atol=1e-5)
        torch.testing.assert_close(key.T @ key, torch.eye(16), rtol=0, atol=1e-5)
