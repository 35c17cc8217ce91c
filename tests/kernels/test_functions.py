"""Elementwise functions, the norm, and the factors of `lru`, against float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from helpers import assert_near, slow_after

from shmppo.kernels import functions, kernels, supported_variants
from shmppo.models.lru import LruLayer
from shmppo.models.native_layers import Scan

FUNCTIONS = {
    # The exact function, and a bound of the relative error: 1.2 times that of all float32, which the slow test prints.
    "exp": (lambda x: np.where(x < -87, 0, np.where(x > 87, np.inf, np.exp(np.clip(x, -87, 87)))), 1.2 * 9.231e-8),
    "tanh": (np.tanh, 1.2 * 1.812e-7),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-np.clip(x, -87, 87))), 1.2 * 1.479e-7),
    "log": (np.log, 1.2 * 1.757e-7),
    "softplus": (lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.minimum(np.abs(x), 87))), 1.2 * 2.7e-7),
}
FLOATS = {"log": range(0x00800000, 0x7F800000)}  # the bits of the arguments; of the other functions all


def apply(function: int, x: np.ndarray, variant: str | None = None) -> np.ndarray:
    y = np.zeros_like(x)
    kernels(variant).apply_function(function, x.ctypes.data, y.ctypes.data, len(x))
    return y


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("stride", [4099, *slow_after(0, [1], "about 5 min per function")])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_elementwise_functions_against_float64(name: str, stride: int) -> None:
    (exact, bound), number = FUNCTIONS[name], list(FUNCTIONS).index(name)
    largest, at, size, floats = 0.0, np.float32(0), stride << 20, FLOATS.get(name, range(2**32))
    for begin in range(floats.start, floats.stop, size):
        x = np.arange(begin, min(begin + size, floats.stop), stride, dtype=np.int64).astype(np.uint32).view(np.float32)
        x = x[~np.isnan(x)]
        y, wanted = apply(number, x).astype(np.float64), exact(x.astype(np.float64))
        rounded = (wanted != 0) & np.isfinite(wanted)
        assert (y[~rounded] == wanted[~rounded]).all()
        errors = np.abs(y[rounded] / wanted[rounded] - 1)
        if (error := float(errors.max(initial=0))) > largest:
            largest, at = error, x[rounded][errors.argmax()]
    print(f"{name}: largest relative error {largest:.4g} at {at!r}")
    assert largest <= bound


def test_special_values_and_parts_of_vectors() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 0, -0.0, 1e-40, -1e-40, 1.4e-45], np.float32)
    found = [apply(function, x, variant) for function in range(5) for variant in supported_variants()]
    assert np.isnan([y[0] for y in found]).all()
    exp, tanh, sigmoid, _, softplus = found[:: len(supported_variants())]
    np.testing.assert_array_equal(exp[1:5], [np.inf, 0, np.inf, 0])
    np.testing.assert_array_equal(softplus[[1, 3]], x[[1, 3]])
    np.testing.assert_array_equal(exp[5:], np.ones(5))
    np.testing.assert_array_equal(tanh[1:5], [1, -1, 1, -1])
    np.testing.assert_array_equal(tanh[5:], x[5:])
    assert (sigmoid[[2, 4]] < 2e-38).all()
    np.testing.assert_array_equal(sigmoid[[1, 3]], [1, 1])
    np.testing.assert_array_equal(sigmoid[5:], np.full(5, 0.5))
    dense = np.linspace(-95, 95, 1003, dtype=np.float32)
    for function in range(5):
        whole = apply(function, dense)
        for variant in supported_variants():
            for count in range(1, 40):
                assert apply(function, dense[-count:], variant).tobytes() == whole[-count:].tobytes()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_arrays_are_nearly_those_of_numpy_without_a_library(name: str, request: Any) -> None:
    x = np.linspace(0.01, 20, 12, dtype=np.float32).reshape(3, 4)[:, ::-1]
    computed = getattr(functions, name)(x)
    request.getfixturevalue("not_compiled")
    np.testing.assert_allclose(computed, getattr(functions, name)(x), rtol=1e-6)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 1000])
def test_the_norm(count: int, request: Any) -> None:
    x = np.random.default_rng(count).normal(size=count).astype(np.float32)
    exact = math.sqrt(math.fsum(float(value) ** 2 for value in x))
    assert functions.norm(x) == pytest.approx(exact, rel=1e-14)
    request.getfixturevalue("not_compiled")
    assert functions.norm(x) == pytest.approx(exact, rel=1e-14)


def test_the_factors_of_an_lru_and_their_derivatives() -> None:
    generator = np.random.default_rng(1)
    layer = LruLayer(3, 67, 40)
    for parameter in (layer.log_decay, layer.log_phase):
        parameter.data += torch.from_numpy(generator.normal(0, 1.5, 67).astype(np.float32))
    layer.log_decay.data[:40] = torch.linspace(-60, -10, 40)  # |λ|² rounds to nearly 1, or to 1
    scan = Scan(layer, 2)
    scan.load()
    scan.by_factors[:] = generator.normal(size=scan.by_factors.shape)
    factors = torch.cat(layer.double().factors())
    assert_near(scan.factors, factors.detach().numpy(), 1e-7)
    for shard, by_factors in enumerate(torch.from_numpy(scan.by_factors).double()):
        exact = torch.autograd.grad((factors * by_factors).sum(), [layer.log_decay, layer.log_phase], retain_graph=True)
        for found, expected in zip(scan.gradients(shard), exact, strict=True):
            assert_near(found, expected.numpy(), 1e-6)
