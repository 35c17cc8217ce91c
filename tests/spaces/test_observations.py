"""Every observation space: how it is stored, what the network gets, and that results do not depend on workers."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from helpers import assert_acting_agrees, make_collectors
from public_helpers import SIX_ITERATIONS, train_in
from space_environments import SPACES, Shaped

from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.errors import ConfigError, EnvError
from shmppo.models.actor_critic import build_model
from shmppo.models.encoders import MIN_SIDES, A3cCnn, Mlp, NatureCnn, network_input
from shmppo.parallel.shared_buffers import Rollout
from shmppo.runs.launch import resume, train
from shmppo.sampling.collector import Collector
from shmppo.sampling.row_independence import is_row_independent
from shmppo.spaces.distributions import DiagonalGaussian
from shmppo.spaces.observations import Leaf, ObservationError, hashable, observation_spec
from shmppo.utils.phase_timer import PhaseTimer
from shmppo.utils.rng import episode_seed

BASE = TrainConfig(
    env="space_environments:Shaped", num_envs=4, rollout_steps=16, seq_len=5, minibatches=2, epochs=2, hidden_size=8,
    encoder_sizes=(8,), grad_shards=2, quiet=True, total_steps=4 * 16 * 4, workers=0,
)  # fmt: skip


def shaped(space: str, **fields: Any) -> TrainConfig:
    return dataclasses.replace(BASE, env_kwargs={"space": space}, **fields)


def collector(config: TrainConfig, encoded: list[torch.dtype] | None = None) -> tuple[Rollout, Collector]:
    """A collector of all environments that has begun their first episodes, and the rollout that it writes.

    encoded: gets the types of the leaves that the encoders read.
    """
    buffers, learner, start = make_collectors(config)
    if encoded is not None:
        for encoder in learner.model.trunk_list[0].encoders:
            encoder.register_forward_pre_hook(lambda _, inputs: encoded.extend(leaf.dtype for leaf in inputs[0]))
    return buffers.rollout, start(0, config.num_envs)


@pytest.mark.parametrize("space", SPACES)
def test_every_number_of_an_observation_is_stored(space: str) -> None:
    config = shaped(space)
    encoded: list[torch.dtype] = []
    rollout, one = collector(config, encoded)
    one.collect(0, PhaseTimer())
    leaves = inspect_task(config).observation.leaves
    for t in range(16):
        for n in range(4):
            episode, step = divmod(t, 6)
            expected = Shaped.observation(space, episode_seed(config.seed, n, episode), step)
            for leaf, stored in zip(leaves, rollout.obs, strict=True):
                value = np.asarray(leaf.extract(expected), stored.dtype)
                start = np.array(leaf.starts) if leaf.kind == "codes" else 0
                np.testing.assert_array_equal(stored[t, n], value.reshape(leaf.shape) - start)
    for leaf, stored in zip(leaves, rollout.obs, strict=True):
        if leaf.kind == "image":
            assert stored.dtype == np.uint8
            assert torch.uint8 in encoded or space == "stacked", "an image was converted before the encoder"
            assert stored.max() > leaf.max_value // 2


def test_leaves_have_names_in_the_order_of_their_space() -> None:
    spec = observation_spec(SPACES["dict"], "here")
    found = [(leaf.field, leaf.kind, leaf.input_size) for leaf in spec.leaves]
    assert found == [
        ("obs/camera", "image", 36 * 36), ("obs/flags", "bits", 3), ("obs/inner/0", "codes", 4),
        ("obs/inner/1", "vector", 2), ("obs/inner/2/x", "vector", 1),
    ]  # fmt: skip
    assert spec.normalized_slices == [None, None, None, slice(0, 2), slice(2, 3)]
    assert spec.normalized_size == 3
    with_empty_part = spaces.Dict(empty=spaces.Box(0, 1, (0,)), other=spaces.Box(0, 1, (2,)))
    assert observation_spec(with_empty_part, "here").normalized_slices == [slice(0, 0), slice(0, 2)]


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((84, 84, 3), (3, 84, 84)),
        ((3, 84, 84), (3, 84, 84)),
        ((84, 84), (1, 84, 84)),
        ((4, 84, 84), (4, 84, 84)),
        ((4, 84, 84, 3), (12, 84, 84)),
        ((4, 1, 84, 84), (4, 84, 84)),
        ((7, 7, 3), (3, 7, 7)),
        ((5, 5, 5), (5, 5, 5)),
    ],
)
def test_channel_order_is_detected(shape: tuple[int, ...], size: tuple[int, int, int]) -> None:
    (leaf,) = observation_spec(spaces.Box(0, 255, shape, np.uint8), "here").leaves
    assert leaf.image_size == size


def test_numbers_that_the_network_gets() -> None:
    def given(space: spaces.Space, value: Any) -> np.ndarray:
        (leaf,) = observation_spec(space, "here").leaves
        stored = torch.from_numpy(np.asarray(leaf.to_storage(value), leaf.dtype))
        return network_input(leaf, stored.unsqueeze(0))[0].numpy()

    assert given(SPACES["discrete"], 6).tolist() == [0, 0, 0, 0, 1]
    assert given(SPACES["multidiscrete"], [0, 3]).tolist() == [1, 0, 0, 0, 0, 1, 0]
    assert given(SPACES["multibinary"], [[1, 0, 0], [0, 1, 1]]).tolist() == [1, 0, 0, 0, 1, 1]
    image = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
    np.testing.assert_allclose(
        given(spaces.Box(0, 255, (4, 5, 3), np.uint8), image)[2], image[:, :, 2] / 255, rtol=1e-6
    )
    stacked = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)
    pixels = given(spaces.Box(0, 119, (2, 4, 5, 3), np.uint8), stacked)
    np.testing.assert_allclose(pixels[1 * 3 + 2], stacked[1, :, :, 2] / 119, rtol=1e-6)


def test_the_previous_action_and_reward_are_observed_and_are_zero_at_the_start_of_an_episode() -> None:
    config = shaped("discrete", prev_action=True, prev_reward=True, rollout_steps=8)
    leaves = inspect_task(config).observation.leaves
    assert [leaf.field for leaf in leaves] == ["obs/obs", "obs/prev_action", "obs/prev_reward"]
    rollout, one = collector(config)
    actions: list[np.ndarray] = []
    rewards: list[np.ndarray] = []
    for iteration in range(3):
        one.collect(iteration, PhaseTimer())
        for t in range(8):
            previous_action, previous_reward = rollout.obs[1][t], rollout.obs[2][t, :, 0]
            if (iteration * 8 + t) % 6 == 0:
                assert rollout.first[t].all()
                assert not previous_action.any()
                assert not previous_reward.any()
            else:
                np.testing.assert_array_equal(previous_action, np.eye(3)[actions[-1][:, 0].astype(int)])
                np.testing.assert_array_equal(previous_reward, rewards[-1].astype(np.float32))
            actions.append(rollout.actions[t].copy())
            rewards.append(rollout.reward[t].copy())
    task = inspect_task(shaped("discrete", prev_action=True))
    assert [(leaf.field, leaf.kind) for leaf in task.observation.leaves] == [
        ("obs/obs", "codes"),
        ("obs/prev_action", "bits"),
    ]


def test_hidden_indices_are_those_of_the_environments_own_vector() -> None:
    config = dataclasses.replace(
        BASE, env="Pendulum-v1", env_kwargs={}, hide_obs=(2,), prev_action=True, prev_reward=True
    )
    assert inspect_task(config).observation.leaves[0].field == "obs/obs"
    rollout, one = collector(config)
    one.collect(0, PhaseTimer())
    assert not rollout.obs[0][:, :, 2].any()
    assert rollout.obs[0][:, :, :2].all()
    with pytest.raises(ConfigError, match=r"--hide-obs names \[3\]; use indices of the observation, 0 … 2$"):
        inspect_task(dataclasses.replace(config, hide_obs=(3,)))


def test_a_continuous_previous_action_is_the_clipped_one_that_the_environment_got() -> None:
    config = dataclasses.replace(BASE, env_kwargs={"space": "discrete", "action": "box"}, prev_action=True)
    rollout, one = collector(config)
    one.collect(0, PhaseTimer())
    clipped = np.clip(rollout.actions[:5], -1, 1)
    np.testing.assert_array_equal(rollout.obs[1][1:6], clipped)
    assert (np.abs(rollout.actions[:5]) > 1).any()


ENCODERS = [
    ("mlp", "matrix"), ("mlp", "stacked"), ("mlp", "dict"), ("nature", "image"), ("a3c", "image"), ("impala", "image"),
    ("auto", "dict"),
]  # fmt: skip


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize(("encoder", "space"), ENCODERS)
def test_acting_computes_what_learning_does_with_every_encoder(encoder: Any, space: str, activation: Any) -> None:
    config = shaped(space, encoder=encoder, activation=activation, separate_critic="all")
    distribution = DiagonalGaussian(spaces.Box(-1, 1, (2,)))
    model = build_model(config, observation_spec(SPACES[space], "here"), distribution)
    SPACES[space].seed(3)
    sampled = [[SPACES[space].sample() for _ in range(8)] for _ in range(3)]
    steps = [
        [
            np.stack([leaf.to_storage(leaf.extract(s)) for s in step]).astype(leaf.dtype)
            for leaf in model.observation.leaves
        ]
        for step in sampled
    ]
    for kernel in ("torch", "native") if encoder == "mlp" else ("torch",):
        assert_acting_agrees(kernel, model, steps, torch.zeros(8, model.state_size))


@pytest.mark.parametrize(("rows", "encoder", "space"), [(8, *e) for e in ENCODERS] + [(32, "impala", "stacked")])
def test_a_row_does_not_depend_on_the_other_rows_with_any_encoder(rows: int, encoder: Any, space: str) -> None:
    config = shaped(space, encoder=encoder)
    distribution = DiagonalGaussian(spaces.Box(-1, 1, (2,)))
    assert is_row_independent(build_model(config, observation_spec(SPACES[space], "here"), distribution), rows)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_the_activation_follows_each_layer(activation: Any) -> None:
    mlp = Mlp(3, TrainConfig(encoder_sizes=(5, 4), activation=activation))
    apply = getattr(torch, activation)
    x = torch.randn(7, 3)
    first, second = mlp.linears
    assert torch.equal(mlp(x), apply(second(apply(first(x)))))


REFUSED = {
    "Text": spaces.Text(5),
    "Sequence": spaces.Sequence(spaces.Discrete(2)),
    "Graph": spaces.Graph(spaces.Box(-1, 1, (2,)), None),
    "OneOf": spaces.OneOf([spaces.Discrete(2), spaces.Discrete(3)]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_spaces_are_refused_with_their_name_and_place(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^here has the observation space {name}, which .* supported are Box, "):
        observation_spec(REFUSED[name], "here")
    nested = spaces.Dict({"a": spaces.Tuple((spaces.Discrete(2), REFUSED[name]))})
    with pytest.raises(ConfigError, match=rf"here has the observation space {name} at a/1, .*FilterObservation"):
        observation_spec(nested, "here")


def test_empty_spaces_and_small_images_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"here has the observation space Dict\(\), which is empty"):
        observation_spec(spaces.Dict({}), "here")
    for encoder, side in (("nature", 36), ("a3c", 20)):
        message = rf"--encoder {encoder} needs images of {side} × {side} pixels .* but obs has 7 × 8"
        with pytest.raises(ConfigError, match=message):
            train(shaped("stacked", encoder=encoder))


@pytest.mark.parametrize(("name", "side"), MIN_SIDES.items())
def test_the_smallest_image_of_an_encoder_works_and_a_smaller_one_does_not(name: str, side: int) -> None:
    kind = {"nature": NatureCnn, "a3c": A3cCnn}[name]
    assert kind((1, side, side))(torch.zeros(2, 1, side, side)).shape == (2, kind.features)
    with pytest.raises((RuntimeError, UserWarning), match=r"zero-element|too small|greater"):
        kind((1, side - 1, side))(torch.zeros(2, 1, side - 1, side))


WRONG = [
    ("discrete", 9, "obs is 9, which is outside its space"),
    ("multidiscrete", [0, 0], r"obs is \[0 0\], which is outside its space"),
    ("image", np.zeros((36, 40, 3)).tolist(), "obs has type float64, but its space has type uint8"),
    ("matrix", [1.0, 2.0], r"obs has shape \(2,\), but its space has shape \(2, 3\)"),
    ("matrix", [["a"] * 3] * 2, "obs has type <U1, but it must contain real numbers"),
    ("dict", 1.0, "obs has no part 'camera'"),
]


@pytest.mark.parametrize(("space", "value", "message"), WRONG)
def test_an_observation_outside_its_space_ends_the_run(space: str, value: Any, message: str) -> None:
    _, one = collector(dataclasses.replace(BASE, env_kwargs={"space": space, "wrong": value}))
    with pytest.raises(
        EnvError, match=rf"step returned an invalid observation: {message} \(episode 0 with seed \d+, after 2 steps\)"
    ):
        one.collect(0, PhaseTimer())


def test_a_mask_is_not_rounded() -> None:
    with pytest.raises(ObservationError, match=r"^obs is outside its space, .* 0 and 1$"):
        Leaf((), "mask", (3,), (3,), "uint8").to_storage(np.array([0, 1, 2]))


def test_undefined_bytes_of_long_doubles_are_not_hashed() -> None:
    numbers = np.array([1.1, -2.5], np.longdouble)
    others = numbers.copy()
    if numbers.itemsize == 16:
        others.view(np.uint8).reshape(2, 16)[:, 10:] = 7  # padding
    assert (numbers == others).all()
    assert hashable(numbers).tobytes() == hashable(others).tobytes() == np.array([1.1, -2.5]).tobytes()
    assert hashable(numbers + 1).tobytes() != hashable(numbers).tobytes()


def test_episodes_with_long_doubles_are_replayed(tmp_path: Path) -> None:
    config = dataclasses.replace(SIX_ITERATIONS, env="environments:LongDouble", check_determinism=0)
    whole = train_in(tmp_path / "whole", config)
    train_in(tmp_path / "run", config, stop_at_iteration=3)
    summary = resume(tmp_path / "run", stop_at_iteration=None, trust="environments")
    assert (summary["weights_sha256"], summary["exact"]) == (whole["weights_sha256"], True)
