"""The update: gradients against a plain whole-minibatch loss, plans, faults that must not reach the weights."""

from __future__ import annotations

import copy
import csv
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import published, sampled

from shmppo.config.train_config import TrainConfig
from shmppo.envs.factory import inspect_task
from shmppo.errors import TrainingError
from shmppo.loggers.metrics import GLOSSARY
from shmppo.models.actor_critic import parameter_views
from shmppo.ppo.gae import explained_variance
from shmppo.ppo.learner import build_optimizer
from shmppo.ppo.losses import clipped_objective, dimension_clipped_objective, dual_clipped
from shmppo.ppo.minibatches import build_minibatches
from shmppo.runs.trainer import train
from shmppo.utils.phase_timer import PHASES, PhaseTimer

CONFIG = TrainConfig(
    env="CartPole-v1", num_envs=4, rollout_steps=48, seq_len=6, minibatches=3, epochs=2, workers=0, hidden_size=16,
    encoder_sizes=(16,), grad_shards=2, entropy_coef=0.01, normalize_reward=False,
)  # fmt: skip


SHAPED = {"env": "environments:Shaped", "env_kwargs": {"space": "dict"}, "prev_action": True}
VARIANTS: dict[str, dict[str, Any]] = {
    "lstm": {},
    "none": {"core": "none"},
    "burn-in": {"burn_in": 3},
    "dict": SHAPED,
    "dict-none": SHAPED | {"core": "none"},
    "penalty": {"objective": "penalty", "penalty_coef": 3.0},
    "per-dimension": {"env": "HalfCheetah-v5", "normalize_obs": False, "ratio": "per-dimension", "clip": 0.02},
    "dual": {"env": "HalfCheetah-v5", "normalize_obs": False, "dual_clip": 1.05, "clip": 0.02},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_shards_add_up_to_the_gradient_of_a_plain_loss_over_the_minibatch(variant: str) -> None:
    config = dataclasses.replace(CONFIG, **VARIANTS[variant])
    arena, learner, gradients = sampled(config)
    advantages = learner._advantages()
    build_minibatches(config, arena, iteration=0, advantages=advantages, numbers=learner.schedule.numbers(0))
    old_model = copy.deepcopy(learner.model)
    with torch.no_grad():  # another policy than the one that sampled, so that ratios differ from 1
        for parameter in learner.model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
    epoch, minibatch = 1, 2
    gradients.compute(epoch, minibatch, range(config.shards))
    summed = arena.tensor("gradients").sum(0)

    distribution = inspect_task(config).distribution
    read = arena.array
    bounds = read("bounds")[epoch, minibatch]
    rows = read("rows")[read("order")[epoch, bounds[0] : bounds[-1]]].tolist()
    steps = [(t, n) for start, n, length, _ in rows for t in range(start, start + length)]
    chosen = np.array([advantages[t, n] for t, n in steps], np.float64)
    mean, std = chosen.mean(), chosen.std()
    total = torch.zeros(())
    for start, n, length, slot in rows:
        span = slice(start, start + length)
        warm = config.burn_in if slot >= 0 and start > 0 else 0
        seen = slice(start - warm, start + length)
        state = torch.zeros(1, learner.model.state_size)
        if slot >= 0 and learner.model.state_size:
            state[0] = arena.tensor("sequence_state")[slot, n]
        leaves = learner.model.observation.leaves
        obs = [torch.from_numpy(read(leaf.field)[seen, n].copy()).unsqueeze(1) for leaf in leaves]
        with torch.no_grad():
            before = old_model(obs, state)[0][warm:]
        params, values = (out[warm:] for out in learner.model(obs, state)[:2])
        actions = torch.from_numpy(read("actions")[span, n].copy())
        log_prob = distribution.log_prob(params[:, 0], actions)
        log_ratio = log_prob - distribution.log_prob(before[:, 0], actions)
        scaled = torch.from_numpy(((advantages[span, n] - mean) / (std + 1e-8)).astype(np.float32))
        target = torch.from_numpy(advantages[span, n] + read("value")[span, n])
        ratio = log_ratio.sum(-1).exp()
        if config.objective == "penalty":
            objective = ratio * scaled - 3.0 * distribution.kl(before[:, 0], params[:, 0])
        elif config.ratio == "per-dimension":
            objective = dimension_clipped_objective(log_ratio.exp(), scaled, config.clip)
        else:
            objective = clipped_objective(ratio, scaled, config.clip)
        if config.dual_clip is not None:
            objective = dual_clipped(objective, scaled, config.dual_clip)
        total = total - objective.sum()
        total = total + config.value_coef * 0.5 * (values[:, 0] - target).square().sum()
        total = total - config.entropy_coef * distribution.entropy(params[:, 0]).sum()
    plain = torch.autograd.grad(total / len(steps), list(learner.model.parameters()))
    assert read("minibatch_steps")[epoch, minibatch] == len(steps)
    for mine, expected in zip(parameter_views(summed, learner.model), plain, strict=True):
        torch.testing.assert_close(mine, expected, atol=2e-6, rtol=2e-4)


@pytest.mark.parametrize("over", ["minibatch", "global", "none"])
def test_advantage_scales_against_numpy(over: str) -> None:
    config = dataclasses.replace(CONFIG, advantage_norm=over)  # type: ignore[arg-type]
    arena, learner, _ = sampled(config)
    advantages = learner._advantages()
    build_minibatches(config, arena, iteration=0, advantages=advantages, numbers=learner.schedule.numbers(0))
    read = arena.array
    for epoch in range(config.epochs):
        seen = []
        for m in range(config.minibatches):
            bounds = read("bounds")[epoch, m]
            rows = read("rows")[read("order")[epoch, bounds[0] : bounds[-1]]]
            steps = np.concatenate([advantages[s : s + length, n] for s, n, length, _ in rows.tolist()])
            seen.append(len(steps))
            basis = {"minibatch": steps, "global": advantages, "none": np.array([-1.0, 1.0])}[over].astype(np.float64)
            mean, scale = read("advantage_scale")[epoch, m]
            np.testing.assert_allclose([mean, 1 / scale], [basis.mean(), basis.std()], rtol=1e-6, atol=1e-7)
        assert sum(seen) == config.batch_steps


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "HalfCheetah-v5"])
@pytest.mark.parametrize("core", ["lstm", "gru", "none"])
def test_the_first_ratio_of_every_update_is_one(env: str, core: str, tmp_path: Path) -> None:
    config = TrainConfig(
        env=env, core=core, num_envs=4, rollout_steps=64, minibatches=4, hidden_size=32, workers=0, quiet=True,
        total_steps=256 * 6, run_dir=str(tmp_path / "run"),
    )  # type: ignore[arg-type]  # fmt: skip
    train(config)
    with open(tmp_path / "run" / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6
    assert max(float(row["first_log_ratio"]) for row in rows) < 1e-5
    assert max(float(row["approx_kl"]) for row in rows) > 1e-5, "the policy did not move, so the ratio says nothing"
    for row in rows:
        phases = sum(float(row[f"{phase}_seconds"]) for phase in PHASES)
        assert phases * float(row["steps_per_second"]) == pytest.approx(256, rel=1e-6)
    assert list(rows[0]) == list(GLOSSARY)


def test_acting_with_other_weights_than_learned_from_stops_the_run_before_they_change() -> None:
    arena, learner, gradients = sampled(CONFIG)
    arena.array("log_prob")[:] += 0.01
    before = learner.weights_sha256()
    with pytest.raises(TrainingError, match=r"\|log ratio\| is 1\.0\de-02 but must be below 1e-03"):
        learner.update(0, lambda _, k, m: gradients.compute(k, m, range(2)), PhaseTimer())
    assert learner.weights_sha256() == before


def test_a_gradient_that_is_not_finite_stops_the_run_before_the_weights_change() -> None:
    arena, learner, gradients = sampled(CONFIG)
    before = learner.weights_sha256()

    def poisoned(version: int, epoch: int, minibatch: int) -> None:
        gradients.compute(epoch, minibatch, range(2))
        arena.array("gradients")[1, 3] = np.nan

    with pytest.raises(TrainingError, match=r"minibatch 0 of epoch 0: the (loss|gradient) is not finite.*; it has not"):
        learner.update(0, poisoned, PhaseTimer())
    assert learner.weights_sha256() == before


def test_target_kl_ends_the_update_before_the_step_that_would_follow(tmp_path: Path) -> None:
    base = dataclasses.replace(CONFIG, quiet=True, learning_rate=0.02, total_steps=192 * 3, epochs=6)
    steps = {}
    for kl in (None, 0.01):
        run_dir = tmp_path / str(kl)
        train(dataclasses.replace(base, target_kl=kl, run_dir=str(run_dir)))
        with open(run_dir / "metrics.csv") as file:
            steps[kl] = [float(row["optimizer_steps"]) for row in csv.DictReader(file)]
    assert steps[None] == [18.0] * 3
    assert all(1 <= s < 18 for s in steps[0.01])


def advantages_of(truncation_is_termination: bool = False, clip_reward: float | None = None) -> np.ndarray:
    config = dataclasses.replace(
        CONFIG, num_envs=1, rollout_steps=3, minibatches=1, grad_shards=1, core="none", gamma=0.5, gae_lambda=0.0,
        truncation_is_termination=truncation_is_termination, clip_reward=clip_reward,
    )  # fmt: skip
    arena, learner = published(config, inspect_task(config))
    arena.array("reward")[:, 0] = [1.0, 30.0, -30.0]
    arena.array("bootstrap")[:, 0] = [0.0, 8.0, 16.0]
    arena.array("truncated")[:, 0] = [False, True, False]
    return learner._advantages()[:, 0]


def test_a_truncation_bootstraps_unless_it_counts_as_termination() -> None:
    # λ = 0 and V = 0: r + ½ V', V' being the next value (0), the truncated step's bootstrap, the rollout's last
    np.testing.assert_array_equal(advantages_of(), [1.0, 34.0, -22.0])
    np.testing.assert_array_equal(advantages_of(truncation_is_termination=True), [1.0, 30.0, -22.0])


def test_rewards_are_clipped_before_anything_is_learned_from_them() -> None:
    np.testing.assert_array_equal(advantages_of(clip_reward=2.0), [1.0, 6.0, 6.0])


def stepped(**options: Any) -> torch.Tensor:
    """Parameters [1, 2] after two steps with the gradient (0.5, −1)."""
    parameter = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = build_optimizer(dataclasses.replace(CONFIG, learning_rate=0.1, adam_eps=1e-8, **options), parameter)
    for _ in range(2):
        parameter.grad = torch.tensor([0.5, -1.0])
        optimizer.step()
    return parameter.detach()


def test_optimizers_by_hand() -> None:
    # Two equal gradients: Adam's corrected moments are g and g², so each step is 0.1 · sign(g).
    torch.testing.assert_close(stepped(optimizer="adam"), torch.tensor([0.8, 2.2]))
    # decoupled decay: θ ← 0.99 θ before each step
    decayed = torch.tensor([(0.99 - 0.1) * 0.99 - 0.1, (2 * 0.99 + 0.1) * 0.99 + 0.1])
    torch.testing.assert_close(stepped(optimizer="adamw", weight_decay=0.1), decayed)
    torch.testing.assert_close(stepped(optimizer="sgd"), torch.tensor([0.9, 2.2]))
    # L2: θ ← θ − 0.1 (g + θ)
    expected = torch.tensor([0.9 * 0.85 - 0.05, 0.9 * 1.9 + 0.1])
    torch.testing.assert_close(stepped(optimizer="sgd", weight_decay=1.0), expected)
    # mean of squares 0.01 g², then 0.0199 g²: steps of 0.1 · sign(g) · (1 / √0.01 + 1 / √0.0199)
    move = 0.1 * (1 / 0.01**0.5 + 1 / 0.0199**0.5)
    torch.testing.assert_close(stepped(optimizer="rmsprop"), torch.tensor([1 - move, 2 + move]))


def test_the_log_standard_deviation_stays_above_its_floor_and_can_rise_from_it() -> None:
    config = dataclasses.replace(CONFIG, env="Pendulum-v1", log_std_min=-0.01, max_grad_norm=1e9, optimizer="sgd")
    _, learner, _ = sampled(config)
    log_std = learner.model.log_std
    assert log_std is not None
    learner.optimizer.param_groups[0]["lr"] = 0.1
    seen = []
    for slope in (1.0, -1.0):  # down, then up
        learner._flat.grad.fill_(slope)  # type: ignore[union-attr]
        learner._step(0, 0)
        seen.append(float(log_std.detach()))
    assert seen == pytest.approx([-0.01, 0.09])


def test_explained_variance_by_hand() -> None:
    targets = np.array([[1.0, 2.0, 3.0, 4.0]])
    assert explained_variance(targets, targets) == 1
    assert explained_variance(np.full((1, 4), 2.5), targets) == 0
    assert explained_variance(-targets, targets) == -3
    assert np.isnan(explained_variance(targets, np.ones((1, 4))))
