"""Vector environments of the user (--env-backend vector): seeds, autoreset modes, recovery, and bad ones."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from public_helpers import csv_rows, train_in
from vector_environments import NextStep

from shmppo import load_policy, train
from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.envs.vector_env import EpisodeEnd, EpisodeToRestore
from shmppo.errors import ConfigError
from shmppo.extensions.vector.vector_env import RESET_STEP, UserVectorEnv
from shmppo.policies.evaluation import evaluate

CONFIG = TrainConfig(
    env="vector_environments:Walk", env_backend="vector", num_envs=6, rollout_steps=32, seq_len=8, minibatches=2,
    epochs=2, hidden_size=16, encoder_sizes=(16,), workers=0, quiet=True, total_steps=6 * 32 * 4,
)  # fmt: skip


def sync_cart_poles(num_envs: int, mode: str) -> SyncVectorEnv:
    """Gymnasium's own vector environment of CartPole, with one of its autoreset modes."""
    makers = [lambda: gymnasium.make("CartPole-v1", max_episode_steps=30)] * num_envs
    return SyncVectorEnv(makers, autoreset_mode=AutoresetMode[mode])


def changed(name: str, **changes: Any) -> TrainConfig:
    return dataclasses.replace(CONFIG, env=f"vector_environments:{name}", **changes)


def stepped(config: TrainConfig, steps: int) -> tuple[UserVectorEnv, list[tuple[int, EpisodeEnd]], np.ndarray]:
    """Step a vector environment. Returns it, the ended episodes with their step, and all observations."""
    envs = UserVectorEnv(config, inspect_task(config), 0, config.num_envs)
    envs.reset_all(0)
    rewards, flags = np.zeros(config.num_envs, np.float32), np.zeros((2, config.num_envs), bool)
    ended, obs = [], [envs.obs[0].copy()]
    for t in range(steps):
        ended += [(t, end) for end in envs.step(actions_at(config, t), rewards, *flags)]
        obs.append(envs.obs[0].copy())
    return envs, ended, np.array(obs)


def actions_at(config: TrainConfig, t: int) -> list[int]:
    return [(t + i) % 2 for i in range(config.num_envs)]


@pytest.mark.parametrize("mode", ["SAME_STEP", "DISABLED"])
def test_each_autoreset_mode_gives_the_weights_of_environments_that_are_stepped_one_by_one(
    mode: str, tmp_path: Path
) -> None:
    one_by_one = {"env": "CartPole-v1", "env_backend": "gymnasium", "env_kwargs": {"max_episode_steps": 30}}
    together = {"env": "test_user_vector_env:sync_cart_poles", "env_kwargs": {"mode": mode}}
    hashes = set()
    for name, options in {"one": one_by_one, "together": together}.items():
        summary = train_in(tmp_path / name, CONFIG, **options)
        assert summary["exact"]
        hashes.add(summary["weights_sha256"])
    assert len(hashes) == 1


@pytest.mark.parametrize("name", ["NextStep", "SameStep"])
def test_an_environment_that_resets_itself_is_seeded_once(name: str, tmp_path: Path) -> None:
    task = inspect_task(changed(name))
    assert (task.backend, task.seeding, task.inexact_reason) == ("vector", "once", None)
    summary = train(changed(name, run_dir=str(tmp_path / "run")))
    assert summary["exact"]
    assert summary["episodes"] > 24


def test_a_reset_in_the_same_step_gives_the_last_and_the_first_observation() -> None:
    short = {"num_envs": 2, "env_kwargs": {"length": 5}}
    _, ended, obs = stepped(changed("SameStep", **short), 12)
    _, seeded, _ = stepped(changed("Walk", **short), 12)
    assert [(t, end.i, end.length, end.failed) for t, end in ended] == [
        (4, 0, 5, False), (4, 1, 5, False), (9, 0, 5, False), (9, 1, 5, False),
    ]  # fmt: skip
    for i in (0, 1):
        np.testing.assert_array_equal(ended[i][1].final[0], seeded[i][1].final[0])
        assert not np.array_equal(obs[5, i], ended[i][1].final[0])


def test_a_reset_in_the_next_step_is_a_step_of_no_episode() -> None:
    short = {"num_envs": 2, "env_kwargs": {"length": 5}}
    _, ended, obs = stepped(changed("NextStep", **short), 12)
    assert [(t, end.length, end.failed) for t, end in ended if end.i == 1] == [
        (4, 5, False), (5, RESET_STEP, True), (10, 5, False), (11, RESET_STEP, True),
    ]  # fmt: skip
    np.testing.assert_array_equal(obs[5, 0], ended[0][1].final[0])
    _, same_step, _ = stepped(changed("SameStep", **short), 6)
    np.testing.assert_array_equal(ended[0][1].final[0], same_step[0][1].final[0])
    assert not np.array_equal(obs[6, 0], obs[5, 0])


