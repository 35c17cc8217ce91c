"""Results of acting do not depend on the other rows of an inference batch, and the check of this can fail."""

from __future__ import annotations

import pytest
from helpers import CORES, small_network

from shmppo.sampling.row_independence import is_row_independent


@pytest.mark.parametrize("rows", [1, 5, 8, 13, 16, 32])
@pytest.mark.parametrize(("core", "layers"), CORES)
def test_a_row_does_not_depend_on_the_other_rows(core: str, layers: int, rows: int) -> None:
    assert is_row_independent(small_network(core, layers)[1], rows)


def test_the_check_of_row_independence_can_fail() -> None:
    _, model = small_network("none", 1)
    model.policy_head.register_forward_hook(lambda _, __, output: output + output.mean())
    assert not is_row_independent(model, 8)
