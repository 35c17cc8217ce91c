"""The core lru: against a step loop in float64, and its parameters."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from helpers import with_noise
from torch import Tensor

from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.models.actor_critic import build_model
from shmppo.models.lru import Lru

INPUTS, HIDDEN, WINDOW, STEPS, SEQUENCES = 5, 14, 11, 21, 3


def small_core(layers: int) -> Lru:
    """A small core with random biases as well as weights."""
    torch.manual_seed(0)
    return with_noise(Lru(INPUTS, HIDDEN, layers, WINDOW), 0.2)


def inputs(layers: int) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs of some sequences [L, J, INPUTS], and the parts of their first states, [layers, J, H] each."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(STEPS, SEQUENCES, INPUTS, generator=generator)
    real, imaginary = 0.3 * torch.randn(2, layers, SEQUENCES, HIDDEN, generator=generator)
    return x, real, imaginary


def reference(core: Lru, x: Tensor, real: Tensor, imaginary: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The core step by step in float64, sequence by sequence. Returns features and the parts of the last state."""
    states = [list(torch.complex(*parts)) for parts in zip(real, imaginary, strict=True)]  # [layer][sequence]: [H]
    features = []
    for t in range(len(x)):
        rows = list(x[t])
        for layer, of_layer in zip(core.layers, states, strict=True):
            size = torch.exp(-torch.exp(layer.log_decay))
            eigenvalue = size * torch.exp(1j * torch.exp(layer.log_phase))
            for j, row in enumerate(rows):
                into = layer.into.weight @ row + layer.into.bias
                scaled = torch.sqrt(1 - size**2) * torch.complex(into[:HIDDEN], into[HIDDEN:])
                of_layer[j] = eigenvalue * of_layer[j] + scaled
                read = layer.from_state.weight @ torch.cat([of_layer[j].real, of_layer[j].imag])
                rows[j] = torch.tanh(read + layer.from_input.weight @ row + layer.from_input.bias)
        features.append(torch.stack(rows))
    last = torch.stack([torch.stack(of_layer) for of_layer in states])
    return torch.stack(features), last.real, last.imag


def flat(outputs: tuple[Tensor, tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    """Return features and the parts of the last state."""
    return outputs[0], *outputs[1]


@pytest.mark.parametrize("layers", [1, 2])
def test_outputs_agree_with_a_step_loop_in_float64(layers: int) -> None:
    core = small_core(layers)
    x, *state = inputs(layers)
    with torch.no_grad():
        expected = reference(copy.deepcopy(core).double(), *(tensor.double() for tensor in (x, *state)))
        for found, wanted in zip(flat(core(x, tuple(state))), expected, strict=True):
            torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)


def test_at_the_start_numbers_decay_over_the_window_and_rotate_by_different_angles() -> None:
    layer = Lru(3, 40, 1, 50).layers[0]
    real, imaginary, gamma = (part.detach() for part in layer.factors())
    size = torch.hypot(real, imaginary)
    torch.testing.assert_close(size**50, torch.full((40,), math.exp(-1)), rtol=1e-4, atol=0)
    torch.testing.assert_close(gamma, torch.sqrt(1 - size**2), rtol=1e-4, atol=1e-5)
    angles = torch.atan2(imaginary, real)
    torch.testing.assert_close(angles.diff(), torch.full((39,), math.pi / 40), rtol=1e-4, atol=1e-5)
    assert float(angles[0] + angles[-1]) == pytest.approx(math.pi, abs=1e-5)


def test_a_trunk_keeps_the_first_decays_and_sets_the_other_parameters() -> None:
    config = TrainConfig(env="Pendulum-v1", core="lru", num_layers=2, seq_len=30)
    task = inspect_task(config)
    core = build_model(config, task.observation, task.distribution).trunk_list[0].core
    assert isinstance(core, Lru)
    for layer in core.layers:
        torch.testing.assert_close(layer.log_decay.detach().exp(), torch.full((64,), 1 / 30))
        assert float(layer.log_phase.detach().exp().max()) == pytest.approx(math.pi, abs=0.03)
        assert not layer.into.bias.any()
        weight = layer.from_state.weight.detach()
        torch.testing.assert_close(weight @ weight.T, torch.eye(64), rtol=1e-4, atol=1e-4)


def test_the_recurrence_keeps_its_precision_with_autocast() -> None:
    core = small_core(1)
    x, *state = inputs(1)
    with torch.autocast("cpu", torch.bfloat16):
        _, (real, imaginary) = core(x, tuple(state))
    assert real.dtype == imaginary.dtype == torch.float32
    layer = core.layers[0]
    rounded = (layer.into.weight.bfloat16() @ x.bfloat16().unsqueeze(-1)).squeeze(-1) + layer.into.bias.bfloat16()
    by_real, by_imaginary, gamma = (part.detach() for part in layer.factors())
    eigenvalue, h = torch.complex(by_real, by_imaginary), torch.complex(state[0][0], state[1][0])
    for u in rounded.float():
        h = eigenvalue * h + gamma * torch.complex(u[:, :HIDDEN], u[:, HIDDEN:])
    torch.testing.assert_close(torch.complex(real[0], imaginary[0]), h, rtol=0.02, atol=0.02)
