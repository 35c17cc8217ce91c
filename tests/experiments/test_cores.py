"""The networks of figures/cores: one function for any length, right gradients, and the same weights for any workers."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor

from figures.cores.averaging_scan import averaging_scan
from figures.cores.networks import NETWORKS, RecurrentNetwork
from shmppo.config.train_config import TrainConfig
from shmppo.runs.trainer import resume, train

SHAPES = {"obs/card": (3,), "obs/view": (2, 2, 1)}
STEPS, SEQUENCES = 21, 3
CONFIG = TrainConfig(hidden_size=8, encoder_sizes=(6,), num_layers=2, seq_len=16)


def network(name: str) -> RecurrentNetwork:
    """A small network with random biases as well as weights."""
    torch.manual_seed(0)
    made = NETWORKS[name](SHAPES, CONFIG)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return made


def inputs(made: RecurrentNetwork, steps: int = STEPS) -> tuple[dict[str, Tensor], Tensor]:
    """Observations of some sequences, and their first state."""
    generator = torch.Generator().manual_seed(1)
    obs = {name: torch.randn(steps, SEQUENCES, *shape, generator=generator) for name, shape in SHAPES.items()}
    return obs, 0.3 * torch.randn(SEQUENCES, made.state_size, generator=generator)


def run(made: RecurrentNetwork, obs: dict[str, Tensor], state: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Features and last state, from calls with `length` steps each."""
    features = []
    count = len(next(iter(obs.values())))
    for start in range(0, count, length):
        part = {name: values[start : start + length] for name, values in obs.items()}
        first = torch.zeros(len(part["obs/card"]), state.shape[0], dtype=torch.bool)
        outputs, state = made(part, first, state)
        features.append(outputs)
    return torch.cat(features), state


def outputs_and_gradients(made: RecurrentNetwork, length: int, dtype: torch.dtype) -> list[Tensor]:
    """Features, last state, and the gradients of a sum over both with respect to state, observation, and parameters."""
    made = copy.deepcopy(made).to(dtype)
    obs, state = inputs(made)
    obs = {name: values.to(dtype).requires_grad_() for name, values in obs.items()}
    state = state.to(dtype).requires_grad_()
    features, last = run(made, obs, state, length)
    weights = torch.linspace(-1, 1, features.numel(), dtype=dtype).view_as(features)
    total = (features * weights).sum() / features[0].numel() + last.square().sum() / last.numel()
    return [features, last, *torch.autograd.grad(total, [state, *obs.values(), *made.parameters()])]


@pytest.mark.parametrize("name", NETWORKS)
def test_whole_sequences_agree_with_single_steps_in_float64(name: str) -> None:
    made = network(name)
    expected = outputs_and_gradients(made, 1, torch.float64)
    for length in (1, 9, STEPS):
        for got, reference in zip(outputs_and_gradients(made, length, torch.float32), expected, strict=True):
            assert got.dtype == torch.float32
            torch.testing.assert_close(got.double(), reference, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_agree_with_finite_differences(name: str) -> None:
    made = network(name).double()
    obs, state = inputs(made, steps=3)
    names, parameters = zip(*made.named_parameters(), strict=True)
    leaves = [values.double() for values in obs.values()]

    def function(state: Tensor, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        observed = dict(zip(obs, tensors, strict=False))
        changed = dict(zip(names, tensors[len(obs) :], strict=True))
        return torch.func.functional_call(made, changed, (observed, torch.zeros(3, SEQUENCES), state))

    arguments = [tensor.detach().clone().requires_grad_() for tensor in (state.double(), *leaves, *parameters)]
    assert torch.autograd.gradcheck(function, arguments, fast_mode=True)


def test_the_gradient_of_the_averaging_scan() -> None:
    torch.manual_seed(0)
    logits, candidate, state = (
        torch.randn(size, dtype=torch.float64, requires_grad=True) for size in ((4, 2, 3), (4, 2, 3), (2, 3))
    )
    expected, h = [], state
    for z, c in zip(torch.sigmoid(logits), candidate, strict=True):
        h = (1 - z) * h + z * c
        expected.append(h)
    torch.testing.assert_close(averaging_scan(logits, candidate, state), torch.stack(expected))
    assert torch.autograd.gradcheck(averaging_scan, (logits, candidate, state))


@pytest.mark.parametrize("name", NETWORKS)
def test_sequences_are_independent_and_their_states_are_packed_in_their_rows(name: str) -> None:
    made = network(name)
    obs, state = inputs(made)
    features, last = run(made, obs, state, STEPS)
    assert features.shape == (STEPS, SEQUENCES, made.features)
    assert last.shape == (SEQUENCES, made.state_size) == state.shape
    for row in range(SEQUENCES):
        alone = run(made, {name: values[:, row : row + 1] for name, values in obs.items()}, state[row : row + 1], STEPS)
        torch.testing.assert_close(alone, (features[:, row : row + 1], last[row : row + 1]))
    # Each number of the state matters for the features or for the next state.
    state.requires_grad_()
    features, last = run(made, obs, state, 2)
    (grad,) = torch.autograd.grad(features.square().sum() + last.square().sum(), state)
    assert (grad != 0).all()


@pytest.mark.long
@pytest.mark.parametrize("name", NETWORKS)
def test_workers_and_resuming_do_not_change_the_weights(name: str, tmp_path: Path) -> None:
    config = TrainConfig(
        network=f"figures.cores.networks:{NETWORKS[name].__name__}", hidden_size=8, num_envs=4, rollout_steps=16,
        seq_len=5, minibatches=2, epochs=2, grad_shards=2, quiet=True, total_steps=4 * 16 * 4, workers=0,
    )  # fmt: skip
    straight = train(dataclasses.replace(config, run_dir=str(tmp_path / "straight")))
    assert straight["exact"]
    train(dataclasses.replace(config, workers=2, stop_at_iteration=2, run_dir=str(tmp_path / "resumed")))
    assert resume(tmp_path / "resumed", workers=2)["weights_sha256"] == straight["weights_sha256"]
