"""The learner: the only optimizer, and the only writer of weights.

`Learner.update` is one iteration's learning: advantages → plan → K epochs of M minibatches, each
gradients → reduce → optimizer → publish.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from shmppo.config.train_config import TrainConfig
from shmppo.envs.spec import Task
from shmppo.errors import TrainingError
from shmppo.models.actor_critic import (
    build_model,
    model_without_memory,
    move_parameters,
    parameter_offsets,
    weights_sha256,
)
from shmppo.models.normalization import CLIP, RunningMoments, column_moments
from shmppo.parallel.process_group import SINGLE_PROCESS, FlatSum, ProcessGroup
from shmppo.parallel.shared_buffers import SHARD_STATISTICS, Field, SharedBuffers, Sizes, shared_fields
from shmppo.ppo.gae import discounted_returns, explained_variance, generalized_advantages, last_steps
from shmppo.ppo.gradients import ShardGradients
from shmppo.ppo.kl_profile import KLProfile, KLRecorder
from shmppo.ppo.minibatches import build_minibatches
from shmppo.ppo.schedules import Schedule
from shmppo.utils.phase_timer import PhaseTimer

LARGEST_FIRST_LOG_RATIO = {"none": 1e-3, "bf16": 0.5}
"""By --autocast: where acting and learning disagree by more than rounding, it is a fault, not noise."""

ComputeShards = Callable[[int, int, int], None]
"""(version, epoch, minibatch) → every shard's gradient and statistics are in the arena."""


def build_optimizer(config: TrainConfig, parameter: nn.Parameter) -> torch.optim.Optimizer:
    """The optimizer of the one flat parameter."""
    rate, decay, eps = config.learning_rate, config.weight_decay, config.adam_eps
    if config.optimizer == "adam":
        return torch.optim.Adam([parameter], lr=rate, eps=eps, weight_decay=decay, fused=True)
    if config.optimizer == "adamw":
        return torch.optim.AdamW([parameter], lr=rate, eps=eps, weight_decay=decay, fused=True)
    if config.optimizer == "sgd":
        return torch.optim.SGD([parameter], lr=rate, weight_decay=decay)
    return torch.optim.RMSprop([parameter], lr=rate, eps=eps, weight_decay=decay)


def arena_fields(config: TrainConfig, task: Task) -> tuple[Field, ...]:
    """The layout table of a run, which depends on the size of its network."""
    model = model_without_memory(config, task.observation, task.distribution)
    _, parameters = parameter_offsets(model)
    distribution = task.distribution
    sizes = Sizes(
        observation=task.observation,
        action=distribution.action_size,
        params=distribution.num_params,
        state=model.state_size,
        parameters=parameters,
        snapshot=task.snapshot.bytes if task.snapshot is not None else 0,
    )
    return shared_fields(config, sizes)


