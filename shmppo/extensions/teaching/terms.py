"""What teachers and demonstrations add to the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shmppo.extensions.teaching.options import TeachingOptions

if TYPE_CHECKING:  # the module of the loss imports this one
    from shmppo.ppo.loss import LossInputs, Objective, TermResult
    from shmppo.ppo.schedule import Schedule


def cloning_objective(inputs: LossInputs) -> tuple[np.ndarray, np.ndarray]:
    """Compute log π of the recorded actions."""
    return inputs.log_prob[:, 0], np.ones_like(inputs.values)


def teacher_kl(inputs: LossInputs, coefficient: float | None) -> TermResult:
    """mean KL(teacher ‖ policy) in nats over the minibatches, each measured before its optimizer step"""
    teacher = inputs.distribution.normalized(inputs.rollout("teacher_params"))
    gradient = None if coefficient is None else inputs.distribution.kl_grad(teacher, inputs.policy) * coefficient
    return inputs.distribution.kl(teacher, inputs.policy), gradient, None


def teacher_coef(schedule: Schedule, iteration: int) -> float:
    """coefficient of `teacher_kl` in the loss in this iteration"""
    options = TeachingOptions.of(schedule.config)
    annealed = schedule.remaining(iteration, options.teacher_steps) if options.teacher_steps else 1.0
    return schedule.trains_actor(iteration) * options.teacher_coef * annealed


OBJECTIVES: dict[str, Objective | None] = {"clone": cloning_objective, "distill": None}
TERMS = ((teacher_kl, teacher_coef, "policy", lambda config: TeachingOptions.of(config).teacher is not None),)
