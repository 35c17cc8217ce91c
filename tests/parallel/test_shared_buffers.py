"""The layout table of the shared memory, and the typed views that are made from it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from helpers import COUNTERS as CONFIG

from shmppo.envs.inspection import inspect_task
from shmppo.parallel.shared_buffers import GROUPS, SharedBuffers, aligned, allocate, declared_arrays, total_bytes
from shmppo.ppo.layout import run_fields


@pytest.fixture
def buffers() -> SharedBuffers:
    fields = run_fields(CONFIG, inspect_task(CONFIG))
    return SharedBuffers(fields, allocate(fields))


def test_the_memory_is_as_large_as_its_table_and_every_field_is_aligned(buffers: SharedBuffers) -> None:
    assert buffers.memory.is_shared()  # type: ignore[no-untyped-call]
    assert buffers.memory.numel() == total_bytes(buffers.fields)
    addresses = {field.path: buffers.arrays[field.path].__array_interface__["data"][0] for field in buffers.fields}
    assert all(address % 64 == 0 for address in addresses.values())
    begin = buffers.memory.data_ptr()
    for field in buffers.fields:
        if field.bytes:  # numpy may give an empty array any address
            assert addresses[field.path] == begin, "fields overlap, or memory between them is lost"
        begin += aligned(field.bytes)


def test_views_and_paths_are_the_same_arrays(buffers: SharedBuffers) -> None:
    arrays = [
        buffers.published, buffers.rollout, buffers.acting, *buffers.carries, buffers.minibatches,
        buffers.shard_results, buffers.optimizer, buffers.evaluation, buffers.timings, buffers.control,
    ]  # fmt: skip
    views = dict(zip(GROUPS, arrays, strict=True))
    seen = set()
    for field in buffers.fields:
        view = vars(views[field.group])
        value = {**view, **view.get("added", {})}[field.name]
        (array,) = value if isinstance(value, tuple) else (value,)
        assert array is buffers.arrays[field.path]
        assert (array.shape, array.dtype) == (field.shape, field.dtype)
        seen.add(field.path)
    assert len(seen) == len(buffers.fields) == len(buffers.arrays)
    assert seen == {f"{group}.{name}" for group, view in GROUPS.items() for name in declared_arrays(view)}


def test_shapes_by_hand(buffers: SharedBuffers) -> None:
    # T = 20, N = 5, W = 2, K = 2, M = 2, G = 2, L = 4, so C = 5; an LSTM of 8 units has S = 16 numbers of state
    shapes = {field.path: field.shape for field in buffers.fields}
    assert shapes["rollout.obs"] == (20, 5, 2)
    assert shapes["rollout.sequence_state"] == (5, 5, 16)
    assert shapes["rollout.obs_moments"] == (5, 2, 2)
    assert shapes["carry_even.obs"] == shapes["carry_odd.obs"] == (5, 2)
    assert shapes["minibatches.step_targets"] == (100, 4)
    assert shapes["minibatches.bounds"] == (2, 2, 3)
    assert shapes["control.commands"] == (2, 12)


def test_each_leaf_of_a_nested_observation_is_an_array_of_its_type() -> None:
    config = dataclasses.replace(CONFIG, env="space_environments:Shaped", env_kwargs={"space": "dict"})
    task = inspect_task(config)
    fields = run_fields(config, task)
    buffers, leaves = SharedBuffers(fields, allocate(fields)), task.observation.leaves
    assert len(leaves) > 3
    for leaf, array, carried in zip(leaves, buffers.rollout.obs, buffers.carries[0].obs, strict=True):
        assert array is buffers.arrays[f"rollout.{leaf.field}"]
        assert (array.shape, array.dtype) == ((20, 5, *leaf.shape), np.dtype(leaf.dtype))
        assert (carried.shape, carried.dtype) == ((5, *leaf.shape), np.dtype(leaf.dtype))


def test_two_views_of_one_memory_see_the_same_numbers(buffers: SharedBuffers) -> None:
    other = SharedBuffers(buffers.fields, buffers.memory)
    buffers.rollout.reward[3, 2] = 7.5
    assert other.rollout.reward[3, 2] == 7.5
    assert np.count_nonzero(other.memory.numpy()) == np.count_nonzero(np.array([7.5]).view(np.uint8))
