"""The loss: its formulas, and the list of its terms.

    loss = policy_loss + value_coef·value_loss − entropy_coef·entropy

--objective penalty adds penalty_coef·approx_kl, whose value its policy_loss contains.

The derivatives with respect to the outputs of the network are written by hand, and tests compare them with those of
autograd. The kernels or torch then compute the gradients of the weights. The functions use NumPy only; on a GPU, their
arrays are `DeviceArray`s.

What is known about a term stands at its place in `TERMS`, and everything else follows: the sizes of shared arrays, the
loss that processes compute, and the columns of metrics.csv.

To add a term, write a function like `entropy`, append a `Term` to `TERMS` here or in the module `terms` of an
extension, and declare an option for its coefficient. The name of the function is that of the metric, and its docstring
is the meaning of the metric in the documentation.

Axes: R steps; A action dimensions, O policy parameters, Q log_probs (1, or A with --ratio per-dimension).

Symbols: ρ = π(a|s) / π_old(a|s), the ratio; A, the advantage; ε, the clip range; V, the value; R, the value target.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import numpy as np

from shmppo.config.extensions import added
from shmppo.config.train_config import TrainConfig
from shmppo.kernels.functions import exp
from shmppo.ppo.schedule import Schedule

if TYPE_CHECKING:
    from shmppo.spaces.distributions import Distribution


def _clip(x: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return x between two bounds. np.clip takes several times as long for small arrays."""
    return np.minimum(np.maximum(x, low), high)


def clipped_objective(ratio: np.ndarray, advantages: np.ndarray, clip: float) -> tuple[np.ndarray, np.ndarray]:
    """PPO-Clip objective per step, to be maximized: min(ρA, clip(ρ, 1 − ε, 1 + ε)A).

    Its derivative is ρA, or 0 where the clipped term is smaller. This follows from ∂ρ/∂log π = ρ.

    Source: Schulman et al., arXiv 1707.06347, eq. 7.
    """
    unclipped = ratio * advantages
    clipped = _clip(ratio, 1 - clip, 1 + clip) * advantages
    return np.minimum(unclipped, clipped), np.where(unclipped <= clipped, unclipped, 0)


def dimension_clipped_objective(
    ratios: np.ndarray, advantages: np.ndarray, clip: float
) -> tuple[np.ndarray, np.ndarray]:
    """PPO-Clip objective per step with one ratio per action dimension, to be maximized.

        A · Π_d s·min(s·ρ_d, s·clip(ρ_d, 1 − ε, 1 + ε)),   s = sign(A)

    If the ratio of one dimension is clipped, the other dimensions keep their gradient. In `clipped_objective`,
    a clipped ratio sets the whole gradient to 0. With one action dimension, both functions are equal.

    Source: DISC, Han and Sung, ICML 2019, arXiv 1905.02363.

    Args:
        ratios: [..., D], one per action dimension.
        advantages: [...].
        clip: ε.

    Returns:
        (objective [...], derivative with respect to log π of each action dimension [..., D]). The derivative is the
        objective itself, or 0 in dimensions whose ratio is clipped.
    """
    # s·min(s·ρ_d, s·clip(ρ_d)) is ρ_d, but at most 1 + ε where A > 0, and at least 1 − ε elsewhere.
    positive = (advantages > 0)[..., np.newaxis]
    bounded = np.where(positive, np.minimum(ratios, 1 + clip), np.maximum(ratios, 1 - clip))
    objective = advantages * bounded.prod(-1)
    return objective, objective[..., np.newaxis] * (bounded == ratios)


