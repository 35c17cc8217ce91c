"""Evaluations play other episodes than training, and the same ones each time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from environments import Counter, OnePerProcess

from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.models.actor_critic import build_model
from shmppo.policies.evaluation import play_episodes
from shmppo.policies.policy import load_trained
from shmppo.runs.launch import train
from shmppo.sampling.evaluation import EpisodePlayer, EpisodeResult
from shmppo.utils.rng import episode_seed

CONFIG = TrainConfig(num_envs=4, rollout_steps=32, minibatches=2, hidden_size=8, workers=0)


def evaluation(config: TrainConfig, **changes: Any) -> Callable[[], list[EpisodeResult]]:
    """A function that plays three episodes, with the same player in each call. changes: of the task."""
    task = dataclasses.replace(inspect_task(config), **changes)
    model, size = build_model(config, task.observation, task.distribution), task.observation.normalized_size
    player = EpisodePlayer(config, task, model)
    return lambda: player.play(range(3), np.zeros(size, np.float32), np.ones(size, np.float32), None)


@pytest.mark.parametrize("seeding", ["episode", "once"])
def test_an_evaluation_continues_no_environment_of_the_one_before(seeding: Any) -> None:
    play = evaluation(CONFIG, seeding=seeding)
    results = play()
    assert len({result.length for result in results}) > 1
    assert play() == results


class Seeded(Counter):
    """Notes the seeds of its resets."""

    seeds: ClassVar[set[int | None]] = set()

    def reset(self, *, seed: int | None = None, **options: Any) -> Any:
        self.seeds.add(seed)
        return super().reset(seed=seed, **options)


def test_the_seeds_of_evaluations_are_those_of_no_training_episode() -> None:
    play = evaluation(dataclasses.replace(CONFIG, env="test_episode_player:Seeded"))
    Seeded.seeds.clear()
    play()
    assert len(Seeded.seeds) >= 3
    assert not Seeded.seeds & {episode_seed(CONFIG.seed, n, episode) for n in range(1000) for episode in range(20)}


@pytest.mark.parametrize(
    ("workers", "kwargs", "most"), [(4, {}, 1), (2, {}, 2), (0, {}, 4), (0, {"render_mode": "human"}, 1)]
)
def test_an_evaluation_holds_as_many_environments_as_a_worker(
    workers: int, kwargs: dict[str, Any], most: int, tmp_path: Path
) -> None:
    config = TrainConfig(
        env="environments:OnePerProcess", num_envs=4, rollout_steps=8, minibatches=1, total_steps=32, workers=0,
        run_dir=str(tmp_path / "run"), hidden_size=8, quiet=True, check_determinism=0,
    )  # fmt: skip
    train(config)
    trained = load_trained(tmp_path / "run", trust="environments")
    trained = dataclasses.replace(
        trained, config=dataclasses.replace(trained.config, workers=workers, env_kwargs=kwargs)
    )
    OnePerProcess.most = 0
    results = play_episodes(trained, episodes=7, seed=1)
    assert (len(results), OnePerProcess.most) == (7, most)
