"""The loss: a list of terms. What is known about a term stands at its place in `TERMS`, and everything else follows:
the sizes of shared arrays, the loss that processes compute, and the columns of metrics.csv.

To add a term, write a function like `entropy`, append a `Term` to `TERMS`, and declare an option for its coefficient.
The name of the function is that of the metric, and its docstring is the meaning of the metric in the documentation.

Axes: R steps; A action dimensions, O policy parameters, Q log_probs (1, or A with --ratio per-dimension).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shmppo.config.train_config import TrainConfig
from shmppo.ppo import losses

if TYPE_CHECKING:
    from shmppo.spaces.distributions import Distribution

TermResult = tuple[np.ndarray, np.ndarray | None, np.ndarray | None]
"""A term at each step: its value [R], without its coefficient, and the derivatives of the loss with respect to the
policy parameters [R, O] and to the values [R], with its coefficient. None: the term does not depend on them. All are 0
at burn-in steps."""


@dataclass
class LossInputs:
    """The steps of some sequences, and what the network computes there."""

    config: TrainConfig
    distribution: Distribution
    coefficients: dict[str, float]
    """The coefficients of all terms in this update, by metric."""
    weights: np.ndarray
    """float32 [R], 0 at burn-in steps and 1 elsewhere."""
    params: np.ndarray
    """[R, O], policy parameters."""
    values: np.ndarray
    """[R]"""
    actions: np.ndarray
    """[R, A]"""
    index: np.ndarray
    """[R], index of each step in the arrays of the rollout."""
    policy_params: np.ndarray
    """[T·N, O], of the policy that acted. [T·N, 0] with --objective clip."""
    teacher_params: np.ndarray
    """[T·N, O], of the teacher. [T·N, 0] without --teacher."""
    advantages: np.ndarray
    """[R], normalized; 0 at burn-in steps."""
    targets: np.ndarray
    """[R], value targets."""
    old_values: np.ndarray
    """[R], at the time of acting."""
    log_prob: np.ndarray
    """[R, Q], log π."""
    ratios: np.ndarray
    """[R, Q], ρ."""
    log_ratio: np.ndarray
    """[R], log ρ of the whole action."""
    ratio: np.ndarray
    """[R], ρ of the whole action."""

    @cached_property
    def kl(self) -> np.ndarray:
        """KL(π_old ‖ π) in nats, [R]: an estimate with --objective clip, otherwise in closed form."""
        if self.config.objective == "clip":
            return losses.kl_estimate(self.log_ratio, self.ratio)
        divergence: np.ndarray = self.distribution.kl(self.policy_params[self.index], self.params)
        return divergence * self.weights

    def weighted(self, gradient: np.ndarray, coefficient: float) -> np.ndarray:
        """Return the derivative of a term with a coefficient at the steps that count. gradient: [R, O]."""
        return gradient * (self.weights * coefficient)[:, np.newaxis]


def _objective(inputs: LossInputs) -> tuple[np.ndarray, np.ndarray]:
    """Compute the objective [R], to be maximized, and its derivative with respect to log π, [R] or [R, Q]."""
    config, clip = inputs.config, inputs.coefficients["clip_range"]
    ratios, advantages = inputs.ratios, inputs.advantages
    if config.objective == "clone":
        return inputs.log_prob[:, 0] * inputs.weights, inputs.weights
    if config.ratio == "per-dimension":
        objective, gradient = losses.dimension_clipped_objective(ratios, advantages, clip)
    elif config.objective == "clip":
        objective, gradient = losses.clipped_objective(ratios[:, 0], advantages, clip)
    else:
        objective, gradient = losses.unclipped_objective(ratios[:, 0], advantages)
    if config.dual_clip is not None:
        objective, gradient = losses.dual_clipped(objective, gradient, advantages, config.dual_clip)
    return objective, gradient


def policy_loss(inputs: LossInputs, coefficient: float) -> TermResult:
    """policy loss, mean over the minibatches of the update; −log π(a|s) with `--objective clone`"""
    if coefficient:
        objective, by_log_prob = _objective(inputs)
        by_log_prob = -by_log_prob.reshape(len(inputs.params), -1)
        by_params = inputs.distribution.log_prob_grad(inputs.params, inputs.actions, by_log_prob)
    else:
        objective, by_params = np.zeros_like(inputs.log_ratio), np.zeros_like(inputs.params)
    if inputs.config.objective == "penalty":
        objective = objective - inputs.coefficients["penalty_coef"] * inputs.kl
    return 0 - objective, by_params, None


def value_loss(inputs: LossInputs, _: float) -> TermResult:
    """½(V − R)², mean over the minibatches of the update"""
    clip = inputs.coefficients["clip_range"] if inputs.config.value_clip else None
    value, by_values = losses.value_loss(inputs.values, inputs.targets, inputs.old_values, clip)
    return value * inputs.weights, None, by_values * inputs.weights * inputs.config.value_coef


def entropy(inputs: LossInputs, coefficient: float) -> TermResult:
    """policy entropy in nats, mean over the minibatches of the update"""
    gradient = inputs.weighted(inputs.distribution.entropy_grad(inputs.params), -coefficient) if coefficient else None
    return inputs.distribution.entropy(inputs.params) * inputs.weights, gradient, None


def approx_kl(inputs: LossInputs, coefficient: float) -> TermResult:
    """mean KL(old ‖ new) in nats over the minibatches, each measured before its optimizer step; estimated by ratio − 1
    − log ratio (k3), or in closed form with objectives other than `clip`"""
    if inputs.config.objective != "penalty":
        return inputs.kl, None, None
    gradient = inputs.distribution.kl_grad(inputs.policy_params[inputs.index], inputs.params)
    return inputs.kl, inputs.weighted(gradient, coefficient), None


def clip_fraction(inputs: LossInputs, clip: float) -> TermResult:
    """fraction of ratios outside 1 ± clip range, mean over the minibatches of the update"""
    return np.add.reduce(np.abs(inputs.ratios - 1) > clip, 1) / inputs.ratios.shape[1], None, None


def teacher_kl(inputs: LossInputs, coefficient: float) -> TermResult:
    """mean KL(teacher ‖ policy) in nats over the minibatches, each measured before its optimizer step"""
    if inputs.config.teacher is None:
        return np.zeros_like(inputs.log_ratio), None, None
    teacher_params = inputs.teacher_params[inputs.index]
    gradient = inputs.distribution.kl_grad(teacher_params, inputs.params)
    divergence = inputs.distribution.kl(teacher_params, inputs.params)
    return divergence * inputs.weights, inputs.weighted(gradient, coefficient), None


def auxiliary_loss(inputs: LossInputs, _: float) -> TermResult:
    """loss of `--auxiliary` without its coefficient, mean over the minibatches of the update"""
    return np.zeros_like(inputs.log_ratio), None, None  # `ShardGradients` adds it, because it depends on the features


class ScheduleState(NamedTuple):
    """What coefficients depend on."""

    config: TrainConfig
    actor: float
    """1, or 0 while only the critic is trained."""
    remaining: float
    """Fraction of --anneal-steps that remains at the start of the iteration, from 1 to 0."""
    teacher_remaining: float
    """The same fraction of --teacher-steps."""
    penalty_coef: float
    """Current β."""


def policy_coef(now: ScheduleState) -> float:
    """weight of the objective in this iteration: 1, or 0 with `--objective distill` and in the critic's warm-up"""
    return 0.0 if now.config.objective == "distill" else now.actor


