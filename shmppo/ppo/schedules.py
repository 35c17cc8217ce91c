"""What changes from update to update: step size, clip range, entropy bonus, penalty."""

from __future__ import annotations

from shmppo.config.train_config import TrainConfig
from shmppo.parallel.shared_buffers import UpdateNumbers

PENALTY_FACTOR, PENALTY_BAND = 2.0, 1.5
PENALTY_BOUNDS = (1e-4, 1e4)
"""Beyond these β says nothing more, and a run whose policy stands still would take it out of the range of floats."""
RATE_FACTOR, RATE_BAND = 1.5, 2.0
RATE_BOUNDS = (1e-5, 1e-2)


class Schedule:
    """The numbers of each update: functions of the iteration and, where they adapt, of the KL of the updates before.

    Attributes:
        adapted_rate: step size of --lr-schedule kl-adaptive.
        penalty_coef: β of --objective penalty.
    """

    def __init__(self, config: TrainConfig) -> None:
        self._config = config
        self.adapted_rate = config.learning_rate
        self.penalty_coef = config.penalty_coef

    def remaining(self, iteration: int) -> float:
        """What is left of the annealing's horizon at the start of an iteration, 1 … 0."""
        return max(0.0, 1.0 - iteration * self._config.batch_steps / self._config.anneal_horizon)

    def learning_rate(self, iteration: int) -> float:
        """The optimizer's step size in an iteration."""
        config = self._config
        rate = self.adapted_rate if config.lr_schedule == "kl-adaptive" else config.learning_rate
        if config.lr_schedule == "linear":
            rate *= self.remaining(iteration)
        if config.warmup_steps:
            rate *= min(1.0, (iteration + 1) * config.batch_steps / config.warmup_steps)
        return rate

    def numbers(self, iteration: int) -> UpdateNumbers:
        """What the loss weighs its terms with in an iteration."""
        config, remaining = self._config, self.remaining(iteration)
        return UpdateNumbers(
            clip_range=config.clip * (remaining if config.anneal_clip else 1.0),
            entropy_coef=config.entropy_coef * (remaining if config.anneal_entropy else 1.0),
            penalty_coef=self.penalty_coef,
        )

    def adapt(self, kl: float) -> None:
        """Learn from an update that moved the policy by `kl` nats.

        PPO-Penalty (arXiv 1707.06347, section 4): β halves below desired / 1.5 and doubles above 1.5 · desired. The
        step size (Heess et al., arXiv 1707.02286, in the form that rsl_rl and rl_games use): divided by 1.5 above
        2 · desired, multiplied by 1.5 below desired / 2.
        """
        desired = self._config.desired_kl
        if self._config.objective == "penalty":
            if kl < desired / PENALTY_BAND:
                self.penalty_coef = _lowered(self.penalty_coef, PENALTY_FACTOR, PENALTY_BOUNDS)
            elif kl > desired * PENALTY_BAND:
                self.penalty_coef = _raised(self.penalty_coef, PENALTY_FACTOR, PENALTY_BOUNDS)
        if self._config.lr_schedule == "kl-adaptive":
            if kl > desired * RATE_BAND:
                self.adapted_rate = _lowered(self.adapted_rate, RATE_FACTOR, RATE_BOUNDS)
            elif 0 < kl < desired / RATE_BAND:
                self.adapted_rate = _raised(self.adapted_rate, RATE_FACTOR, RATE_BOUNDS)

    def state(self) -> dict[str, float]:
        return {"adapted_rate": self.adapted_rate, "penalty_coef": self.penalty_coef}

    def load(self, state: dict[str, float]) -> None:
        self.adapted_rate = state["adapted_rate"]
        self.penalty_coef = state["penalty_coef"]


def _lowered(value: float, factor: float, bounds: tuple[float, float]) -> float:
    """value / factor, but not below the lower bound; one that began below it stays."""
    return max(value / factor, min(value, bounds[0]))


def _raised(value: float, factor: float, bounds: tuple[float, float]) -> float:
    """value · factor, but not above the upper bound; one that began above it stays."""
    return min(value * factor, max(value, bounds[1]))
