"""Schedules: annealing, warm-up of the critic, and adaptation to the KL at the documented thresholds."""

from __future__ import annotations

import pytest

from shmppo.config.train_config import TrainConfig
from shmppo.ppo.loss import Loss
from shmppo.ppo.schedule import Schedule

SIZES = {"num_envs": 2, "rollout_steps": 50, "minibatches": 1, "core": "none", "total_steps": 400}


def schedule(**options: object) -> Schedule:
    return Schedule(TrainConfig(**SIZES | options))  # type: ignore[arg-type]


def coefficients(of_run: Schedule, iteration: int) -> dict[str, float]:
    loss = Loss(of_run.config)
    return dict(zip(loss.coefficient_metrics, loss.coefficients(of_run, iteration), strict=True))


def test_annealing_reaches_zero_at_its_horizon() -> None:
    plain = schedule()
    assert [plain.remaining(i) for i in range(6)] == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    assert [plain.learning_rate(i) for i in (0, 2, 4)] == [1e-3, 5e-4, 0.0]
    assert schedule(lr_schedule="constant").learning_rate(3) == 1e-3
    assert coefficients(schedule(anneal_entropy=True, entropy_coef=0.1), 2)["entropy_coef"] == 0.05
    assert coefficients(schedule(entropy_coef=0.1), 2)["entropy_coef"] == 0.1


def test_the_teacher_fades_and_the_critic_warms_up_alone() -> None:
    fading = schedule(teacher="runs/teacher", teacher_coef=2.0, teacher_steps=200, entropy_coef=0.1)
    assert [coefficients(fading, i)["teacher_coef"] for i in range(4)] == [2.0, 1.0, 0.0, 0.0]
    assert [coefficients(fading, i)["policy_coef"] for i in range(2)] == [1.0, 1.0]
    assert coefficients(schedule(teacher="runs/teacher"), 3)["teacher_coef"] == 1.0
    assert "teacher_coef" not in coefficients(schedule(teacher_coef=2.0), 0)
    distilled = coefficients(schedule(teacher="runs/teacher", objective="distill", entropy_coef=0.1), 3)
    expected = {"policy_coef": 0.0, "entropy_coef": 0.0, "penalty_coef": 1.0, "teacher_coef": 1.0}
    assert distilled == expected
    warm = schedule(separate_critic="all", critic_warmup_steps=150, entropy_coef=0.1, teacher="runs/teacher")
    assert [warm.trains_actor(i) for i in range(3)] == [False, False, True]
    expected = {"policy_coef": 0.0, "entropy_coef": 0.0, "penalty_coef": 0.0, "teacher_coef": 0.0}
    assert coefficients(warm, 1) == expected
    expected = {"policy_coef": 1.0, "entropy_coef": 0.1, "penalty_coef": 1.0, "teacher_coef": 1.0}
    assert coefficients(warm, 2) == expected


def test_the_penalty_halves_and_doubles_at_its_thresholds() -> None:
    adaptive = schedule(objective="penalty", desired_kl=0.03)
    seen = []
    for kl in (0.0199, 0.0201, 0.0449, 0.0451, 0.0451, 0.0):
        adaptive.adapt(kl)
        seen.append(coefficients(adaptive, 0)["penalty_coef"])
    assert seen == [0.5, 0.5, 0.5, 1.0, 2.0, 1.0]
    assert adaptive.learning_rate(0) == 1e-3
    for kl, bound in ((0.0, 1e-4), (1.0, 1e4)):
        for _ in range(40):
            adaptive.adapt(kl)
        assert adaptive.penalty_coef == bound


def test_the_learning_rate_adapts_at_its_thresholds_and_within_its_bounds() -> None:
    adaptive = schedule(lr_schedule="kl-adaptive", desired_kl=0.02, learning_rate=9e-4)
    seen = []
    for kl in (0.0099, 0.0101, 0.0399, 0.0401, 0.0401, 0.0):
        adaptive.adapt(kl)
        seen.append(adaptive.learning_rate(0))
    assert seen == pytest.approx([1.35e-3, 1.35e-3, 1.35e-3, 9e-4, 6e-4, 6e-4])
    assert adaptive.penalty_coef == 1.0
    for kl, bound in ((1e-9, 1e-2), (1.0, 1e-5)):
        for _ in range(40):
            adaptive.adapt(kl)
        assert adaptive.learning_rate(0) == bound


def test_the_state_holds_the_adapted_values() -> None:
    one, other = (schedule(objective="penalty", lr_schedule="kl-adaptive") for _ in range(2))
    one.adapt(1.0)
    other.load(one.state())
    assert (other.learning_rate(0), coefficients(other, 0)) == (one.learning_rate(0), coefficients(one, 0))
    assert other.penalty_coef == 2.0


def test_a_learning_rate_beyond_its_bounds_does_not_move_further_away() -> None:
    slow = schedule(lr_schedule="kl-adaptive", learning_rate=5e-6)
    slow.adapt(1.0)
    assert slow.adapted_rate == 5e-6
    fast = schedule(lr_schedule="kl-adaptive", learning_rate=5e-2)
    fast.adapt(1e-6)
    assert fast.adapted_rate == 5e-2
