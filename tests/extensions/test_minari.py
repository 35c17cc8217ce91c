"""Demonstrations from data sets of Minari."""

from __future__ import annotations

import dataclasses
import itertools
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array
from helpers import collected
from test_demonstrations import SMALL, loaded

from shmppo.envs.inspection import inspect_task
from shmppo.errors import ConfigError


class Lunch(gymnasium.Env[dict[str, Any], dict[str, Any]]):
    """An environment with parts that Minari can store."""

    observation_space = spaces.Dict({"where": spaces.Box(-9, 9, (2,)), "day": spaces.Discrete(7, start=1)})
    action_space = spaces.Dict({"move": spaces.Box(-1, 1, (2,)), "dish": spaces.MultiDiscrete([3, 2])})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        super().reset(seed=seed)
        self.t = 0
        return self._observe(), {}

    def _observe(self) -> dict[str, Any]:
        return {
            "where": self.np_random.uniform(-1, 1, 2).astype(np.float32),
            "day": np.int64(1 + self.np_random.integers(7)),
        }

    def step(self, action: dict[str, Any]) -> tuple[dict, float, bool, bool, dict]:
        self.t += 1
        return self._observe(), float(action["dish"][0]), self.t == 9, False, {}


gymnasium.register("Lunch-v0", entry_point="test_minari:Lunch")


def stacked(space: spaces.Space, values: list[Any]) -> Any:
    return concatenate(space, values, create_empty_array(space, len(values)))


@pytest.mark.parametrize("env", ["CartPole-v1", "Lunch-v0"])
def test_a_minari_data_set_is_played_back(env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    made = gymnasium.make(env)
    given: list[list[Any]] = []
    observed: list[list[Any]] = []
    buffers = []
    for seed in range(3):
        made.action_space.seed(seed)
        observed.append([made.reset(seed=seed)[0]])
        given.append([])
        steps: list[list[Any]] = []
        while not steps or not any(steps[-1][1:]):
            given[-1].append(made.action_space.sample())
            obs, *outcome, _ = made.step(given[-1][-1])
            observed[-1].append(obs)
            steps.append(outcome)
        rewards, terminations, truncations = (list(column) for column in zip(*steps, strict=True))
        buffers.append(
            minari.data_collector.EpisodeBuffer(
                observations=stacked(made.observation_space, observed[-1]),
                actions=stacked(made.action_space, given[-1]),
                rewards=rewards, terminations=terminations, truncations=truncations,
            )
        )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the missing name of the author
        minari.create_dataset_from_buffers("tests/lunch-v0", buffer=buffers, env=made)
    config = dataclasses.replace(SMALL, env=env, objective="clone", demonstrations="minari:tests/lunch-v0")
    task, data = inspect_task(config), loaded(config)
    assert len(data["lengths"]) == 3
    for expected, found in zip(itertools.chain(*given), task.distribution.to_env(data["actions"]), strict=True):
        np.testing.assert_array_equal(
            spaces.flatten(made.action_space, expected), spaces.flatten(made.action_space, found)
        )
    for leaf in task.observation.leaves:
        stored = [leaf.to_storage(leaf.extract(obs)).astype(leaf.dtype) for obs in itertools.chain(*observed)]
        np.testing.assert_array_equal(data[leaf.field], stored)
    assert collected(config, (0, 5)).rollout.reward.any()
    other = dataclasses.replace(config, demonstrations="minari:tests/dinner-v0")
    with pytest.raises(ConfigError, match=r"minari:tests/dinner-v0 cannot be read \(Dataset tests/dinner-v0 not found"):
        loaded(other)


def test_minari_is_needed_only_for_its_data_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minari", None)
    config = dataclasses.replace(SMALL, objective="clone", demonstrations="minari:D4RL/door/human-v2")
    with pytest.raises(ConfigError, match=r"minari:D4RL/door/human-v2 cannot be read \(.*minari.*extra minari"):
        loaded(config)
