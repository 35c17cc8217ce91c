"""Evaluations play other episodes than training, and the same ones each time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from environments import Counter

from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.models.actor_critic import build_model
from shmppo.sampling.evaluation import EpisodePlayer, EpisodeResult
from shmppo.utils.rng import episode_seed

CONFIG = TrainConfig(num_envs=4, rollout_steps=32, minibatches=2, hidden_size=8, workers=0)


def evaluation(config: TrainConfig) -> Callable[[], list[EpisodeResult]]:
    """A function that plays three episodes, with the same player in each call."""
    task = inspect_task(config)
    model, size = build_model(config, task.observation, task.distribution), task.observation.normalized_size
    player = EpisodePlayer(config, task, model)
    return lambda: player.play(range(3), np.zeros(size, np.float32), np.ones(size, np.float32), None)


@pytest.mark.parametrize("seeding", ["episode", "once"])
def test_an_evaluation_continues_no_environment_of_the_one_before(seeding: Any) -> None:
    play = evaluation(dataclasses.replace(CONFIG, episode_seeding=seeding))
    results = play()
    assert len({result.length for result in results}) > 1
    assert play() == results


def test_the_seeds_of_evaluations_are_those_of_no_training_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int | None] = []
    play, reset = evaluation(dataclasses.replace(CONFIG, env="environments:Counter")), Counter.reset

    def recorded(env: Counter, *, seed: int | None = None, **options: Any) -> Any:
        seeds.append(seed)
        return reset(env, seed=seed, **options)

    monkeypatch.setattr(Counter, "reset", recorded)
    play()
    assert len(set(seeds)) >= 3
    assert not set(seeds) & {episode_seed(CONFIG.seed, n, episode) for n in range(1000) for episode in range(20)}