def unclipped_objective(ratio: np.ndarray, advantages: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Objective of PPO-Penalty per step, without the penalty β·KL, to be maximized: ρA. Its derivative is also ρA.

    Source: Schulman et al., arXiv 1707.06347, eq. 8.
    """
    objective = ratio * advantages
    return objective, objective


def squared_error(
    values: np.ndarray, targets: np.ndarray, old_values: np.ndarray, clip: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """Value loss per step with its derivative with respect to V: ½(V − R)². The derivative is V − R.

    With `clip` it is ½ max((V − R)², (V_clip − R)²), where V_clip = V_old + clip(V − V_old, −ε, ε). The derivative is 0
    where |V − V_old| > ε and the clipped term is larger.

    Source: the `ppo2` implementation in OpenAI Baselines.
    """
    error = values - targets
    squared = error * error
    if clip is None:
        return 0.5 * squared, error
    change = values - old_values
    # Written this way, V_clip is exactly V within the clip range. V_old + (V − V_old) may differ by a rounding error,
    # and the comparison below would drop the derivative.
    clipped_error = error - (change - _clip(change, -clip, clip))
    clipped = clipped_error * clipped_error
    return 0.5 * np.maximum(squared, clipped), error * (squared >= clipped)


def kl_estimate(log_ratio: np.ndarray, ratio: np.ndarray) -> np.ndarray:
    """Estimate of KL(π_old ‖ π) per step in nats: (ρ − 1) − log ρ.

    It is unbiased and never negative.

    Source: the estimator k3 in J. Schulman, "Approximating KL Divergence", 2020.
    """
    return ratio - 1 - log_ratio


TermResult = tuple[np.ndarray, np.ndarray | None, np.ndarray | None]
"""A term at each step: its value [R], without its coefficient, and the derivatives of the loss with respect to the
policy parameters [R, O] and to the values [R], with its coefficient. None: the term does not depend on them."""


@dataclass
class LossInputs:
    """The steps of some sequences: what the rollout contains, what the network computes, and what follows from both."""

    config: TrainConfig
    distribution: Distribution
    coefficients: dict[str, float]
    """The coefficients that may change from update to update, by metric."""
    params: np.ndarray
    """[R, O], policy parameters."""
    values: np.ndarray
    """[R]"""
    step_targets: np.ndarray
    """[R, 3 + Q]: advantage, value target, old value, and old log_prob."""
    advantage_scale: np.ndarray
    """[2], mean of the advantages, and the factor that normalizes them."""
    rollout: Callable[[str], np.ndarray]
    """Returns an array of the rollout at these steps, [R, …], by its name in the shared buffers: "actions" [R, A], or
    "policy_params" [R, O], of the policy that acted, which have no elements with --objective clip."""

    @cached_property
    def advantages(self) -> np.ndarray:
        """[R], normalized."""
        mean, factor = self.advantage_scale.astype(np.float32)
        advantages: np.ndarray = (self.step_targets[:, 0] - mean) * factor
        return advantages

    @cached_property
    def policy(self) -> np.ndarray:
        """[R, O], π: the policy parameters, normalized."""
        return self.distribution.normalized(self.params)

    @cached_property
    def old_policy(self) -> np.ndarray:
        """[R, O], π_old, normalized. No elements with --objective clip."""
        return self.distribution.normalized(self.rollout("policy_params"))

    @cached_property
    def log_prob(self) -> np.ndarray:
        """[R, Q], log π."""
        log_prob = self.distribution.log_prob(self.policy, self.rollout("actions"))
        return log_prob if self.config.ratio == "per-dimension" else np.add.reduce(log_prob, 1, keepdims=True)

    @cached_property
    def log_ratios(self) -> np.ndarray:
        """[R, Q], log ρ."""
        log_ratios: np.ndarray = self.log_prob - self.step_targets[:, 3:]
        return log_ratios

    @cached_property
    def ratios(self) -> np.ndarray:
        """[R, Q], ρ."""
        return exp(self.log_ratios)

    @cached_property
    def log_ratio(self) -> np.ndarray:
        """[R], log ρ of the whole action."""
        log_ratio: np.ndarray = np.add.reduce(self.log_ratios, 1)
        return log_ratio

    @cached_property
    def kl(self) -> np.ndarray:
        """KL(π_old ‖ π) in nats, [R]: an estimate with --objective clip, otherwise in closed form."""
        if self.config.objective == "clip":
            ratio = self.ratios[:, 0] if self.config.ratio == "joint" else exp(self.log_ratio)
            return kl_estimate(self.log_ratio, ratio)
        return self.distribution.kl(self.old_policy, self.policy)

    @cached_property
    def entropies(self) -> list[np.ndarray]:
        """Entropy of each part of the action in nats, [R] each. An action without parts is one part."""
        of_parts = getattr(self.distribution, "entropies", None)  # `Joint` has it
        return [self.distribution.entropy(self.policy)] if of_parts is None else of_parts(self.policy)


Objective = Callable[[LossInputs], tuple[np.ndarray, np.ndarray]]
"""Computes an objective [R], to be maximized, and its derivative with respect to log π, [R] or [R, Q]."""


def _clip_objective(inputs: LossInputs) -> tuple[np.ndarray, np.ndarray]:
    if inputs.config.ratio == "per-dimension":
        return dimension_clipped_objective(inputs.ratios, inputs.advantages, inputs.config.clip)
    return clipped_objective(inputs.ratios[:, 0], inputs.advantages, inputs.config.clip)


def _penalty_objective(inputs: LossInputs) -> tuple[np.ndarray, np.ndarray]:
    return unclipped_objective(inputs.ratios[:, 0], inputs.advantages)


OBJECTIVES: dict[str, Objective | None] = {"clip": _clip_objective, "penalty": _penalty_objective}
"""By value of --objective. None: other terms train the actor."""
for _module in added("terms"):
    OBJECTIVES |= getattr(_module, "OBJECTIVES", {})


def policy_loss(inputs: LossInputs, coefficient: float | None) -> TermResult:
    """policy loss, the negative value of `--objective`, mean over the minibatches"""
    compute = OBJECTIVES[inputs.config.objective]
    if compute is not None and coefficient is not None:
        objective, by_log_prob = compute(inputs)
        by_log_prob = -by_log_prob.reshape(len(inputs.params), -1)
        by_params = inputs.distribution.log_prob_grad(inputs.policy, inputs.rollout("actions"), by_log_prob)
    else:
        objective, by_params = np.zeros_like(inputs.log_ratio), np.zeros_like(inputs.params)
    if inputs.config.objective == "penalty":
        objective = objective - inputs.coefficients["penalty_coef"] * inputs.kl
    return 0 - objective, by_params, None


def value_loss(inputs: LossInputs, _: float | None) -> TermResult:
    """½(V − R)², mean over the minibatches"""
    clip = inputs.config.clip if inputs.config.value_clip else None
    _, targets, old_values, *_ = inputs.step_targets.T
    value, by_values = squared_error(inputs.values, targets, old_values, clip)
    return value, None, by_values * inputs.config.value_coef


def entropy(inputs: LossInputs, coefficient: float | None) -> TermResult:
    """policy entropy in nats, mean over the minibatches"""
    gradient = None if coefficient is None else inputs.distribution.entropy_grad(inputs.policy) * -coefficient
    return _sum(inputs.entropies), gradient, None


def approx_kl(inputs: LossInputs, coefficient: float | None) -> TermResult:
    """mean KL(old ‖ new) in nats over the minibatches, each measured before its optimizer step; estimated by ratio − 1
    − log ratio (k3), or in closed form with objectives other than `clip`"""
    if inputs.config.objective != "penalty" or coefficient is None:
        return inputs.kl, None, None
    gradient = inputs.distribution.kl_grad(inputs.old_policy, inputs.policy)
    return inputs.kl, gradient * coefficient, None


def clip_fraction(inputs: LossInputs, _: float | None) -> TermResult:
    """fraction of ratios outside 1 ± `--clip`, mean over the minibatches"""
    return np.add.reduce(np.abs(inputs.ratios - 1) > inputs.config.clip, 1) / inputs.ratios.shape[1], None, None


def policy_coef(schedule: Schedule, iteration: int) -> float:
    """1 if the objective trains the actor in this iteration; 0 in the critic's warm-up and if only other terms do"""
    return 0.0 if OBJECTIVES[schedule.config.objective] is None else float(schedule.trains_actor(iteration))


def entropy_coef(schedule: Schedule, iteration: int) -> float:
    """coefficient of the entropy bonus in this iteration"""
    annealed = schedule.remaining(iteration) if schedule.config.anneal_entropy else 1.0
    return policy_coef(schedule, iteration) * schedule.config.entropy_coef * annealed


def penalty_coef(schedule: Schedule, iteration: int) -> float:
    """β of `--objective penalty` in this iteration"""
    return schedule.trains_actor(iteration) * schedule.penalty_coef


class Term(NamedTuple):
    """A term of the loss, or a number that is measured like one."""

    compute: Callable[[LossInputs, float | None], TermResult]
    """Gets the steps, and the coefficient. Its metric is the mean over the minibatches."""
    coefficient: Callable[[Schedule, int], float] | None = None
    """Returns the coefficient in an iteration, which is a metric, too. `compute` gets None if it is 0, and without
    this function, when it multiplies its derivatives by an option itself (see `value_loss`)."""
    group: str = "losses"
    """Group of its metric in trackers. Coefficients belong to the group policy."""
    is_used: Callable[[TrainConfig], bool] | None = None
    """Whether a run has the term. None: every run."""

    @property
    def metric(self) -> str:
        """Name of its metric."""
        return self.compute.__name__


TERMS = (
    Term(policy_loss, policy_coef),
    Term(value_loss),
    Term(entropy, entropy_coef),
    Term(approx_kl, penalty_coef, "policy"),
    Term(clip_fraction, group="policy"),
    *(Term(*term) for module in added("terms") for term in module.TERMS),
)


MAX_PARTS = 16
"""Most parts of an action whose entropies are metrics."""


class Loss:
    """The loss of a run.

    Attributes:
        metrics: the metric of each of its terms, and the entropy of each part of a joint action.
        coefficient_metrics: the metric of each coefficient that may change from update to update.
    """

    def __init__(self, config: TrainConfig, distribution: Distribution | None = None) -> None:
        """Select the terms. distribution: None leaves out the metrics that are no terms."""
        self._terms = [term for term in TERMS if term.is_used is None or term.is_used(config)]
        self._coefficients = [term.coefficient for term in self._terms if term.coefficient is not None]
        keys = getattr(distribution, "part_keys", ())  # of a `Joint`
        keys = keys if len(keys) <= MAX_PARTS else ()
        self.metrics = [*(term.metric for term in self._terms), *(f"entropy/{quote(str(key))}" for key in keys)]
        self.coefficient_metrics = [one.__name__ for one in self._coefficients]

    def coefficients(self, schedule: Schedule, iteration: int) -> list[float]:
        """Return the coefficients in an iteration."""
        return [coefficient(schedule, iteration) for coefficient in self._coefficients]

    @np.errstate(over="ignore", invalid="ignore")  # the learner checks that losses and gradients are finite
    def compute(self, inputs: LossInputs) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Compute the terms of the loss at each step, and their derivatives.

        Returns:
            (derivative with respect to the policy parameters [R, O], derivative with respect to the values [R], values
            of `metrics` [R, terms] without losses of features, |log ratio| [R]).
        """
        results = []
        for term in self._terms:
            coefficient = inputs.coefficients[term.coefficient.__name__] if term.coefficient else 0.0
            is_zero = isinstance(coefficient, float) and coefficient == 0
            results.append(term.compute(inputs, None if is_zero else coefficient))
        values, by_params, by_values = zip(*results, strict=True)
        measured = np.stack([*values, *inputs.entropies[: len(self.metrics) - len(values)]], 1)
        return _sum(by_params), _sum(by_values), measured, np.abs(inputs.log_ratio)


def _sum(arrays: Sequence[np.ndarray | None]) -> np.ndarray:
    """Add arrays in order."""
    return functools.reduce(np.add, [one for one in arrays if one is not None])


def meanings(functions: Iterable[Callable[..., Any]]) -> dict[str, str]:
    """Return the meaning of the metric of each term or coefficient, by metric."""
    return {one.__name__: " ".join((one.__doc__ or "").split()) for one in functions}
