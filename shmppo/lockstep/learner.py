"""The learner: it controls the updates.

`Learner.update` is one update: K epochs of M minibatches. For each minibatch, the pool computes the gradients of the
shards, adds them, and steps the optimizer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from shmppo.config.train_config import TrainConfig
from shmppo.envs.spec import EnvSpec
from shmppo.errors import TrainingError
from shmppo.kernels.functions import exp
from shmppo.kernels.functions import norm as l2_norm
from shmppo.lockstep.feature import Feature
from shmppo.lockstep.pool import Command, ComputeGradients, ReduceGradients, StepOptimizer, Update
from shmppo.lockstep.worker_pool import WorkerPool
from shmppo.models.actor_critic import build_model, move_parameters, network_weights, weights_sha256
from shmppo.parallel.process_group import SINGLE_PROCESS, GradientAllReduce, ProcessGroup
from shmppo.parallel.shared_buffers import Rollout, SharedBuffers
from shmppo.ppo.device_update import padded_share
from shmppo.ppo.gae import RewardNormalizer, merge_over_ranks
from shmppo.ppo.loss import Loss
from shmppo.ppo.optimizer import load_optimizer_state, optimizer_state
from shmppo.ppo.schedule import Schedule
from shmppo.spaces.normalization import RunningMoments

MAX_FIRST_LOG_RATIO = {"none": 1e-3, "bf16": 0.5}
"""Limit of the largest |log ratio| in the first minibatch of an update, by --autocast. A larger value is no rounding
error: acting and learning disagree."""
NOT_FINITE_ADVICE = "check the environment's observations and rewards, or lower --learning-rate"


class Learner:
    """Model, schedule, normalizers, and the update that changes them.

    Attributes:
        features: the optional features of the run, which the session sets.
    """

    def __init__(
        self, config: TrainConfig, task: EnvSpec, buffers: SharedBuffers, process_group: ProcessGroup = SINGLE_PROCESS
    ) -> None:
        """Create the model with its initial weights, and move the weights to shared memory."""
        self.config = config
        self._process_group = process_group
        self._buffers = buffers
        self.model = build_model(config, task.observation, task.distribution)
        self.schedule, self._loss = Schedule(config), Loss(config, task.distribution)
        self.obs_moments = RunningMoments(task.observation.normalized_size)
        self.reward_normalizer = RewardNormalizer(config.rows, config.gamma)
        # The model's parameters are views of the shared weights, so an optimizer step needs no copy to publish them.
        # No process reads another's part at that time.
        weights = torch.from_numpy(buffers.published.weights)
        move_parameters(self.model, weights, keep=True)
        self._gradient = torch.from_numpy(buffers.shard_results.total)
        self._all_reduce = GradientAllReduce(process_group, weights.numel(), len(self._loss.metrics))
        self.features: Sequence[Feature] = ()

    def weights_sha256(self) -> str:
        """Return the SHA-256 of the current weights."""
        return weights_sha256(self.model.state_dict().values())

    def publish_statistics(self, iteration: int) -> None:
        """Copy the statistics that normalize observations to shared memory. The model's parameters are there.

        iteration: number of finished iterations.
        """
        self._buffers.published.obs_mean[:] = self.obs_moments.mean
        self._buffers.published.obs_scale[:] = 1 / self.obs_moments.std

    def set_rates(self, iteration: int) -> None:
        """Publish the learning rate and the coefficients of the loss in an iteration."""
        self._buffers.optimizer.learning_rate[0] = self.schedule.learning_rate(iteration)
        self._buffers.minibatches.coefficients[:] = self._loss.coefficients(self.schedule, iteration)

    def update(self, iteration: int, pool: WorkerPool) -> dict[str, float]:
        """Update the weights with all minibatches of all epochs, or those before one exceeds the target KL.

        In the default job with two workers, the learner and worker 1 each compute half of the shards
        (`ShardGradients.compute`), and the learner alone adds and steps (`ppo.optimizer.Optimizer`).

        pool: computes the gradients of the minibatches in shared memory, and steps the optimizer. Its timer measures
            the phases.

        Returns:
            Columns of metrics.csv, which `loggers.metrics.GLOSSARY` explains. Those of the terms are means over the
            minibatches.

        Raises:
            TrainingError: if a loss or gradient is not finite, or if the |log ratio| in the first minibatch exceeds
                MAX_FIRST_LOG_RATIO. The invalid minibatch has not changed the weights.
        """
        config, timer = self.config, pool.timer
        self.set_rates(iteration)
        if self.schedule.actor_training_starts(iteration):
            self._buffers.optimizer.steps[0] = 0  # otherwise the first steps of the actor would be too large
        for feature in self.features:
            feature.begin_update(iteration)
        steps: list[dict[str, float]] = []
        norms: list[float] = []
        kls: list[float] = []
        first_log_ratio = 0.0
        ahead = self._minibatches_ahead()
        # Processes step the optimizer and begin the next minibatch without waiting for the learner in between.
        at_once = self.config.log_std_min is None and not any(feature.watches_steps for feature in self.features)
        due: list[Command] = []
        for k, (epoch, minibatch) in enumerate(np.ndindex(config.epochs, config.minibatches)):
            if ahead:
                if k % ahead == 0:
                    pool.execute(Update(k, k + ahead, self._first_limit(iteration)))
                terms, largest_log_ratio, norm = self._device_results(k % ahead)
            else:
                pool.execute(*due, ComputeGradients(epoch, minibatch), ReduceGradients())
                due.clear()
                timer.switch("reduce")
                terms, largest_log_ratio = self._reduce_results()
                norm = l2_norm(self._buffers.shard_results.total)
            self._check(terms, largest_log_ratio, iteration, epoch, minibatch)
            first_log_ratio = first_log_ratio if kls else largest_log_ratio
            kls.append(terms["approx_kl"])
            if config.target_kl is not None and terms["approx_kl"] > config.target_kl:
                break
            timer.switch("optimizer")
            norms.append(norm)
            self._set_gradient_factor(norm, epoch, minibatch)
            if not ahead:
                due.append(StepOptimizer())
            if due and not at_once:
                pool.execute(due.pop())
                self._limit_log_std()
            steps.append(terms)
            for feature in self.features:
                feature.after_optimizer_step(len(steps))
        if due:
            pool.execute(*due)
        timer.switch("other")
        for feature in self.features:
            feature.end_update(iteration, len(steps))
        log_std = self.model.log_std
        last_kl = float(np.mean(kls[-config.minibatches :]))
        if self.schedule.trains_actor(iteration):
            self.schedule.adapt(last_kl)
        unknown = np.full(len(self._loss.metrics), np.nan)
        means = np.mean([[*terms.values()] for terms in steps], axis=0) if steps else unknown
        return {
            **_named(self._loss.metrics, means),
            **_named(self._loss.coefficient_metrics, self._buffers.minibatches.coefficients),
            **({} if config.device == "cpu" else {"padded_share": padded_share(config, self._buffers)}),
            **({} if log_std is None else {"action_std": float(exp(log_std.detach().numpy()).mean(dtype=np.float64))}),
            "approx_kl_last_epoch": last_kl,
            "gradient_norm": float(np.mean(norms)) if norms else float("nan"),
            "first_log_ratio": first_log_ratio,
            "optimizer_steps": float(len(steps)),
            "learning_rate": float(self._buffers.optimizer.learning_rate[0]),
        }

    def update_obs_normalizer(self, rollout: Rollout) -> None:
        """Add the observations of a rollout to the statistics that normalize the next one."""
        if self.config.normalize_obs:
            merge_over_ranks(self.obs_moments, rollout.obs_moments, rollout.valid_steps, self._process_group)

    def _reduce_results(self) -> tuple[dict[str, float], float]:
        """All-reduce the gradient and the results of a minibatch.

        Returns:
            (values of the terms by metric, largest |log ratio|) of the minibatch, over all shards and ranks.
        """
        terms = self._buffers.shard_results.loss_terms.sum(axis=0)
        largest = float(self._buffers.shard_results.max_log_ratio.max())
        terms, largest = self._all_reduce(self._gradient, terms, largest)
        return _named(self._loss.metrics, terms), largest

    def _minibatches_ahead(self) -> int:
        """Return how many minibatches a device carries out before the learner looks at them. 0: none does."""
        if self.config.device == "cpu" or self.config.ranks > 1:
            return 0
        return 1 if any(feature.watches_steps for feature in self.features) else self.config.minibatches

    def _device_results(self, row: int) -> tuple[dict[str, float], float, float]:
        """Return what `_reduce_results` does, and the norm of the gradient, of a minibatch on a device."""
        results = self._buffers.shard_results.minibatches[row]
        return _named(self._loss.metrics, results[:-2]), float(results[-2]), float(results[-1])

    def _first_limit(self, iteration: int) -> float:
        """Return the limit of |log ratio| in the first minibatch of an update.

        Steps that were held back have been sampled by the policy before, so their ratio is not 1.
        """
        held = self._buffers.carries[iteration % 2].held[:, :1].any()
        return math.inf if held else MAX_FIRST_LOG_RATIO[self.config.autocast]

    def _check(
        self, terms: dict[str, float], largest_log_ratio: float, iteration: int, epoch: int, minibatch: int
    ) -> None:
        """Raise TrainingError if a loss is not finite, or if the ratio of a step in the first minibatch is not 1."""
        policy, value = terms["policy_loss"], terms["value_loss"]
        if not (math.isfinite(policy) and math.isfinite(value)):
            losses = f"policy {policy}, value {value}"
            raise _invalid(epoch, minibatch, f"the loss is not finite ({losses}): {NOT_FINITE_ADVICE}")
        if epoch == minibatch == 0 and not largest_log_ratio <= (limit := self._first_limit(iteration)):
            raise _invalid(
                epoch,
                minibatch,
                f"|log ratio| is {largest_log_ratio:.2e} but must be below {limit:.0e} before the first optimizer "
                "step: acting and learning disagree; lower --learning-rate if the policy has diverged, and compute "
                "each row independently of the others if you use --network; otherwise report this error",
            )

    def _set_gradient_factor(self, norm: float, epoch: int, minibatch: int) -> None:
        """Set the factor of the gradient, and count the step.

        norm: L2 norm of the gradient before clipping. Raises TrainingError if it is not finite.
        """
        if not math.isfinite(norm):
            raise _invalid(epoch, minibatch, f"the gradient is not finite: {NOT_FINITE_ADVICE}")
        limit = self.config.max_grad_norm
        self._buffers.optimizer.gradient_factor[0] = limit / norm if norm > limit else 1.0
        self._buffers.optimizer.steps[0] += 1

    def _limit_log_std(self) -> None:
        """Let no deviation of the actions be below --log-std-min after an optimizer step."""
        if self.config.log_std_min is not None and self.model.log_std is not None:
            # Clamp the parameter itself. If the network clamped it, its gradient below the minimum would be 0.
            self.model.log_std.data.clamp_(min=self.config.log_std_min)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint stores of the learner: everything that the next update depends on."""
        return {
            "model": self.model.state_dict(),
            "optimizer": optimizer_state(self._buffers),
            "schedule": self.schedule.state(),
            "obs_moments": _tensors(self.obs_moments.state()),
            "return_moments": _tensors(self.reward_normalizer.moments.state()),
            "discounted_return": torch.from_numpy(self.reward_normalizer.discounted_return.copy()),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self.model.load_state_dict(state["model"])
        self._load_normalizers(state)
        load_optimizer_state(self._buffers, state["optimizer"])
        self.schedule.load(state["schedule"])
        self.reward_normalizer.discounted_return = state["discounted_return"].numpy().copy()

    def load_weights(self, state: dict[str, Any]) -> None:
        """Load the network's weights and the normalizers of what `state` returned in another run (--init-from)."""
        self.model.load_state_dict(network_weights(state["model"]), strict=False)
        self._limit_log_std()
        self._load_normalizers(state)

    def _load_normalizers(self, state: dict[str, Any]) -> None:
        for moments, name in ((self.obs_moments, "obs_moments"), (self.reward_normalizer.moments, "return_moments")):
            moments.load({key: tensor.numpy() for key, tensor in state[name].items()})


def _named(metrics: Sequence[str], values: np.ndarray) -> dict[str, float]:
    return dict(zip(metrics, values.tolist(), strict=True))


def _invalid(epoch: int, minibatch: int, problem: str) -> TrainingError:
    where = f"minibatch {minibatch} of epoch {epoch}"
    return TrainingError(f"{where}: {problem}; this minibatch has not changed the weights")


def _tensors(state: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Convert arrays to tensors, because checkpoints contain only tensors, numbers, and text."""
    return {name: torch.from_numpy(array) for name, array in state.items()}
