"""Results of acting do not depend on the other rows of an inference batch, nor on its size; the checks can fail."""

from __future__ import annotations

import pytest
import torch
from helpers import CORES, DISTRIBUTION, OBS_SIZE, small_network

from shmppo.sampling.actor import ActingNetwork, InferenceBatches, InferenceSlice
from shmppo.sampling.batch_invariance import MAX_ROWS, inference_batches, is_batch_size_invariant, is_row_independent


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


@pytest.mark.parametrize(("core", "layers"), CORES)
def test_a_larger_inference_batch_gives_the_same_bits(core: str, layers: int) -> None:
    _, model = small_network(core, layers)
    batches = inference_batches(model, DISTRIBUTION, 5, 30, 8)
    if torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        assert batches == InferenceBatches([InferenceSlice(0, slice(5, 30), slice(0, 25))], 32)
    wide, narrow = (ActingNetwork(model, DISTRIBUTION, batches=count, rows=32 // count) for count in (1, 4))
    obs, state = torch.randn(32, OBS_SIZE), torch.randn(32, model.state_size)
    for network in (wide, narrow):
        network.load()
        network.obs[0].flatten(0, 1).copy_(obs)
        network.state.flatten(0, 1).copy_(state)
    with torch.inference_mode():
        wide.step(0)
        for batch in range(4):
            narrow.step(batch)
            part = slice(8 * batch, 8 * batch + 8)
            same = torch.equal(wide.params[part], narrow.params) and torch.equal(wide.values[part], narrow.values)
            assert same or batches.rows == 8
            assert torch.equal(wide.state[0, part], narrow.state[batch]) or batches.rows == 8


def test_batches_have_at_most_max_rows_and_cover_the_range() -> None:
    _, model = small_network("none", 1)
    batches = inference_batches(model, DISTRIBUTION, 3, 210, 8)
    slices = batches.slices
    assert batches.rows <= MAX_ROWS
    assert slices[0].own == slice(0, batches.rows - 3)
    assert [a.own.stop for a in slices[:-1]] == [b.own.start for b in slices[1:]]
    assert slices[-1].own.stop == 207
    assert all(s.rows.stop - s.rows.start == s.own.stop - s.own.start for s in slices)


def test_the_check_of_batch_sizes_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    _, model = small_network("none", 1)
    step = ActingNetwork.step

    def by_width(network: ActingNetwork, batch: int) -> None:
        step(network, batch)
        network.params.add_(1e-6 * len(network.params))

    monkeypatch.setattr(ActingNetwork, "step", by_width)
    batches = inference_batches(model, DISTRIBUTION, 0, 16, 8)
    assert (len(batches.slices), batches.rows) == (2, 8)


def test_the_check_of_batch_sizes_fails_without_weights() -> None:
    _, model = small_network("lstm", 1)
    for parameter in model.parameters():
        parameter.data.zero_()
    wide, narrow = (ActingNetwork(model, DISTRIBUTION, batches=1, rows=rows) for rows in (16, 8))
    assert not is_batch_size_invariant(wide, narrow)
