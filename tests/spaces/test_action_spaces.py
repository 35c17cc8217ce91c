"""Every action space in a whole run: what the environment gets, and what is learned."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from helpers import collected
from space_environments import ACTION_SPACES

from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.policies.evaluation import evaluate
from shmppo.runs.launch import train

BASE = TrainConfig(
    env="space_environments:Echo-v0", num_envs=5, rollout_steps=20, seq_len=5, minibatches=2, epochs=2, hidden_size=8,
    encoder_sizes=(8,), grad_shards=3, workers=0, quiet=True, total_steps=5 * 20 * 6, entropy_coef=0.01,
)  # fmt: skip
OPTIONS: dict[str, dict[str, Any]] = {"": {}, "squash": {"squash_actions": True}, "beta": {"distribution": "beta"}}
KINDS = [(kind, "") for kind in ACTION_SPACES] + [("box", "squash"), ("nested", "squash"), ("nested", "beta")]


def of(kind: str, options: str, **changes: Any) -> TrainConfig:
    return dataclasses.replace(BASE, env_kwargs={"actions": kind}, **OPTIONS[options], **changes)


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_the_environment_gets_the_action_that_is_stored(kind: str, options: str) -> None:
    config = of(kind, options)
    rollout = collected(config, (0, 5)).rollout
    distribution, space = inspect_task(config).distribution, ACTION_SPACES[kind]
    for n in range(5):
        given = distribution.to_env(rollout.actions[:, n])
        for t in range(19):
            if not rollout.truncated[t, n]:  # else the observation is that of the reset
                echoed = rollout.obs[0][t + 1, n]
                np.testing.assert_array_equal(echoed, np.asarray(spaces.flatten(space, given[t]), np.float32))
    assert len(np.unique(rollout.actions, axis=0)) > 1


@pytest.mark.slow(reason="about 3 s per case")
@pytest.mark.parametrize(("kind", "options"), [("multi-binary", ""), ("nested", "squash"), ("nested", "beta")])
def test_better_actions_are_learned(kind: str, options: str, tmp_path: Path) -> None:
    """The reward is the first number of the action minus half the last."""
    config = of(kind, options, learning_rate=0.02, total_steps=100 * 40, run_dir=str(tmp_path / "run"))
    train(config)
    best = 7 * (1.0 if kind == "multi-binary" else np.tanh(3))
    assert np.mean(evaluate(tmp_path / "run", episodes=3).returns) > 0.9 * best
