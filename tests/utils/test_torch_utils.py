"""Threads, aligned memory, and optimizer steps without torch's wrappers."""

from __future__ import annotations

import copy
import dataclasses
import subprocess
import sys
from typing import Any

import pytest
import torch

from shmppo.config.train_config import TrainConfig
from shmppo.ppo.learner import build_optimizer
from shmppo.utils.torch_utils import ALIGNMENT, aligned_zeros, bare_optimizer_step, torch_threads

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adam": {},
    "adamw": {"weight_decay": 0.01},
    "sgd": {"weight_decay": 0.01},
}


def optimizers_and_parameters(name: str) -> list[tuple[torch.optim.Optimizer, torch.nn.Parameter]]:
    """Two optimizers of equal parameters [1000]."""
    config = dataclasses.replace(TrainConfig(), optimizer=name, **OPTIMIZERS[name])  # type: ignore[arg-type]
    start = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    parameters = [torch.nn.Parameter(start.clone()) for _ in range(2)]
    return [(build_optimizer(config, parameter), parameter) for parameter in parameters]


@pytest.mark.long
def test_an_optimizer_is_created_saved_and_loaded_without_the_compiler() -> None:
    """torch._dynamo would delay the start of every run by about 2 s."""
    code = (
        "import sys, torch; from shmppo.config.train_config import TrainConfig\n"
        "from shmppo.ppo.learner import build_optimizer; from shmppo.utils.torch_utils import without_dynamo\n"
        "optimizer = build_optimizer(TrainConfig(), torch.nn.Parameter(torch.zeros(3)))\n"
        "with without_dynamo(): optimizer.load_state_dict(optimizer.state_dict())\n"
        "print('torch._dynamo' in sys.modules)\n"
        "optimizer.state_dict(); print('torch._dynamo' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "True"]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_bare_step_equals_the_public_step_bit_for_bit(name: str) -> None:
    (bare, a), (public, b) = optimizers_and_parameters(name)
    step = bare_optimizer_step(bare)
    generator = torch.Generator().manual_seed(1)
    for i in range(5):
        for optimizer in (bare, public):
            optimizer.param_groups[0]["lr"] = 1e-3 * (5 - i)  # as the learner does in each iteration
        gradient = torch.randn(1000, generator=generator)
        a.grad, b.grad = gradient.clone(), gradient.clone()
        before = a.detach().clone()
        step()
        public.step()
        assert torch.equal(a, b)
        assert not torch.equal(a, before)
    assert a.requires_grad
    states = [optimizer.state_dict()["state"].get(0, {}) for optimizer in (bare, public)]
    assert states[0].keys() == states[1].keys()
    for key, value in states[0].items():
        if value is not None:  # SGD without momentum has an empty buffer
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(states[1][key])), key


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_bare_step_follows_a_loaded_state(name: str) -> None:
    """A resumed run loads the optimizer's state after the step function was made."""
    (bare, a), (public, b) = optimizers_and_parameters(name)
    step = bare_optimizer_step(bare)
    b.grad = torch.linspace(-1, 1, 1000)
    public.step()
    with torch.no_grad():
        a.copy_(b)
    bare.load_state_dict(copy.deepcopy(public.state_dict()))
    a.grad = b.grad = torch.linspace(1, -2, 1000)
    step()
    public.step()
    assert torch.equal(a, b)


def test_a_bare_step_calls_no_hook_and_builds_no_graph() -> None:
    (bare, a), (public, b) = optimizers_and_parameters("adam")
    calls = []
    for optimizer in (bare, public):
        optimizer.register_step_pre_hook(lambda *_: calls.append("hook"))
    a.grad = b.grad = torch.ones(1000)
    bare_optimizer_step(bare)()
    assert calls == []
    assert a.is_leaf
    public.step()
    assert calls == ["hook"]


def test_threads_are_restored_also_after_an_error() -> None:
    before = torch.get_num_threads()
    with torch_threads(before + 1):
        assert torch.get_num_threads() == before + 1
        with torch_threads(1):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    with pytest.raises(ZeroDivisionError), torch_threads(before + 1):
        1 / 0  # noqa: B018
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.float64])
@pytest.mark.parametrize("shape", [(1,), (3, 5), (0, 4), (7, 1, 9)])
def test_aligned_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    kept = [aligned_zeros(*shape, dtype=dtype) for _ in range(5)]
    for tensor in kept:
        assert (tensor.shape, tensor.dtype) == (shape, dtype)
        assert not tensor.any()
        assert tensor.is_contiguous()
        assert tensor.data_ptr() % ALIGNMENT == 0