class Learner:
    """Model, optimizer and normalizers, and the update that moves them."""

    def __init__(
        self, config: TrainConfig, task: Task, arena: SharedBuffers, ranks: ProcessGroup = SINGLE_PROCESS
    ) -> None:
        self.config = config
        self._ranks = ranks
        self.arena = arena
        self.model = build_model(config, task.observation, task.distribution)
        self.version = 0
        self.schedule = Schedule(config)
        self.obs_moments = RunningMoments(task.observation.numbers)
        self.return_moments = RunningMoments(1)
        self.discounted_return = np.zeros(config.num_envs)
        self._taken = np.zeros(0, np.int64)  # steps of each environment of all ranks in the last rollout, [R·N]
        # The shared weights are the model's: a step of the optimizer publishes them, with nothing to copy. Workers are
        # parked whenever it steps.
        move_parameters(self.model, arena.tensor("weights"), keep=True)
        self._flat = nn.Parameter(arena.tensor("weights"))
        self._flat.grad, *self._other_shards = arena.tensor("gradients").unbind(0)
        self._sum_over_ranks = FlatSum(ranks, self._flat.numel(), len(SHARD_STATISTICS))
        self.kl_profile: KLProfile | None = None  # of the last update, if it was recorded
        self._recorder: KLRecorder | None = None
        if config.kl_profile_every is not None:
            gradients = ShardGradients(config, task.distribution, self.model, arena)
            self._recorder = KLRecorder(config, task.distribution, gradients, arena)
        self.optimizer = build_optimizer(config, self._flat)
        # The step itself, without the profiling and graph-capture hooks around it, which take as long as it does.
        self._optimizer_step = inspect.unwrap(type(self.optimizer).step)

    def weights_sha256(self) -> str:
        return weights_sha256(self.model.state_dict().values())

    @property
    def steps_taken(self) -> int:
        """Steps of the last rollout, of all ranks."""
        return int(self._taken.sum())

    def publish(self) -> None:
        """Give the weights in shared memory a new version: what the optimizer has written may be used."""
        self.version += 1
        self.arena.array("version")[0] = self.version

    def publish_statistics(self) -> None:
        """Freeze the observation statistics that COLLECT and LEARN of this iteration use."""
        self.arena.array("obs_mean")[:] = self.obs_moments.mean
        self.arena.array("obs_scale")[:] = 1 / self.obs_moments.std

    def update(self, iteration: int, compute: ComputeShards, timer: PhaseTimer) -> dict[str, float]:
        """Learn from the rollout in the arena.

        Args:
            compute: fills the gradient slab for one minibatch.

        Returns:
            Statistics of the update by name; means over its minibatches unless the glossary says otherwise.

        Raises:
            TrainingError: for a non-finite loss or gradient, or a first |log ratio| above LARGEST_FIRST_LOG_RATIO; that
                minibatch has not touched the weights.
        """
        timer.switch("advantage")
        rate, numbers = self.schedule.learning_rate(iteration), self.schedule.numbers(iteration)
        self.optimizer.param_groups[0]["lr"] = rate
        advantages = self._advantages()
        build_minibatches(
            self.config, self.arena, iteration=iteration, advantages=advantages, numbers=numbers, ranks=self._ranks
        )
        timer.switch("other")
        every = self.config.kl_profile_every
        recorder = self._recorder if every is not None and iteration % every == 0 else None
        if recorder is not None:
            recorder.begin()
        statistics = self._epochs(compute, timer, recorder)
        self.kl_profile = recorder.end(int(statistics["optimizer_steps"])) if recorder is not None else None
        self.schedule.adapt(statistics["approx_kl_last_epoch"])
        statistics |= {"learning_rate": rate, **numbers._asdict()}
        statistics["explained_variance"] = explained_variance(
            self.arena.array("value"), advantages + self.arena.array("value"), self.arena.array("taken"), self._ranks
        )
        self._merge_observations()
        return statistics

    def _advantages(self) -> np.ndarray:
        """Advantages [T, N] of the rollout, of scaled rewards where the configuration says so."""
        config, read = self.config, self.arena.array
        rewards, terminated, truncated = read("reward"), read("terminated"), read("truncated")
        ended, taken = terminated | truncated, read("taken")
        self._taken = self._of_all_ranks(taken)
        if config.clip_reward is not None:
            rewards = np.clip(rewards, -config.clip_reward, config.clip_reward)
        if config.normalize_reward:
            returns = discounted_returns(rewards, ended, self.discounted_return, config.gamma)
            columns = np.arange(config.num_envs)
            self.discounted_return = np.where(ended[taken - 1, columns], 0.0, returns[taken - 1, columns])
            by_env = np.array([column_moments(returns[:t, n : n + 1]) for n, t in enumerate(taken)])
            for count, (mean, m2) in zip(self._taken.tolist(), self._of_all_ranks(by_env), strict=True):
                self.return_moments.merge(count, mean, m2)
            rewards = np.clip(rewards / self.return_moments.std, -CLIP, CLIP)
        return generalized_advantages(
            rewards=rewards,
            values=read("value"),
            bootstraps=read("bootstrap"),
            terminated=ended if config.truncation_is_termination else terminated,
            truncated=truncated | last_steps(taken, len(rewards)),
            gamma=config.gamma,
            gae_lambda=config.gae_lambda,
        )

    def _epochs(self, compute: ComputeShards, timer: PhaseTimer, recorder: KLRecorder | None) -> dict[str, float]:
        """Every minibatch of every epoch, or those up to the target KL."""
        rows: list[np.ndarray] = []
        norms: list[float] = []
        kls: list[float] = []
        stopped = False
        for epoch in range(self.config.epochs):
            for minibatch in range(self.config.minibatches):
                timer.switch("gradient")
                compute(self.version, epoch, minibatch)
                timer.switch("reduce")
                total = self._reduce()
                self._check(total, epoch, minibatch)
                kls.append(total["approx_kl"])
                if self.config.target_kl is not None and total["approx_kl"] > self.config.target_kl:
                    stopped = True
                    break
                timer.switch("optimizer")
                norms.append(self._step(epoch, minibatch))
                rows.append(np.array(list(total.values())))
                timer.switch("publish")
                self.publish()
                if recorder is not None:
                    timer.switch("other")
                    recorder.record(len(rows))
            if stopped:
                break
        timer.switch("other")
        means = np.mean(rows, axis=0) if rows else np.full(len(SHARD_STATISTICS), np.nan)
        named = dict(zip(SHARD_STATISTICS, means.tolist(), strict=True))
        return {
            "policy_loss": named["policy_loss"],
            "value_loss": named["value_loss"],
            "entropy": named["entropy"],
            "approx_kl": named["approx_kl"],
            "approx_kl_last_epoch": float(np.mean(kls[-self.config.minibatches :])),
            "clip_fraction": named["clipped"],
            "gradient_norm": float(np.mean(norms)) if norms else float("nan"),
            "first_log_ratio": float(rows[0][SHARD_STATISTICS.index("max_abs_log_ratio")]) if rows else 0.0,
            "optimizer_steps": float(len(rows)),
        }

    def _reduce(self) -> dict[str, float]:
        """Add the shards in shard order, then the ranks: gradients into the first shard, statistics into the result."""
        gradient = self._flat.grad
        assert gradient is not None
        for shard in self._other_shards:
            gradient.add_(shard)
        by_shard = self.arena.array("shard_statistics")
        largest = float(by_shard[:, SHARD_STATISTICS.index("max_abs_log_ratio")].max())
        sums, largest = self._sum_over_ranks(gradient, by_shard.sum(axis=0), largest)
        return dict(zip(SHARD_STATISTICS, sums.tolist(), strict=True)) | {"max_abs_log_ratio": largest}

    def _check(self, total: dict[str, float], epoch: int, minibatch: int) -> None:
        """Raises TrainingError for losses that are not finite, and for a first ratio that is not 1."""
        if not np.isfinite([total["policy_loss"], total["value_loss"]]).all():
            raise TrainingError(
                epoch,
                minibatch,
                f"the loss is not finite (policy {total['policy_loss']}, value {total['value_loss']}): check the "
                "environment's observations and rewards, or lower --learning-rate",
            )
        ratio, limit = total["max_abs_log_ratio"], LARGEST_FIRST_LOG_RATIO[self.config.autocast]
        if epoch == minibatch == 0 and not ratio <= limit:
            raise TrainingError(
                epoch,
                minibatch,
                f"before the first gradient step of an update |log ratio| is {ratio:.2e} but must be below "
                f"{limit:.0e}: acting and learning disagree; lower --learning-rate if the policy has "
                "diverged, else please report it",
            )

    def _step(self, epoch: int, minibatch: int) -> float:
        """Clip the gradient's norm and step; returns the norm before clipping."""
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
        with torch.no_grad():
            self._optimizer_step(self.optimizer)
        if self.config.log_std_min is not None and self.model.log_std is not None:
            # The parameter itself, not the network's use of it: its gradient can bring it up again.
            self.model.log_std.data.clamp_(min=self.config.log_std_min)
        return norm

    def _merge_observations(self) -> None:
        """Let this rollout's observations into the statistics that the next one is normalized with."""
        if self.config.normalize_obs:
            by_env = self._of_all_ranks(self.arena.array("obs_moments"))
            for count, (mean, m2) in zip(self._taken.tolist(), by_env, strict=True):
                self.obs_moments.merge(count, mean, m2)

    def _of_all_ranks(self, by_env: np.ndarray) -> np.ndarray:
        """Numbers of every environment of every rank, [R·N, …], from those of this rank's, [N, …], in global order."""
        return np.concatenate(list(self._ranks.gather(by_env)))

    def state(self) -> dict[str, Any]:
        """Everything of the learner that the next update depends on."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "version": self.version,
            "schedule": self.schedule.state(),
            "obs_moments": _tensors(self.obs_moments.state()),
            "return_moments": _tensors(self.return_moments.state()),
            "discounted_return": torch.from_numpy(self.discounted_return.copy()),
        }

    def load(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        configured = build_optimizer(self.config, self._flat).param_groups[0]  # what is gone on with, not begun with
        for name in {"eps", "weight_decay"} & configured.keys():
            self.optimizer.param_groups[0][name] = configured[name]
        self.version = state["version"]
        self.schedule.load(state["schedule"])
        for moments, name in ((self.obs_moments, "obs_moments"), (self.return_moments, "return_moments")):
            moments.load({key: tensor.numpy() for key, tensor in state[name].items()})
        self.discounted_return = state["discounted_return"].numpy().copy()


def _tensors(state: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in state.items()}
