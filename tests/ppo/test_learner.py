"""The update: first ratios, errors that must not reach the weights, target KL, advantages, and optimizers."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import planned, published, sampled
from public_helpers import csv_rows, train_in
from test_gradients import CONFIG

from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.errors import TrainingError
from shmppo.extensions.vector.vector_env import RESET_STEP
from shmppo.lockstep.pool import Command, ComputeGradients, StepOptimizer
from shmppo.loggers.metrics import GLOSSARY
from shmppo.runs.launch import train
from shmppo.utils.phase_timer import PHASES


@pytest.mark.parametrize(
    ("env", "core"),
    [*(("CartPole-v1", core) for core in ("lstm", "lmu", "lru", "gtrxl", "none")), ("HalfCheetah-v5", "gru")],
)
def test_the_first_ratio_of_every_update_is_one(env: str, core: str, tmp_path: Path) -> None:
    config = TrainConfig(
        env=env, core=core,  # type: ignore[arg-type]
        num_envs=4, rollout_steps=64, minibatches=4, hidden_size=32, workers=0, quiet=True, total_steps=256 * 3,
        run_dir=str(tmp_path / "run"),
    )  # fmt: skip
    train(config)
    rows = csv_rows(tmp_path / "run" / "metrics.csv")
    assert len(rows) == 3
    assert max(float(row["first_log_ratio"]) for row in rows) < 1e-5
    assert max(float(row["approx_kl"]) for row in rows) > 1e-5, (
        "the policy did not change, so a ratio of 1 shows nothing"
    )
    for row in rows:
        phases = sum(float(row[f"{phase}_seconds"]) for phase in PHASES)
        assert phases * float(row["steps_per_second"]) == pytest.approx(256, rel=1e-6)
    assert list(rows[0]) == [*GLOSSARY, *(["action_std"] if env == "HalfCheetah-v5" else [])]


def test_metrics_have_the_deviation_of_box_actions_and_the_range_of_returns(tmp_path: Path) -> None:
    limit = ("TimeLimit(max_episode_steps=20)",)
    config = TrainConfig(
        env="Pendulum-v1", wrappers=limit, num_envs=4, rollout_steps=16, minibatches=2, seq_len=8, hidden_size=8,
        workers=0, quiet=True, log_std_init=-1.0, learning_rate=1e-9, total_steps=2 * 4 * 16,
    )  # fmt: skip
    train_in(tmp_path / "run", config)
    first, last = csv_rows(tmp_path / "run" / "metrics.csv")
    assert float(first["action_std"]) == pytest.approx(np.exp(-1), abs=1e-6)
    assert first["return_min_100"] == first["return_max_100"] == "nan"
    assert float(last["return_min_100"]) < float(last["return_mean_100"]) < float(last["return_max_100"])


@pytest.mark.parametrize(("actions", "parts"), [("nested", ["arm", "gear", "keys"]), ("multi-discrete", ["0", "1"])])
def test_metrics_have_the_entropy_of_each_part_of_an_action(actions: str, parts: list[str], tmp_path: Path) -> None:
    config = TrainConfig(
        env="space_environments:Echo-v0", env_kwargs={"actions": actions}, num_envs=4, rollout_steps=16, minibatches=2,
        seq_len=8, hidden_size=8, grad_shards=3, learning_rate=0.02, quiet=True, total_steps=3 * 4 * 16,
    )  # fmt: skip
    found = []
    for workers in (0, 2):
        train_in(tmp_path / str(workers), dataclasses.replace(config, workers=workers))
        rows = csv_rows(tmp_path / str(workers) / "metrics.csv")
        found.append([[float(row[f"entropy/{part}"]) for part in parts] for row in rows])
        assert [sum(entropies) for entropies in found[-1]] == pytest.approx([float(row["entropy"]) for row in rows])
    assert found[0] == found[1]
    assert found[0][0] != found[0][2]


def test_acting_with_other_weights_stops_the_run_before_the_weights_change() -> None:
    buffers, learner, pool = sampled(CONFIG)
    buffers.rollout.log_prob[:] += 0.01
    planned(buffers, learner)
    before = learner.weights_sha256()
    with pytest.raises(TrainingError, match=r"\|log ratio\| is 1\.0\de-02 but must be below 1e-03"):
        learner.update(0, pool)
    assert learner.weights_sha256() == before


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_gradient_that_is_not_finite_stops_the_run_before_the_weights_change(epoch: int) -> None:
    buffers, learner, pool = sampled(CONFIG)
    planned(buffers, learner)
    before = []

    execute = pool.execute

    def poisoned(*commands: Command) -> None:
        for command in commands:
            execute(command)
            if isinstance(command, ComputeGradients) and command.epoch == epoch:
                before.append(learner.weights_sha256())
                buffers.shard_results.gradients[1, 3] = np.nan

    pool.execute = poisoned  # type: ignore[method-assign]

    message = (
        rf"minibatch 0 of epoch {epoch}: the (loss|gradient) is not finite.*; "
        r"this minibatch has not changed the weights"
    )
    with pytest.raises(TrainingError, match=message):
        learner.update(0, pool)
    assert [learner.weights_sha256()] == before


def test_a_target_kl_ends_the_update_before_the_next_step(tmp_path: Path) -> None:
    steps = {}
    for kl in (None, 0.01):
        run_dir = tmp_path / str(kl)
        train_in(run_dir, CONFIG, quiet=True, learning_rate=0.02, total_steps=192 * 3, epochs=6, target_kl=kl)
        steps[kl] = [float(row["optimizer_steps"]) for row in csv_rows(run_dir / "metrics.csv")]
    assert steps[None] == [18.0] * 3
    assert all(1 <= s < 18 for s in steps[0.01])


def test_metrics_are_the_means_of_their_terms_and_the_kl_of_the_last_epoch_that_of_its_minibatches() -> None:
    buffers, learner, pool = sampled(CONFIG)
    planned(buffers, learner)
    measured, execute = [], pool.execute

    def recorded(*commands: Command) -> None:
        execute(*commands)
        if any(isinstance(command, ComputeGradients) for command in commands):
            measured.append(buffers.shard_results.loss_terms.sum(0))

    pool.execute = recorded  # type: ignore[method-assign]
    found = learner.update(0, pool)
    means = np.mean(measured, axis=0)
    columns = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")
    assert [found[name] for name in columns] == pytest.approx(means)
    assert len(set(means[:5])) == 5, "two of them would be the same in any order"
    kls = [terms[columns.index("approx_kl")] for terms in measured]
    assert found["approx_kl_last_epoch"] == pytest.approx(np.mean(kls[3:]))
    assert np.mean(kls[3:]) > 1.1 * np.mean(kls)


def test_the_gradient_is_clipped_after_its_norm_is_measured() -> None:
    config = dataclasses.replace(CONFIG, optimizer="sgd", max_grad_norm=0.1, minibatches=1, epochs=1)
    buffers, learner, pool = sampled(config)
    planned(buffers, learner)
    before = buffers.published.weights.copy()
    statistics = learner.update(0, pool)
    norm = np.linalg.norm(buffers.shard_results.gradients.sum(0))
    assert norm > 1
    assert statistics["gradient_norm"] == pytest.approx(norm, rel=1e-5)
    change = np.linalg.norm(buffers.published.weights - before)
    assert change == pytest.approx(0.1 * config.learning_rate, rel=1e-3)


def advantages_of(ended_length: int = 2, value: float = 0.0, gamma: float = 0.5, **changes: Any) -> np.ndarray:
    config = dataclasses.replace(
        CONFIG, num_envs=1, rollout_steps=3, minibatches=1, grad_shards=1, core="none", gamma=gamma, gae_lambda=0.0,
        **changes,
    )  # fmt: skip
    buffers, learner = published(config, inspect_task(config))
    rollout = buffers.rollout
    rollout.valid_steps[:] = 3
    rollout.reward[:, 0] = [1.0, 30.0, -30.0]
    rollout.bootstrap[:, 0] = [0.0, 8.0, 16.0]
    rollout.truncated[:, 0] = [False, True, False]
    rollout.ended_length[1, 0], rollout.value[1, 0] = ended_length, value
    return planned(buffers, learner)[:, 0]


def test_a_truncation_bootstraps_unless_it_counts_as_termination() -> None:
    # λ = 0 and V = 0: r + ½ V'. Here V' is the next value (0), the bootstrap of the truncated step, or the last one.
    np.testing.assert_array_equal(advantages_of(), [1.0, 34.0, -22.0])
    np.testing.assert_array_equal(advantages_of(truncation_is_termination=True), [1.0, 30.0, -22.0])


@pytest.mark.parametrize("gamma", [0.0, 1.0])
@pytest.mark.parametrize("truncation_is_termination", [False, True])
def test_a_failed_step_has_no_advantage(truncation_is_termination: bool, gamma: float) -> None:
    options = {"skip_bad_episodes": True, "truncation_is_termination": truncation_is_termination}
    assert advantages_of(ended_length=0, value=0.3, gamma=gamma, **options)[1] == 0
    assert advantages_of(ended_length=2, value=0.3, gamma=gamma, **options)[1] != 0


def test_a_step_that_only_resets_has_no_advantage() -> None:
    assert advantages_of(ended_length=RESET_STEP, value=0.3)[1] == 0


def test_a_step_that_only_resets_does_not_count_in_the_scale_of_rewards() -> None:
    returns = np.array([1.0, 30.5, -14.75])  # discounted, see `RewardNormalizer`
    for ended_length, counted in ((2, returns), (RESET_STEP, returns[[0, 2]])):
        advantages = advantages_of(ended_length=ended_length, normalize_reward=True)
        assert advantages[0] == pytest.approx(1 / np.std(counted), rel=1e-5)


def test_rewards_are_clipped_before_advantages_are_computed() -> None:
    np.testing.assert_array_equal(advantages_of(clip_reward=2.0), [1.0, 6.0, 6.0])


def test_the_log_standard_deviation_stays_above_its_minimum_and_can_rise_from_it() -> None:
    config = dataclasses.replace(CONFIG, env="Pendulum-v1", log_std_min=-0.01, max_grad_norm=1e9, optimizer="sgd")
    _, learner, pool = sampled(config)
    log_std = learner.model.log_std
    assert log_std is not None
    learner._buffers.optimizer.learning_rate[0] = 0.1
    seen = []
    for gradient in (1.0, -1.0):  # down, then up
        learner._gradient.fill_(gradient)
        learner._set_gradient_factor(1.0, 0, 0)
        pool.execute(StepOptimizer())
        learner._limit_log_std()
        seen.append(float(log_std.detach()))
    assert seen == pytest.approx([-0.01, 0.09])


CHEETAH = TrainConfig(
    env="HalfCheetah-v5", num_envs=6, rollout_steps=24, seq_len=8, minibatches=2, epochs=2, hidden_size=16,
    encoder_sizes=(16,), grad_shards=3, workers=0, quiet=True, total_steps=6 * 24 * 8,
)  # fmt: skip


def column(run_dir: Path, name: str) -> list[float]:
    return [float(row[name]) for row in csv_rows(run_dir / "metrics.csv")]


def test_penalty_and_learning_rate_adapt_to_the_kl_of_the_last_epoch(tmp_path: Path) -> None:
    train_in(tmp_path / "run", CHEETAH, objective="penalty", lr_schedule="kl-adaptive")
    kl, beta, rate = (
        column(tmp_path / "run", name) for name in ("approx_kl_last_epoch", "penalty_coef", "learning_rate")
    )
    assert (beta[0], rate[0]) == (1.0, 1e-3)
    for i in range(7):
        factor = 0.5 if kl[i] < 0.01 / 1.5 else 2.0 if kl[i] > 0.015 else 1.0
        assert beta[i + 1] == pytest.approx(beta[i] * factor)
        factor = 1.5 if kl[i] < 0.005 else 1 / 1.5 if kl[i] > 0.02 else 1.0
        assert rate[i + 1] == pytest.approx(min(rate[i] * factor, 1e-2))
    assert len(set(beta)) > 2, "nothing adapted"
