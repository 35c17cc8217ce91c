"""Results of acting do not depend on the other rows of an inference batch, and the check of this can fail."""

from __future__ import annotations

import pytest
from helpers import CORES, DISTRIBUTION, small_network

from shmppo.sampling.actor import ActingNetwork
from shmppo.sampling.row_independence import is_row_independent


@pytest.mark.parametrize("rows", [8, 16, 32])
@pytest.mark.parametrize(("core", "layers"), CORES)
def test_a_row_does_not_depend_on_the_other_rows(core: str, layers: int, rows: int) -> None:
    _, model = small_network(core, layers)
    network = ActingNetwork(model, DISTRIBUTION, batches=1, rows=rows)
    network.load()
    assert is_row_independent(network)


def test_the_check_of_row_independence_can_fail() -> None:
    _, model = small_network("none", 1)
    network = ActingNetwork(model, DISTRIBUTION, batches=1, rows=8)
    network.load()
    step = network.step

    def leaking(batch: int) -> None:
        step(batch)
        network.params.add_(network.params.mean())

    network.step = leaking  # type: ignore[method-assign]
    assert not is_row_independent(network)
