"""Threads and aligned memory."""

from __future__ import annotations

import operator
from contextlib import suppress
from functools import partial

import pytest
import torch

from shmppo.utils.torch_utils import ALIGNMENT, aligned_zeros, blas_libraries, numeric_modes, set_numeric_modes


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


SETTINGS = [
    f"backends.{part}fp32_precision" for part in
    ("", "cudnn.", "cudnn.conv.", "cudnn.rnn.", "cuda.matmul.", "mkldnn.matmul.", "mkldnn.conv.", "mkldnn.rnn.")
]  # fmt: skip


@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize("value", ["ieee", "tf32"])
@pytest.mark.parametrize("name", [*SETTINGS, "backends.mkldnn.enabled", "backends.cudnn.allow_tf32"])
def test_settings_of_torch_do_not_count_and_are_restored(name: str, value: str, allowed: bool) -> None:
    path, _, attribute = name.rpartition(".")
    if not hasattr(torch.backends, "fp32_precision"):
        pytest.skip("torch before 2.9")
    torch.backends.cudnn.allow_tf32 = allowed
    part = operator.attrgetter(path)(torch)
    kept, neutral = getattr(part, attribute), all_settings()
    with numeric_modes():
        expected = all_settings()
    assert all_settings() == neutral
    setattr(part, attribute, value if attribute == "fp32_precision" else not kept)
    before = all_settings()
    try:
        with numeric_modes():
            assert all_settings() == expected
            setattr(part, attribute, value if attribute == "fp32_precision" else not kept)  # as an environment may do
            set_numeric_modes()
            assert all_settings() == expected
            with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
                assert torch.get_float32_matmul_precision() == "highest"
        assert before.items() <= all_settings().items()
    finally:
        setattr(part, attribute, kept)
    assert all_settings() == neutral


def all_settings() -> dict[str, object]:
    names = [*SETTINGS, "backends.mkldnn.enabled", "backends.cudnn.allow_tf32", "get_float32_matmul_precision"]
    found = {}
    for name in names:
        with suppress(RuntimeError):  # settings contradict one another
            value = operator.attrgetter(name)(torch)
            found[name] = value() if callable(value) else value
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
    product = partial(torch.matmul, torch.ones(2, 2), torch.ones(2, 2))
    with torch.autocast("cpu", torch.bfloat16):
        with numeric_modes():
            assert product().dtype == torch.float32
            torch.set_autocast_enabled("cpu", True)  # as code of an environment may do
            set_numeric_modes()
            assert product().dtype == torch.float32
        assert product().dtype == torch.bfloat16


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
