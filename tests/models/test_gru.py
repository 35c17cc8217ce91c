"""The core gru: the same numbers as torch.nn.GRU, with a backward pass of its own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from shmppo.models.gru import Gru

INPUTS, HIDDEN = 5, 6


def cores(layers: int, dtype: torch.dtype) -> tuple[Gru, nn.GRU]:
    """The core, and torch's module in float64 with the same weights."""
    torch.manual_seed(0)
    core, exact = Gru(INPUTS, HIDDEN, layers), nn.GRU(INPUTS, HIDDEN, layers)
    exact.load_state_dict(core.state_dict())
    return core.to(dtype), exact.double()


def inputs(layers: int, steps: int, dtype: torch.dtype, sequences: int = 3) -> list[Tensor]:
    """Inputs of some sequences [L, J, INPUTS], and their first states [layers, J, H]."""
    generator = torch.Generator().manual_seed(1)
    shapes = (steps, sequences, INPUTS), (layers, sequences, HIDDEN)
    return [torch.randn(*shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def gradients(core: nn.GRU, outputs: tuple[Tensor, Tensor], wanted: list[Tensor]) -> tuple[Tensor, ...]:
    """Gradients of a weighted sum of the features and the last state."""
    total = sum((part * torch.linspace(-1, 1, part.numel()).view_as(part)).sum() for part in outputs)
    assert isinstance(total, Tensor)
    return torch.autograd.grad(total, [*wanted, *core.parameters()])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize(("layers", "steps", "sequences"), [(1, 1, 1), (1, 1, 3), (1, 2, 1), (2, 9, 3)])
def test_outputs_and_gradients_are_those_of_torch_in_float64(
    layers: int, steps: int, sequences: int, dtype: torch.dtype, tolerance: float
) -> None:
    core, exact = cores(layers, dtype)
    arguments = inputs(layers, steps, dtype, sequences)
    exact_arguments = inputs(layers, steps, torch.float64, sequences)
    outputs, expected = core(*arguments), exact(*exact_arguments)
    assert "_Recurrence" in type(outputs[0].grad_fn).__name__
    found = (*outputs, *gradients(core, outputs, arguments))
    wanted = (*expected, *gradients(exact, expected, exact_arguments))
    for got, right in zip(found, wanted, strict=True):
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), right, rtol=tolerance, atol=tolerance)
    for got, right in zip(core.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(got.double(), right, rtol=0, atol=0)  # the weights are left as they were


def test_gradients_agree_with_finite_differences() -> None:
    core, _ = cores(2, torch.float64)
    names, parameters = zip(*core.named_parameters(), strict=True)

    def function(x: Tensor, state: Tensor, *changed: Tensor) -> tuple[Tensor, Tensor]:
        outputs: tuple[Tensor, Tensor] = torch.func.functional_call(
            core, dict(zip(names, changed, strict=True)), (x, state)
        )
        return outputs

    changed = [parameter.detach().clone().requires_grad_() for parameter in parameters]
    assert torch.autograd.gradcheck(function, [*inputs(2, 5, torch.float64), *changed], fast_mode=True)


def test_without_gradients_the_outputs_are_the_same() -> None:
    core, _ = cores(2, torch.float32)
    arguments = inputs(2, 9, torch.float32)
    with torch.no_grad():
        without = core(*arguments)
    for got, right in zip(core(*arguments), without, strict=True):
        torch.testing.assert_close(got, right, rtol=1e-6, atol=1e-6)


def test_the_recurrence_stays_in_float32_under_autocast() -> None:
    """The inputs are rounded to bf16. The products with the state are not."""
    core, _ = cores(1, torch.float32)
    nn.init.zeros_(core.bias_ih_l0)
    x, state = inputs(1, 9, torch.float32)
    zero = torch.zeros_like(x)
    with torch.autocast("cpu", torch.bfloat16):
        features, _ = core(zero, state)
        gradient = torch.autograd.grad(features.sum(), state)[0]
    exact, _ = core(zero, state)
    assert torch.equal(features, exact)
    assert torch.equal(gradient, torch.autograd.grad(exact.sum(), state)[0])
