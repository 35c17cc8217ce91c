"""The core lmu: against a step loop in float64, and its memory."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import memory_run, with_noise
from public_helpers import train_in
from torch import Tensor

from shmppo.errors import ConfigError
from shmppo.models.lmu import SIGNALS, DelayMemory, Lmu, delay_network, memory_order, memory_size
from shmppo.runs.launch import train

INPUTS, HIDDEN, WINDOW, STEPS, SEQUENCES = 5, 14, 11, 21, 3


def small_core(layers: int) -> Lmu:
    """A small core with random biases as well as weights."""
    torch.manual_seed(0)
    return with_noise(Lmu(INPUTS, HIDDEN, layers, WINDOW), 0.2)


def inputs(layers: int) -> tuple[Tensor, Tensor]:
    """Inputs of some sequences [L, J, INPUTS], and their first states [layers, J, K·D]."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(STEPS, SEQUENCES, INPUTS, generator=generator)
    return x, 0.3 * torch.randn(layers, SEQUENCES, memory_size(HIDDEN, WINDOW), generator=generator)


def reference_matrices(order: int, theta: int) -> tuple[np.ndarray, np.ndarray]:
    """Ā [D, D] and B̄ [D] from the definition: Taylor series of the exponential, and B̄ = A⁻¹ (Ā − 1) B."""
    a, b = np.zeros((order, order)), np.zeros(order)
    for i in range(order):
        b[i] = (2 * i + 1) * (-1) ** i / theta
        for j in range(order):
            a[i, j] = (2 * i + 1) / theta * (-1 if i < j else (-1) ** (i - j + 1))
    discrete = np.eye(order)
    for k in range(40, 0, -1):  # Horner's rule for exp(A / 64)
        discrete = np.eye(order) + a @ discrete / (64 * k)
    discrete = np.linalg.matrix_power(discrete, 64)
    return discrete, np.linalg.solve(a, (discrete - np.eye(order)) @ b)


def reference(core: Lmu, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The core step by step in float64, signal by signal. Arguments and results are those of `Lmu.forward`."""
    order = memory_order(HIDDEN, WINDOW)
    transition, into = map(torch.from_numpy, reference_matrices(order, WINDOW))
    memories = [[list(row.split(order)) for row in layer] for layer in state]  # [layer][sequence][signal]: [D]
    features = []
    for t in range(len(x)):
        rows = list(x[t])
        for layer, of_layer in zip(core.layers, memories, strict=True):
            for j, row in enumerate(rows):
                signals = layer.signals.weight @ row + layer.signals.bias
                of_layer[j] = [transition @ m + into * u for m, u in zip(of_layer[j], signals, strict=True)]
                read = layer.from_memory.weight @ torch.cat(of_layer[j]) + layer.from_input.weight @ row
                rows[j] = torch.tanh(read + layer.from_input.bias)
        features.append(torch.stack(rows))
    after = torch.stack([torch.stack([torch.cat(of_row) for of_row in of_layer]) for of_layer in memories])
    return torch.stack(features), after


@pytest.mark.parametrize("layers", [1, 2])
def test_outputs_agree_with_a_step_loop_in_float64(layers: int) -> None:
    core = small_core(layers)
    x, state = inputs(layers)
    with torch.no_grad():
        expected = reference(copy.deepcopy(core).double(), x.double(), state.double())
        for found, wanted in zip(core(x, state), expected, strict=True):
            torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)


def test_the_memory_holds_a_slow_signal_of_the_whole_window() -> None:
    """The coefficients of Legendre polynomials reconstruct u(t − δ) for every delay δ up to θ."""
    order, theta = 12, 40
    transition, into = map(torch.from_numpy, delay_network(order, theta))
    assert torch.linalg.eigvals(transition).abs().max() < 1
    signal = torch.sin(2 * torch.pi * torch.arange(200, dtype=torch.float64) / 50)
    memory = torch.zeros(order, dtype=torch.float64)
    for value in signal:
        memory = transition @ memory + into * value
    for delay in (0, 10, 25, 40):
        # Shifted Legendre polynomials at δ / θ, by Bonnet's recursion. A held input is half a step late on average.
        x = 2 * delay / theta - 1
        values = [1.0, x]
        for n in range(1, order - 1):
            values.append(((2 * n + 1) * x * values[n] - n * values[n - 1]) / (n + 1))
        decoded = float(torch.tensor(values, dtype=torch.float64) @ memory)
        assert decoded == pytest.approx(float(signal[199 - delay]), abs=0.1)


@pytest.mark.parametrize(("hidden", "window", "order"), [(1, 1, 2), (3, 40, 2), (16, 5, 5), (128, 64, 64), (16, 64, 8)])
def test_the_number_of_coefficients(hidden: int, window: int, order: int) -> None:
    assert memory_order(hidden, window) == order
    core = Lmu(3, hidden, 2, window)
    state = torch.zeros(2, 4, SIGNALS * order)
    features, after = core(torch.ones(9, 4, 3), state)
    assert features.shape == (9, 4, hidden)
    assert after.shape == state.shape
    assert not core.layers[0].memory.state_dict(), "constants must not be in checkpoints"
    assert core.constant_products == 2 * SIGNALS * order**2


def test_the_memory_keeps_its_precision_with_autocast() -> None:
    memory = DelayMemory(6, WINDOW)
    signals, state = torch.randn(STEPS, SEQUENCES, SIGNALS), torch.randn(SEQUENCES, SIGNALS * 6)
    rounded = signals.bfloat16()
    expected = memory(rounded.float(), state)
    with torch.autocast("cpu", torch.bfloat16):
        found = memory(rounded, state)
    assert [tensor.dtype for tensor in found] == [torch.float32] * 2
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


SMALL = memory_run("lmu")


def test_weights_of_another_window_are_refused(tmp_path: Path) -> None:
    """With 8 units there are 4 coefficients for any window, so the shapes are the same."""
    train_in(tmp_path / "run", SMALL, workers=0, stop_at_iteration=1)
    config = dataclasses.replace(SMALL, init_from=str(tmp_path / "run"), run_dir=str(tmp_path / "new"), workers=0)
    with pytest.raises(ConfigError, match=r"was trained with --seq-len 9; add this flag$"):
        train(dataclasses.replace(config, seq_len=10))
    assert train(dataclasses.replace(config, stop_at_iteration=1))["exact"]
