"""EnvPool: the weights do not depend on workers, runs are marked as not exact, and HalfCheetah moves as Gymnasium's."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from shmppo.config.train_config import TrainConfig
from shmppo.envs.envpool import SingleEnvPoolEnv
from shmppo.envs.envpool_vector_env import EnvPoolVectorEnv
from shmppo.envs.inspection import inspect_task
from shmppo.errors import ConfigError
from shmppo.policies.evaluation import evaluate
from shmppo.runs.trainer import resume, train

pytest.importorskip("envpool", reason="EnvPool is not installed (extra `envpool`)")

BASE = TrainConfig(
    env="CartPole-v1", hide_obs=(1, 3), env_backend="envpool", num_envs=5, rollout_steps=32, seq_len=8, minibatches=2,
    epochs=1, hidden_size=8, workers=0, total_steps=5 * 32 * 4, quiet=True,
)  # fmt: skip
CHEETAH = dataclasses.replace(BASE, env="HalfCheetah-v5", hide_obs=())


@pytest.mark.parametrize("config", [BASE, CHEETAH], ids=["cartpole", "halfcheetah"])
def test_workers_change_no_bit(config: TrainConfig, tmp_path: Path) -> None:
    hashes = set()
    for workers in (0, 1, 2, 3):
        summary = train(dataclasses.replace(config, workers=workers, run_dir=str(tmp_path / str(workers))))
        hashes.add(summary["weights_sha256"])
        assert summary["inexact_reasons"] == ["--env-backend envpool cannot replay an episode"]
    assert len(hashes) == 1


def test_a_run_can_be_stopped_resumed_and_evaluated(tmp_path: Path) -> None:
    config = dataclasses.replace(BASE, workers=2, run_dir=str(tmp_path / "run"))
    train(dataclasses.replace(config, stop_at_iteration=2))
    summary = resume(tmp_path / "run", workers=1)
    assert summary["env_steps"] == config.total_steps
    assert "environment 0: its episode could not be replayed and was restarted" in summary["inexact_reasons"]
    returns = evaluate(tmp_path / "run", episodes=3).returns
    assert returns == evaluate(tmp_path / "run", episodes=3).returns
    assert min(returns) > 0
    with pytest.raises(ConfigError, match="cannot render CartPole-v1"):
        evaluate(tmp_path / "run", episodes=1, video=tmp_path / "video.gif")


def test_the_next_episode_begins_without_a_step_in_between() -> None:
    """A reset by EnvPool takes a step that ignores its action. This step must not be part of the rollout."""
    config = dataclasses.replace(BASE, hide_obs=(1,))
    envs = EnvPoolVectorEnv(config, inspect_task(config), 0, 3, [0, 0, 0])
    envs.reset_all(0)
    (obs,) = envs.obs
    rewards, terminated, truncated = np.zeros(3, np.float32), np.zeros(3, bool), np.zeros(3, bool)
    lengths = np.zeros(3, int)
    episodes = 0
    for _ in range(100):
        ended = envs.step([0, 0, 1], rewards, terminated, truncated)  # pushed one way, a pole falls within 12 steps
        lengths += 1
        assert (rewards == 1).all()
        assert (obs[:, 1] == 0).all()
        for one in ended:
            (final,) = one.final
            assert one.terminated
            assert one.episode_return == one.length == lengths[one.i]
            assert abs(final[2]) > 0.2  # radians, where it has fallen
            assert abs(obs[one.i]).max() <= 0.05  # the next episode's start
            lengths[one.i] = 0
            episodes += 1
    assert episodes >= 24
    assert sum(handle.episode for handle in envs.handles) == episodes
    envs.close()


def test_halfcheetah_moves_as_in_gymnasium() -> None:
    """The reward of 50 steps with constant actions is that of Gymnasium up to the spread of the starts."""
    pooled, plain = SingleEnvPoolEnv(CHEETAH), gymnasium.make("HalfCheetah-v5")
    rewards = []
    for env in (pooled, plain):
        env.reset(seed=1)
        rewards.append(sum(env.step(np.full(6, 0.5))[1] for _ in range(50)))
        env.close()
    assert pooled.observation_space.shape == plain.observation_space.shape
    assert rewards[0] == pytest.approx(rewards[1], abs=30)


def test_the_first_observation_is_a_function_of_the_seed() -> None:
    env = SingleEnvPoolEnv(BASE)
    first, again, other = (env.reset(seed=seed)[0] for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert not np.array_equal(first, env.reset()[0])
    env.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env": "CartPol-v1"}, "has no CartPol-v1 .did you mean CartPole-v1"),
        ({"env": "module:factory"}, "has no module:factory"),
        ({"prev_action": True}, "--prev-action needs --env-backend gymnasium"),
        ({"wrappers": ("FlattenObservation",)}, "--wrappers needs --env-backend gymnasium"),
        ({"skip_bad_episodes": True}, "--skip-bad-episodes needs --env-backend gymnasium"),
        ({"action_masks": True}, "--action-masks needs --env-backend gymnasium"),
    ],
)
def test_unsupported_options_are_refused(changes: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        train(dataclasses.replace(BASE, **changes, run_dir=str(tmp_path / "run")))
