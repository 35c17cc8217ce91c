"""Threads and aligned memory."""

from __future__ import annotations

import operator
from contextlib import suppress

import pytest
import torch

from shmppo.utils.torch_utils import (
    _SETTINGS,
    ALIGNMENT,
    aligned_zeros,
    blas_libraries,
    numeric_modes,
    set_numeric_modes,
)


def test_threads_are_restored_also_after_an_error() -> None:
    before = torch.get_num_threads()
    with numeric_modes(before + 1):
        assert torch.get_num_threads() == before + 1
        with numeric_modes():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    with pytest.raises(ZeroDivisionError), numeric_modes(before + 1):
        1 / 0  # noqa: B018
    assert torch.get_num_threads() == before


def test_the_precision_of_products_is_full_and_restored() -> None:
    torch.set_float32_matmul_precision("medium")
    try:
        with numeric_modes():
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("backends.mkldnn.enabled", False),
        ("backends.fp32_precision", "tf32"),
        ("backends.cuda.matmul.fp32_precision", "tf32"),
        ("backends.mkldnn.matmul.fp32_precision", "bf16"),
        ("backends.cudnn.conv.fp32_precision", "ieee"),
    ],
)
def test_settings_of_torch_do_not_count_and_are_restored(name: str, value: object) -> None:
    path, _, attribute = name.rpartition(".")
    try:
        part = operator.attrgetter(path)(torch)
        kept = getattr(part, attribute)
    except AttributeError:
        pytest.skip("torch before 2.9")
    setattr(part, attribute, value)
    before = all_settings()
    try:
        with numeric_modes():
            inside = all_settings()
            setattr(part, attribute, value)  # as code of an environment may do
            set_numeric_modes()
            assert all_settings() == inside
            with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
                assert torch.get_float32_matmul_precision() == "highest"
        assert all_settings() == before
    finally:
        setattr(part, attribute, kept)
    with numeric_modes():
        assert all_settings() == inside


def all_settings() -> dict[str, object]:
    found = {}
    for setting in _SETTINGS:
        with suppress(RuntimeError):  # settings contradict one another
            found[setting] = operator.attrgetter(setting)(torch)
    return found


def test_the_default_dtype_is_that_of_the_program_and_restored() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        with numeric_modes():
            assert torch.get_default_dtype() == torch.float64
            torch.set_default_dtype(torch.float32)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_autocast_of_the_program_does_not_count() -> None:
    with torch.autocast("cpu", torch.bfloat16), numeric_modes():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


def test_products_of_numpy_use_one_thread_which_is_restored() -> None:
    if not blas_libraries():
        pytest.skip("this system does not list the loaded libraries")
    library = blas_libraries()[0]
    before = library.get()
    library.set(2)
    with numeric_modes():
        assert library.get() == 1
        library.set(2)  # as code of an environment may do
        set_numeric_modes()
        assert library.get() == 1
    assert library.get() == 2
    library.set(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.float64])
@pytest.mark.parametrize("shape", [(1,), (3, 5), (0, 4), (7, 1, 9)])
def test_aligned_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    kept = [aligned_zeros(*shape, dtype=dtype) for _ in range(5)]
    for tensor in kept:
        assert (tensor.shape, tensor.dtype) == (shape, dtype)
        assert not tensor.any()
        assert tensor.is_contiguous()
        assert tensor.data_ptr() % ALIGNMENT == 0
