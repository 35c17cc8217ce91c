"""Acting: it agrees with the learning network, and `Actor` reads observations, noise, and states as documented."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from helpers import (
    ACTION_SIZE,
    CORES,
    DISTRIBUTION,
    KERNELS,
    OBS_SIZE,
    assert_acting_agrees,
    random_states,
    small_network,
)

from shmppo.sampling.actor import Actor


@KERNELS
@pytest.mark.parametrize("separate", ["none", "core", "all"])
@pytest.mark.parametrize(("core", "layers"), CORES)
def test_acting_agrees_with_the_learning_network(core: str, layers: int, separate: str, kernel: str) -> None:
    if (core, separate) == ("none", "core"):
        pytest.skip("there is no core")
    _, model = small_network(core, layers, separate)
    generator = torch.Generator().manual_seed(2)
    obs = torch.randn(7, 13, OBS_SIZE, generator=generator).numpy()
    state = random_states(model, 13, 2)
    assert_acting_agrees(kernel, model, [[step] for step in obs], state)


@torch.inference_mode()
@KERNELS
@pytest.mark.parametrize("separate", ["none", "all"])
@pytest.mark.parametrize(("core", "layers"), CORES)
def test_the_division_of_environments_changes_no_bit(core: str, layers: int, separate: str, kernel: Any) -> None:
    config, model = small_network(core, layers, separate)
    config = dataclasses.replace(config, num_envs=26, kernel=kernel)
    generator = np.random.default_rng(0)
    obs = generator.standard_normal((26, OBS_SIZE), np.float32)
    states = random_states(model, 26, 0).numpy()
    results = []
    for borders in ([0, 26], [0, 13, 26], [0, 1, 8, 17, 18, 26]):
        parts = []
        for low, high in itertools.pairwise(borders):
            actor = Actor(config, model, DISTRIBUTION, [obs[low:high]], low=low)
            actor.load(np.zeros(OBS_SIZE, np.float32), np.ones(OBS_SIZE, np.float32))
            actor.states[:] = states[low:high]
            actions = actor.act(None)
            parts.append(np.concatenate([actions, actor.params, actor.values[:, np.newaxis], actor.states], axis=1))
        results.append(np.concatenate(parts).tobytes())
    assert len(set(results)) == 1


def make_actor(kernel: Any, obs: np.ndarray) -> tuple[Actor, torch.nn.Module]:
    """An actor with an LSTM for the environments 5 … 17, in three inference batches of 8 rows."""
    config, model = small_network("lstm", 1)
    config = dataclasses.replace(config, kernel=kernel)
    actor = Actor(config, model, DISTRIBUTION, [obs], low=5)
    actor.load(np.full(OBS_SIZE, 0.5, np.float32), np.full(OBS_SIZE, 2.0, np.float32))
    return actor, model


@torch.inference_mode()
@KERNELS
def test_an_actor_normalizes_samples_and_updates_its_states(kernel: str) -> None:
    rng = np.random.default_rng(0)
    obs, noise = rng.random((13, OBS_SIZE), np.float32), rng.standard_normal((2, 13, ACTION_SIZE), np.float32)
    actor, model = make_actor(kernel, obs)
    actor.load_noise(noise)
    actor.states[:] = before = np.tanh(rng.standard_normal((13, 24), np.float32))
    actions, params = actor.act(1), actor.params.copy()
    seen = (torch.from_numpy(obs).unsqueeze(0) - 0.5) * 2
    expected_params, expected_values, after = model([seen], torch.from_numpy(before))
    np.testing.assert_allclose(params, expected_params[0], atol=2e-6)
    np.testing.assert_allclose(actor.values, expected_values[0], atol=2e-6)
    np.testing.assert_allclose(actor.states, after, atol=2e-6)
    sampled = DISTRIBUTION.sample(params, noise[1])
    np.testing.assert_allclose(actions, sampled, atol=2e-6)

    actor.states[:] = before
    np.testing.assert_allclose(actor.act(None), DISTRIBUTION.mode(params), atol=2e-6)
    states = actor.states.copy()
    actor.states[:] = before
    actor.advance()
    np.testing.assert_array_equal(actor.states, states)


@torch.inference_mode()
@KERNELS
def test_values_of_other_observations_do_not_change_the_states(kernel: str) -> None:
    rng = np.random.default_rng(1)
    actor, model = make_actor(kernel, rng.random((13, OBS_SIZE), np.float32))
    actor.states[:] = before = np.tanh(rng.standard_normal((13, 24), np.float32))
    other = rng.random((13, OBS_SIZE), np.float32)
    values = actor.values_of([other])
    np.testing.assert_array_equal(actor.states, before)
    np.testing.assert_allclose(
        values, model([(torch.from_numpy(other).unsqueeze(0) - 0.5) * 2], torch.from_numpy(before))[1][0], atol=2e-6
    )
