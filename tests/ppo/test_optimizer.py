"""The optimizers: by hand, against torch.optim, with the same bits in parts, kernels, and NumPy."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from shmppo.config.train_config import TrainConfig
from shmppo.kernels import functions, kernels, supported_variants
from shmppo.ppo.optimizer import Optimizer, load_optimizer_state, optimizer_state
from shmppo.utils.partition import partition

SHARDS = 3
OPTIMIZERS = ("adam", "sgd")


def config_of(name: str, **options: Any) -> TrainConfig:
    return dataclasses.replace(TrainConfig(), optimizer=name, **options)  # type: ignore[arg-type]


def part_of(config: TrainConfig, buffers: Any, part: int = 0, parts: int = 1) -> Optimizer:
    own = partition(buffers.published.weights.size, parts, part)
    return Optimizer(config, buffers, own, own)


def memory(weights: np.ndarray) -> Any:
    """The shared arrays of an optimizer."""
    return SimpleNamespace(
        published=SimpleNamespace(weights=weights.astype(np.float32)),
        shard_results=SimpleNamespace(
            gradients=np.zeros((SHARDS, weights.size), np.float32), total=np.zeros(weights.size, np.float32)
        ),
        optimizer=SimpleNamespace(
            learning_rate=np.zeros(1),
            gradient_factor=np.zeros(1),
            steps=np.zeros(1),
            moments=np.zeros((2, weights.size), np.float32),
        ),
    )


def step(buffers: Any, optimizers: list[Optimizer], gradient: np.ndarray, rate: float, scale: float = 1.0) -> None:
    buffers.shard_results.gradients[:] = 0
    buffers.shard_results.gradients[1] = gradient
    buffers.optimizer.learning_rate[0], buffers.optimizer.gradient_factor[0] = rate, scale
    buffers.optimizer.steps[0] += 1
    for optimizer in optimizers:
        optimizer.add_gradients()
        optimizer.step()


def stepped(name: str) -> np.ndarray:
    """Parameters (1, 2) after two steps with the gradient (0.5, −1)."""
    buffers = memory(np.array([1.0, 2.0]))
    optimizer = part_of(config_of(name, adam_eps=1e-8), buffers)
    for _ in range(2):
        step(buffers, [optimizer], np.array([0.25, -0.5]), 0.1, 2.0)
    result: np.ndarray = buffers.published.weights
    return result


def test_the_first_step_ignores_earlier_moments() -> None:
    """The learner sets the number of steps to 0 after --critic-warmup-steps."""
    buffers = memory(np.array([1.0, 2.0]))
    optimizer = part_of(config_of("adam", adam_eps=1e-8), buffers)
    for gradient in (1.0, -3.0, 2.0):
        step(buffers, [optimizer], np.full(2, gradient), 0.1)
    weights, buffers.optimizer.steps[0] = buffers.published.weights.copy(), 0.0
    step(buffers, [optimizer], np.array([-5.0, 5.0]), 0.1)
    np.testing.assert_allclose(buffers.published.weights, weights + np.array([0.1, -0.1]), rtol=1e-6)


def test_by_hand() -> None:
    # Two equal gradients: Adam's corrected moments are g and g², so each step is 0.1 · sign(g).
    np.testing.assert_allclose(stepped("adam"), [0.8, 2.2], rtol=1e-6)
    np.testing.assert_allclose(stepped("sgd"), [0.9, 2.2], rtol=1e-6)


def test_two_different_gradients_by_hand() -> None:
    buffers = memory(np.array([1.0]))
    optimizer = part_of(config_of("adam", adam_eps=1e-8), buffers)
    for gradient in (1.0, -3.0):
        step(buffers, [optimizer], np.array([gradient]), 0.1)
    # The second step: m = 0.9 · 0.1 · 1 + 0.1 · (−3), v = 0.999 · 0.001 · 1² + 0.001 · 3².
    m, v = (0.09 - 0.3) / (1 - 0.9**2), (0.000999 + 0.009) / (1 - 0.999**2)
    np.testing.assert_allclose(buffers.published.weights, 1.0 - 0.1 - 0.1 * m / np.sqrt(v), rtol=1e-6)


def of_torch(config: TrainConfig, parameter: torch.nn.Parameter) -> torch.optim.Optimizer:
    if config.optimizer == "sgd":
        return torch.optim.SGD([parameter], lr=1.0)
    return torch.optim.Adam([parameter], lr=1.0, eps=config.adam_eps, betas=(0.9, 0.999), fused=True)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("parts", [1, 3, 16])
def test_steps_are_those_of_torch_also_after_a_restart(name: str, parts: int) -> None:
    """They have the same bits for each number of parts, also of sizes that are no multiple of a vector."""
    size, config, rng = 4099, config_of(name), np.random.default_rng(0)
    buffers, whole = (memory(np.random.default_rng(1).standard_normal(size)) for _ in range(2))
    parameter = torch.nn.Parameter(torch.from_numpy(buffers.published.weights.copy()))
    public = of_torch(config, parameter)
    optimizers = [part_of(config, buffers, part, parts) for part in range(parts)]
    for i in range(6):
        if i == 3:
            state, weights = optimizer_state(buffers), buffers.published.weights
            buffers = memory(weights)
            load_optimizer_state(buffers, state)
            optimizers = [part_of(config, buffers, part, parts) for part in range(parts)]
        gradient, rate, scale = rng.standard_normal(size, np.float32), 1e-3 * (6 - i), 0.7 if i % 2 else 1.0
        step(buffers, optimizers, gradient, rate, scale)
        step(whole, [part_of(config, whole)], gradient, rate, scale)
        assert buffers.published.weights.tobytes() == whole.published.weights.tobytes()
        parameter.grad = torch.from_numpy(gradient).mul_(scale)
        public.param_groups[0]["lr"] = rate
        public.step()
        np.testing.assert_allclose(buffers.published.weights, parameter.detach().numpy(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("size", [1, 15, 16, 33, 3000])
def test_kernels_and_numpy_have_the_same_bits(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(size)
    start = rng.standard_normal((4, size), np.float32)
    start[3] = np.abs(start[3])
    shards = rng.standard_normal((SHARDS, size + 5), np.float32)[:, :size]
    numbers = 0.7, 0.1, 0.001, 1e-3, 1.5, 1e-5
    found = []
    for variant in supported_variants():
        arrays, total = start.copy(), np.empty(size, np.float32)
        kernels(variant).adam(*(array.ctypes.data for array in arrays), size, *numbers)
        kernels(variant).add_rows(shards.ctypes.data, SHARDS, size + 5, total.ctypes.data, size)
        found.append(arrays.tobytes() + total.tobytes())
    monkeypatch.setattr(functions, "supported_variants", list)
    arrays, total = start.copy(), np.empty(size, np.float32)
    functions.adam(list(arrays), *numbers)
    functions.add_rows(shards, total)
    assert {*found, arrays.tobytes() + total.tobytes()} == {arrays.tobytes() + total.tobytes()}


def test_before_the_first_step_there_is_no_state() -> None:
    assert optimizer_state(memory(np.ones(3))) == {"state": {}}


def test_a_state_is_no_copy() -> None:
    """Each iteration computes a hash of it."""
    buffers = memory(np.ones(3))
    step(buffers, [part_of(config_of("adam"), buffers)], np.ones(3), 0.1)
    assert np.shares_memory(optimizer_state(buffers)["state"][0]["exp_avg"], buffers.optimizer.moments)


def test_steps_with_a_gradient_of_zero_count() -> None:
    """Adam's correction of the moments depends on their number."""
    buffers, config = memory(np.ones(3)), config_of("adam")
    step(buffers, [part_of(config, buffers)], np.zeros(3), 0.1)
    restored = memory(buffers.published.weights)
    load_optimizer_state(restored, optimizer_state(buffers))
    for own in (buffers, restored):
        step(own, [part_of(config, own)], np.ones(3), 0.1)
    np.testing.assert_array_equal(buffers.published.weights, restored.published.weights)


@pytest.mark.parametrize("parts", [1, 3])
def test_gradients_are_added_in_the_order_of_the_shards(parts: int) -> None:
    buffers = memory(np.ones(1000))
    gradients = buffers.shard_results.gradients
    gradients[:] = np.random.default_rng(0).standard_normal(gradients.shape, np.float32)
    for part in range(parts):
        part_of(config_of("adam"), buffers, part, parts).add_gradients()
    expected = gradients[0].copy()
    for shard in gradients[1:]:
        expected += shard
    np.testing.assert_array_equal(buffers.shard_results.total, expected)