def entropy_coef(now: ScheduleState) -> float:
    """coefficient of the entropy bonus in this iteration"""
    return policy_coef(now) * now.config.entropy_coef * (now.remaining if now.config.anneal_entropy else 1.0)


def penalty_coef(now: ScheduleState) -> float:
    """β of `--objective penalty` in this iteration"""
    return now.actor * now.penalty_coef


def clip_range(now: ScheduleState) -> float:
    """clip range of this iteration"""
    return now.config.clip * (now.remaining if now.config.anneal_clip else 1.0)


def teacher_coef(now: ScheduleState) -> float:
    """coefficient of `teacher_kl` in the loss in this iteration"""
    return (0.0 if now.config.teacher is None else now.actor * now.config.teacher_coef) * now.teacher_remaining


class Term(NamedTuple):
    """A term of the loss, or a number that is measured like one."""

    compute: Callable[[LossInputs, float], TermResult]
    """Gets the steps, and the coefficient or 0. Its metric is the mean over the minibatches."""
    coefficient: Callable[[ScheduleState], float] | None = None
    """Returns a number of the loss that may change from iteration to iteration. It is a metric, too."""
    group: str = "losses"
    """Group of its metric in trackers. Coefficients belong to the group policy."""


TERMS = (
    Term(policy_loss, policy_coef),
    Term(value_loss),
    Term(entropy, entropy_coef),
    Term(approx_kl, penalty_coef, "policy"),
    Term(clip_fraction, clip_range, "policy"),
    Term(teacher_kl, teacher_coef, "policy"),
    Term(auxiliary_loss),
)
COEFFICIENTS = tuple(term.coefficient for term in TERMS if term.coefficient is not None)


METRICS = tuple(term.compute.__name__ for term in TERMS)
"""The metric of each term."""
COEFFICIENT_METRICS = tuple(coefficient.__name__ for coefficient in COEFFICIENTS)
_COEFFICIENT_OF = tuple(term.coefficient and term.coefficient.__name__ for term in TERMS)


def compute_terms(inputs: LossInputs) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute the loss of each step.

    Returns:
        (derivative with respect to the policy parameters [R, O], derivative with respect to the values [R], values of
        the terms [R, len(TERMS)]).
    """
    values, by_params, by_values = zip(
        *(
            term.compute(inputs, inputs.coefficients[name] if name else 0.0)
            for term, name in zip(TERMS, _COEFFICIENT_OF, strict=True)
        ),
        strict=True,
    )
    return _sum(by_params), _sum(by_values), np.stack(values, 1)


def _sum(derivatives: Sequence[np.ndarray | None]) -> np.ndarray:
    """Add derivatives in order."""
    return functools.reduce(np.add, [one for one in derivatives if one is not None])


def meanings(functions: Iterable[Callable[..., Any]]) -> dict[str, str]:
    """Return the meaning of the metric of each term or coefficient, by metric."""
    return {one.__name__: " ".join((one.__doc__ or "").split()) for one in functions}


def by_metric(values: np.ndarray, metrics: Sequence[str]) -> dict[str, float]:
    """Return an array with an element per term or coefficient as a mapping."""
    return dict(zip(metrics, values.tolist(), strict=True))
