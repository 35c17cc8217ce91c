"""The learner: it has the only optimizer, and it is the only process that writes the weights.

`Learner.update` is one update: K epochs of M minibatches. For each minibatch, it gets the gradients of the shards, adds
them, and steps the optimizer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from shmppo.config.train_config import TrainConfig
from shmppo.envs.spec import Task
from shmppo.errors import TrainingError
from shmppo.models.actor_critic import build_model, move_parameters, weights_sha256
from shmppo.parallel.process_group import SINGLE_PROCESS, GradientAllReduce, ProcessGroup
from shmppo.parallel.shared_buffers import LossTerms, Minibatches, Rollout, SharedBuffers
from shmppo.ppo.gae import RewardNormalizer, generalized_advantages, last_steps, merge_moments
from shmppo.ppo.gradients import ShardGradients
from shmppo.ppo.kl_profile import KLProfile, KLRecorder
from shmppo.ppo.schedules import Schedule
from shmppo.spaces.normalization import RunningMoments
from shmppo.utils.phase_timer import PhaseTimer
from shmppo.utils.torch_utils import bare_optimizer_step, without_dynamo

MAX_FIRST_LOG_RATIO = {"none": 1e-3, "bf16": 0.5}
"""Limit of the largest |log ratio| in the first minibatch of an update, by --autocast. A larger value is no rounding
error: acting and learning disagree."""


class GradientSource(Protocol):
    """Interface to compute the gradients of minibatches, with or without workers."""

    def compute(self, version: int, epoch: int, minibatch: int, timer: PhaseTimer) -> float:
        """Write the results of all shards of a minibatch to `ShardResults`.

        Args:
            version: version of the weights.
            epoch: index of the epoch.
            minibatch: index of the minibatch in the epoch.
            timer: of the learner.

        Returns:
            Signaling seconds (see `WorkerPool`).
        """

    def refresh_states(self, version: int, timer: PhaseTimer) -> float:
        """Recompute the stored recurrent states. Return the root mean square of their change."""


@dataclass(frozen=True)
class MinibatchStatistics:
    """Statistics of one minibatch, over all shards and ranks, before its optimizer step."""

    terms: LossTerms
    max_log_ratio: float
    """Largest |log ratio| of a step."""


@dataclass(frozen=True)
class UpdateStatistics:
    """Statistics of one update. The fields are columns of metrics.csv; `loggers.metrics.GLOSSARY` explains them."""

    policy_loss: float
    value_loss: float
    entropy: float
    approx_kl: float
    approx_kl_last_epoch: float
    clip_fraction: float
    gradient_norm: float
    first_log_ratio: float
    optimizer_steps: float
    state_drift: float
    learning_rate: float
    sync_seconds: float
    """Signaling seconds of the gradient commands. metrics.csv adds those of the rollout."""


@without_dynamo()
def build_optimizer(config: TrainConfig, parameter: nn.Parameter) -> torch.optim.Optimizer:
    """Create the configured optimizer for one flat parameter [P]."""
    rate, decay, eps = config.learning_rate, config.weight_decay, config.adam_eps
    if config.optimizer == "adam":
        return torch.optim.Adam([parameter], lr=rate, eps=eps, weight_decay=decay, fused=True)
    if config.optimizer == "adamw":
        return torch.optim.AdamW([parameter], lr=rate, eps=eps, weight_decay=decay, fused=True)
    if config.optimizer == "sgd":
        return torch.optim.SGD([parameter], lr=rate, weight_decay=decay)
    return torch.optim.RMSprop([parameter], lr=rate, eps=eps, weight_decay=decay)


class Learner:
    """Model, optimizer, normalizers, and the update that changes them.

    Attributes:
        version: version number of the published weights.
        kl_profile: profile of the last update; None if it was not recorded (--kl-profile-every).
    """

    def __init__(
        self, config: TrainConfig, task: Task, buffers: SharedBuffers, process_group: ProcessGroup = SINGLE_PROCESS
    ) -> None:
        """Create the model with its initial weights, and move the weights to shared memory.

        Args:
            config: of the run.
            task: description of the environment.
            buffers: the shared buffers.
            process_group: the ranks.
        """
        self.config = config
        self._process_group = process_group
        self._buffers = buffers
        self.model = build_model(config, task.observation, task.distribution)
        self.version = 0
        self.schedule = Schedule(config)
        self.obs_moments = RunningMoments(task.observation.normalized_size)
        self.reward_normalizer = RewardNormalizer(config.num_envs, config.gamma)
        # The model's parameters are views of the shared weights, so an optimizer step needs no copy to publish them.
        # Workers do not read the weights at that time.
        weights = torch.from_numpy(buffers.published.weights)
        move_parameters(self.model, weights, keep=True)
        self._flat = nn.Parameter(weights)
        self._flat.grad, *self._other_shards = torch.from_numpy(buffers.shard_results.gradients).unbind(0)
        self._all_reduce = GradientAllReduce(process_group, self._flat.numel(), len(LossTerms._fields))
        self.kl_profile: KLProfile | None = None
        self._recorder: KLRecorder | None = None
        if config.kl_profile_every is not None:
            gradients = ShardGradients(config, task.distribution, self.model, buffers)
            self._recorder = KLRecorder(config, task.distribution, gradients)
        self.optimizer = build_optimizer(config, self._flat)
        self._optimizer_step = bare_optimizer_step(self.optimizer)

    def weights_sha256(self) -> str:
        """Return the SHA-256 of the current weights."""
        return weights_sha256(self.model.state_dict().values())

    def publish(self) -> None:
        """Publish the weights in shared memory: give them a new version number."""
        self.version += 1
        self._buffers.published.version[0] = self.version

    def publish_statistics(self) -> None:
        """Publish the observation statistics that acting and learning use in this iteration."""
        self._buffers.published.obs_mean[:] = self.obs_moments.mean
        self._buffers.published.obs_scale[:] = 1 / self.obs_moments.std

    def advantages(self, rollout: Rollout) -> np.ndarray:
        """Clip and scale the rewards of a rollout as configured, and compute its advantages.

        This also updates the statistics that scale rewards.

        Returns:
            float32 [T, N].
        """
        config = self.config
        rewards, terminated, truncated = rollout.reward, rollout.terminated, rollout.truncated
        ended, valid_steps = terminated | truncated, rollout.valid_steps
        if config.clip_reward is not None:
            rewards = np.clip(rewards, -config.clip_reward, config.clip_reward)
        if config.normalize_reward:
            rewards = self.reward_normalizer.normalize(rewards, ended, valid_steps, self._process_group)
        if config.truncation_is_termination:
            terminated = ended & (rollout.ended_length > 0)  # an episode that failed (length 0) has no last state
        return generalized_advantages(
            rewards=rewards,
            values=rollout.value,
            bootstraps=rollout.bootstrap,
            terminated=terminated,
            truncated=truncated | last_steps(valid_steps, len(rewards)),
            gamma=config.gamma,
            gae_lambda=config.gae_lambda,
        )

    def update_obs_normalizer(self, rollout: Rollout) -> None:
        """Add the observations of a rollout to the statistics that normalize the next one."""
        if self.config.normalize_obs:
            merge_moments(self.obs_moments, rollout.obs_moments, rollout.valid_steps, self._process_group)

    def update(
        self, iteration: int, minibatches: Minibatches, gradients: GradientSource, timer: PhaseTimer
    ) -> UpdateStatistics:
        """Update the weights with the minibatches of an iteration.

        Args:
            iteration: of the rollout.
            minibatches: of the rollout, in shared memory.
            gradients: computes the gradients of the minibatches.
            timer: of the learner.

        Raises:
            TrainingError: if a loss or gradient is not finite, or if the |log ratio| in the first minibatch exceeds
                MAX_FIRST_LOG_RATIO. The invalid minibatch has not changed the weights.
        """
        rate = self.schedule.learning_rate(iteration)
        self.optimizer.param_groups[0]["lr"] = rate
        every = self.config.kl_profile_every
        recorder = self._recorder if every is not None and iteration % every == 0 else None
        if recorder is not None:
            recorder.begin(minibatches)
        statistics = self._run_epochs(gradients, timer, recorder, rate)
        self.kl_profile = recorder.end(int(statistics.optimizer_steps)) if recorder is not None else None
        self.schedule.adapt(statistics.approx_kl_last_epoch)
        return statistics

    def _run_epochs(
        self, gradients: GradientSource, timer: PhaseTimer, recorder: KLRecorder | None, rate: float
    ) -> UpdateStatistics:
        """Process all minibatches of all epochs, or those before a minibatch exceeds the target KL."""
        steps: list[MinibatchStatistics] = []
        norms: list[float] = []
        kls: list[float] = []
        drifts: list[float] = []
        sync_seconds = first_log_ratio = 0.0
        for epoch, minibatch in np.ndindex(self.config.epochs, self.config.minibatches):
            if self.config.refresh_states and epoch and not minibatch:
                drifts.append(gradients.refresh_states(self.version, timer))
            timer.switch("gradient")
            sync_seconds += gradients.compute(self.version, epoch, minibatch, timer)
            timer.switch("reduce")
            statistics = self._reduce()
            self._check(statistics, epoch, minibatch)
            first_log_ratio = statistics.max_log_ratio if not kls else first_log_ratio
            kls.append(statistics.terms.approx_kl)
            if self.config.target_kl is not None and kls[-1] > self.config.target_kl:
                break
            timer.switch("optimizer")
            norms.append(self._step(epoch, minibatch))
            steps.append(statistics)
            timer.switch("publish")
            self.publish()
            if recorder is not None:
                timer.switch("other")
                recorder.record(len(steps))
        timer.switch("other")
        means = np.mean([s.terms for s in steps], axis=0) if steps else np.full(len(LossTerms._fields), np.nan)
        return UpdateStatistics(
            **LossTerms(*means.tolist())._asdict(),
            approx_kl_last_epoch=float(np.mean(kls[-self.config.minibatches :])),
            gradient_norm=float(np.mean(norms)) if norms else float("nan"),
            first_log_ratio=first_log_ratio,
            optimizer_steps=float(len(steps)),
            state_drift=sum(drifts) / max(len(drifts), 1),
            learning_rate=rate,
            sync_seconds=sync_seconds,
        )

    def _reduce(self) -> MinibatchStatistics:
        """Add the results of the shards in order, then those of the ranks. The first shard's gradient gets the sum."""
        gradient = self._flat.grad
        assert gradient is not None
        for shard in self._other_shards:
            gradient.add_(shard)
        terms = self._buffers.shard_results.loss_terms.sum(axis=0)
        largest = float(self._buffers.shard_results.max_log_ratio.max())
        terms, largest = self._all_reduce(gradient, terms, largest)
        return MinibatchStatistics(LossTerms(*terms.tolist()), largest)

    def _check(self, statistics: MinibatchStatistics, epoch: int, minibatch: int) -> None:
        """Raise TrainingError if a loss is not finite, or if the ratio of a step in the first minibatch is not 1."""
        terms = statistics.terms
        if not np.isfinite([terms.policy_loss, terms.value_loss]).all():
            raise TrainingError(
                epoch,
                minibatch,
                f"the loss is not finite (policy {terms.policy_loss}, value {terms.value_loss}): check the "
                "environment's observations and rewards, or lower --learning-rate",
            )
        ratio, limit = statistics.max_log_ratio, MAX_FIRST_LOG_RATIO[self.config.autocast]
        if epoch == minibatch == 0 and not ratio <= limit:
            raise TrainingError(
                epoch,
                minibatch,
                f"|log ratio| is {ratio:.2e} but must be below {limit:.0e} before the first optimizer step: acting and "
                "learning disagree; lower --learning-rate if the policy has diverged, otherwise report this error",
            )

    def _step(self, epoch: int, minibatch: int) -> float:
        """Clip the gradient and step the optimizer. Return the L2 norm of the gradient before clipping.

        Raises:
            TrainingError: if the gradient is not finite.
        """
        gradient = self._flat.grad
        assert gradient is not None
        norm = float(torch.linalg.vector_norm(gradient))
        if not np.isfinite(norm):
            raise TrainingError(
                epoch,
                minibatch,
                "the gradient is not finite: check the environment's observations and rewards, or lower "
                "--learning-rate",
            )
        if norm > self.config.max_grad_norm:
            gradient.mul_(self.config.max_grad_norm / norm)
        self._optimizer_step()
        if self.config.log_std_min is not None and self.model.log_std is not None:
            # Clamp the parameter itself. If the network clamped it, its gradient below the minimum would be 0.
            self.model.log_std.data.clamp_(min=self.config.log_std_min)
        return norm

    @without_dynamo()
    def state(self) -> dict[str, Any]:
        """Return what a checkpoint stores of the learner: everything that the next update depends on."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "version": self.version,
            "schedule": self.schedule.state(),
            "obs_moments": _tensors(self.obs_moments.state()),
            "return_moments": _tensors(self.reward_normalizer.moments.state()),
            "discounted_return": torch.from_numpy(self.reward_normalizer.discounted_return.copy()),
        }

    @without_dynamo()
    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self.load_weights(state)
        self.optimizer.load_state_dict(state["optimizer"])
        self.version = state["version"]
        self.schedule.load(state["schedule"])
        self.reward_normalizer.discounted_return = state["discounted_return"].numpy().copy()

    def load_weights(self, state: dict[str, Any]) -> None:
        """Load only the weights and normalizers of what `state` returned, also from another run (--init-from)."""
        self.model.load_state_dict(state["model"])
        for moments, name in (
            (self.obs_moments, "obs_moments"),
            (self.reward_normalizer.moments, "return_moments"),
        ):
            moments.load({key: tensor.numpy() for key, tensor in state[name].items()})


def _tensors(state: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Convert arrays to tensors, because checkpoints contain only tensors, numbers, and text."""
    return {name: torch.from_numpy(array) for name, array in state.items()}
