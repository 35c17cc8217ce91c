"""Schedules: what changes from update to update, such as the learning rate."""

from __future__ import annotations

from shmppo.config.train_config import TrainConfig

PENALTY_FACTOR, PENALTY_BAND = 2.0, 1.5
"""β changes by PENALTY_FACTOR when the KL differs from the desired KL by more than PENALTY_BAND. All are factors."""
PENALTY_BOUNDS = (1e-4, 1e4)
"""Bounds of β. Without them, β would be halved until it is 0, and stay 0, if the policy did not change for long."""
RATE_FACTOR, RATE_BAND = 1.5, 2.0
"""The learning rate changes by RATE_FACTOR when the KL differs from the desired KL by more than RATE_BAND."""
RATE_BOUNDS = (1e-5, 1e-2)
"""Bounds of the adaptive learning rate."""

SET_BY = {"adapted_rate": "learning_rate", "penalty_coef": "objective"}
"""The option that sets each value of `Schedule.state`, also in a branch that gives it."""


class Schedule:
    """What the learning rate and the coefficients of the loss depend on: the iteration and the KL of earlier updates.

    Attributes:
        adapted_rate: current learning rate of `--lr-schedule kl-adaptive`.
        penalty_coef: current β of `--objective penalty`.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.adapted_rate, self.penalty_coef = config.learning_rate, 1.0

    def remaining(self, iteration: int, horizon: int | None = None) -> float:
        """Return the fraction of a horizon that remains at the start of an iteration, from 1 to 0.

        horizon: in environment steps. None: the annealing horizon.
        """
        return max(0.0, 1.0 - iteration * self.config.batch_steps / (horizon or self.config.anneal_horizon))

    def trains_actor(self, iteration: int) -> bool:
        """Whether an iteration trains the actor, too (--critic-warmup-steps)."""
        return iteration * self.config.batch_steps >= self.config.critic_warmup_steps

    def actor_training_starts(self, iteration: int) -> bool:
        """Whether an iteration is the first one after --critic-warmup-steps."""
        return self.trains_actor(iteration) and not self.trains_actor(iteration - 1)

    def learning_rate(self, iteration: int) -> float:
        """Return the learning rate of an iteration."""
        config = self.config
        rate = self.adapted_rate if config.lr_schedule == "kl-adaptive" else config.learning_rate
        return rate * self.remaining(iteration) if config.lr_schedule == "linear" else rate

    def adapt(self, approx_kl: float) -> None:
        """Adapt β and the learning rate to the KL of an update.

        - β of `--objective penalty` halves if KL < desired / 1.5, and doubles if KL > 1.5 · desired.
          Source: PPO-Penalty, arXiv 1707.06347, section 4.
        - The learning rate of `--lr-schedule kl-adaptive` is divided by 1.5 if KL > 2 · desired, and multiplied by 1.5
          if 0 < KL < desired / 2.
          Source: Heess et al., arXiv 1707.02286, in the form that rsl_rl and rl_games use.

        Args:
            approx_kl: mean KL over the last M minibatches of the update, in nats.
        """
        desired = self.config.desired_kl
        if self.config.objective == "penalty":
            low, high = approx_kl < desired / PENALTY_BAND, approx_kl > desired * PENALTY_BAND
            self.penalty_coef = _adapted(self.penalty_coef, high, low, PENALTY_FACTOR, PENALTY_BOUNDS)
        if self.config.lr_schedule == "kl-adaptive":
            low, high = 0 < approx_kl < desired / RATE_BAND, approx_kl > desired * RATE_BAND
            self.adapted_rate = _adapted(self.adapted_rate, low, high, RATE_FACTOR, RATE_BOUNDS)

    def state(self) -> dict[str, float]:
        """Return what a checkpoint stores of the schedule."""
        return {"adapted_rate": self.adapted_rate, "penalty_coef": self.penalty_coef}

    def load(self, state: dict[str, float]) -> None:
        """Restore what `state` returned."""
        self.adapted_rate, self.penalty_coef = state["adapted_rate"], state["penalty_coef"]


def _adapted(value: float, rises: bool, falls: bool, factor: float, bounds: tuple[float, float]) -> float:
    """Multiply or divide a value by a factor, within the bounds. A value outside of them widens them."""
    adapted = value * factor if rises else value / factor if falls else value
    return min(max(adapted, min(value, bounds[0])), max(value, bounds[1]))