def test_reset_steps_are_not_counted_as_episodes(tmp_path: Path) -> None:
    summary = train(changed("NextStep", env_kwargs={"length": 5}, run_dir=str(tmp_path / "run")))
    rows = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    column = rows[0].split(",").index("failed_episodes")
    assert [row.split(",")[column] for row in rows[1:]] == ["0"] * 4
    assert summary["episodes"] >= 6 * (128 // 6)
    assert summary["return_mean_100"] < 0


DEPENDENT = {
    "vector_environments:SharedSameStep": "an environment depends on the others: environment 0 gives other results at",
    "CartPole-v1": "reset accepts no list of seeds, so the environments of a worker share one seed",
}


@pytest.mark.parametrize("env", DEPENDENT)
def test_environments_that_depend_on_each_other_make_the_run_inexact(env: str, tmp_path: Path) -> None:
    summary = train_in(tmp_path / "run", CONFIG, env=env, stop_at_iteration=2)
    assert not summary["exact"]
    (reason,) = summary["inexact_reasons"]
    assert reason.startswith(f"--env {env}: {DEPENDENT[env]}")


def test_a_lost_range_is_restored_by_repeating_all_episodes_together() -> None:
    config = changed("Walk", env_kwargs={"length": 9})
    envs, _, obs = stepped(config, 25)
    lengths, episodes, hashes = list(envs.lengths), [handle.episode for handle in envs.handles], list(envs.hashes)
    assert len(set(lengths)) > 1
    known = [[actions_at(config, t)[i] for t in range(25 - lengths[i], 25)] for i in range(6)]
    lost = UserVectorEnv(config, inspect_task(config), 0, 6)
    progress = np.zeros(1, np.int64)
    targets = [EpisodeToRestore(*target, None) for target in zip(episodes, known, hashes, strict=True)]
    targets[1] = targets[1]._replace(actions=None)
    targets[2] = targets[2]._replace(expected_hash=hashes[2] ^ 1)
    assert lost.restore(targets, progress) == [True, False, False, True, True, True]
    assert progress[0] == max(lengths[i] for i in range(6) if i != 1)
    assert [handle.episode for handle in lost.handles] == [n + (i in (1, 2)) for i, n in enumerate(episodes)]
    for i in (0, 3, 4, 5):
        np.testing.assert_array_equal(lost.obs[0][i], obs[-1, i])
    step = np.zeros(6, np.float32), *np.zeros((2, 6), bool)
    for each in (envs, lost):
        each.step(actions_at(config, 25), *step)
    for i in (0, 3, 4, 5):
        np.testing.assert_array_equal(lost.obs[0][i], envs.obs[0][i])


REFUSED = {
    "vector_environments:Unmasked": r"has the autoreset mode DISABLED, so every episode .* reset must accept",
    "vector_environments:Counted": r"mask selects; environment 0 gives other results at step 1 when .*: let each",
    "environments:Counter": "is a class, but not a subclass of gymnasium's VectorEnv; name such a class",
    "Pendulum-v1": "could not be made: Cannot create vectorized environment for Pendulum-v1",
    "vector_environments:as_list": r"returned list, but --env-backend vector needs a gymnasium\.vector\.VectorEnv",
    "vector_environments:of_one": r"returned 1 environments instead of 2; use the argument num_envs",
}


@pytest.mark.parametrize("env", REFUSED)
def test_what_is_not_a_vector_environment_is_refused(env: str) -> None:
    with pytest.raises(ConfigError, match=REFUSED[env]):
        train(dataclasses.replace(CONFIG, env=env, num_envs=2))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_a_step_names_the_environments_and_the_line(workers: int, tmp_path: Path) -> None:
    config = changed("Raising", workers=workers, run_dir=str(tmp_path / "run"))
    with pytest.raises(ConfigError, match=r"the simulation exploded") as raised:
        train(config)
    assert "vector_environments.py" in raised.value.details
    assert not (tmp_path / "run" / "failed_episode.json").exists()  # another environment may be the cause


@pytest.mark.parametrize("final_info", [False, True])
def test_training_and_evaluation_read_the_same_info(final_info: bool, tmp_path: Path) -> None:
    config = changed("Informed", env_kwargs={"final_info": final_info}, info_keys=("bumps:mean",), stop_at_iteration=1)
    train_in(tmp_path / "run", config, eval_every=1, eval_episodes=2)
    for file, prefix in (("metrics.csv", ""), ("eval.csv", "eval/")):
        (row,) = csv_rows(tmp_path / "run" / file)
        assert (float(row[f"{prefix}info/success"]), float(row[f"{prefix}info/bumps"])) == (1, 7), file


def test_a_policy_is_loaded_and_evaluated(tmp_path: Path) -> None:
    train_in(tmp_path / "run", CONFIG, stop_at_iteration=1)
    policy = load_policy(tmp_path / "run")
    action, _ = policy.act(np.zeros(2), policy.initial_state())
    assert action in range(3)
    assert len(evaluate(tmp_path / "run", episodes=3).returns) == 3


class RewardsResets(NextStep):
    """Rewards every step, also one that only resets."""

    def step(self, actions: np.ndarray) -> Any:
        obs, rewards, *rest = super().step(actions)
        return obs, rewards * 0 + 5.0, *rest


def test_the_reward_of_a_step_that_only_resets_does_not_count() -> None:
    config = dataclasses.replace(CONFIG, env="test_user_vector_env:RewardsResets", env_kwargs={"length": 2})
    envs = UserVectorEnv(config, inspect_task(config), 0, 6)
    envs.reset_all(0)
    rewards, found = np.zeros(6), []
    for _ in range(3):
        envs.step([1] * 6, rewards, *np.zeros((2, 6), bool))
        found.append(rewards[0])
    assert found == [5, 5, 0]
    assert not envs.returns.any()
