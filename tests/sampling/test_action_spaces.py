"""Every action space through the whole trainer: what an environment is given, and that no bit depends on workers."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import assert_no_bit_changes, published
from environments import ACTION_SPACES
from gymnasium import spaces

from shmppo.config.train_config import TrainConfig
from shmppo.envs.factory import inspect_task
from shmppo.parallel.shared_buffers import SharedBuffers
from shmppo.runs.evaluation import evaluate
from shmppo.runs.trainer import train
from shmppo.sampling.collector import Collector
from shmppo.utils.phase_timer import PhaseTimer

BASE = TrainConfig(
    env="environments:Echo-v0", num_envs=5, rollout_steps=20, seq_len=5, minibatches=2, epochs=2, hidden_size=8,
    encoder_sizes=(8,), grad_shards=3, tile_rows=8, workers=0, quiet=True, total_steps=5 * 20 * 6, entropy_coef=0.01,
)  # fmt: skip
KINDS = [(kind, False) for kind in ACTION_SPACES] + [("box", True), ("nested", True)]


def of(kind: str, squash: bool, **changes: Any) -> TrainConfig:
    return dataclasses.replace(BASE, env_kwargs={"actions": kind}, squash_actions=squash, **changes)


def collected(config: TrainConfig, *ranges: tuple[int, int]) -> SharedBuffers:
    """The arena after two rollouts, each sampled by one collector per range."""
    task = inspect_task(config)
    arena, learner = published(config, task)
    parts = [
        Collector(config, task, learner.model, arena, low=low, high=high, progress=np.zeros(1, np.int64))
        for low, high in ranges
    ]
    for part in parts:
        part.start()
    for iteration in range(2):
        for part in parts:
            part.collect(iteration, PhaseTimer())
    return arena


@pytest.mark.parametrize(("kind", "squash"), KINDS)
def test_an_environment_is_given_the_action_that_is_stored(kind: str, squash: bool) -> None:
    config = of(kind, squash)
    arena = collected(config, (0, 5))
    distribution, space = inspect_task(config).distribution, ACTION_SPACES[kind]
    for n in range(5):
        given = distribution.to_env(arena.array("actions")[:, n])
        for t in range(19):
            if not arena.array("truncated")[t, n]:  # else the observation is that of the reset
                echoed = arena.array("obs")[t + 1, n]
                np.testing.assert_array_equal(echoed, spaces.flatten(space, given[t]).astype(np.float32))
    assert len(np.unique(arena.array("actions"), axis=0)) > 1


@pytest.mark.parametrize(("kind", "squash"), KINDS)
def test_any_split_of_the_columns_gives_the_same_bytes(kind: str, squash: bool) -> None:
    splits = [((0, 5),), ((0, 2), (2, 5)), tuple((n, n + 1) for n in range(5))]
    config = of(kind, squash, ratio="per-dimension")
    digests = {hashlib.sha256(collected(config, *split).memory.numpy().tobytes()).hexdigest() for split in splits}
    assert len(digests) == 1


@pytest.mark.long
@pytest.mark.parametrize(("kind", "squash"), [("nested", True), ("multi-discrete", False)])
def test_neither_workers_nor_learning_mode_nor_a_stop_change_a_bit(kind: str, squash: bool, tmp_path: Path) -> None:
    config = of(kind, squash)
    assert_no_bit_changes(config, tmp_path)
    assert len(evaluate(tmp_path / "stopped", episodes=3)) == 3


@pytest.mark.parametrize("kind", ["multi-binary", "nested"])
def test_better_actions_are_learned(kind: str, tmp_path: Path) -> None:
    """The reward is the first number that the environment was given, less half the last."""
    config = of(kind, True, learning_rate=0.02, total_steps=100 * 40, run_dir=str(tmp_path / "run"))
    train(config)
    best = 7 * (1.0 if kind == "multi-binary" else np.tanh(3))
    assert np.mean(evaluate(tmp_path / "run", episodes=3)) > 0.9 * best
