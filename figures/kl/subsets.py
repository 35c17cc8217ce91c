"""How far is an update on some environments from the update on all of them?

One policy collects one rollout of N environments. An update on the data of n environments gives the policy π^n, and an
update on all data gives π^N. The table has KL(π^N ‖ π^n) for n = 1, 2, 4, …: the mean over all observations of the
rollout. There are four orders of the environments, and subset n is the first n of an order. With fewer environments,
either the minibatches become smaller ("same number") or there are fewer of them ("same size"). The row with n = N is a
control: an update on the same data in other minibatches.
"""

from __future__ import annotations

import copy
import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from shmppo import TrainConfig, resume, train
from shmppo.envs.inspection import inspect_task
from shmppo.envs.spec import EnvSpec
from shmppo.lockstep.learner import Learner
from shmppo.lockstep.pool import Collect
from shmppo.lockstep.share import Share, divide_work
from shmppo.lockstep.worker_pool import WorkerPool
from shmppo.parallel.process_group import SINGLE_PROCESS
from shmppo.parallel.shared_buffers import Rollout, SharedBuffers, allocate, declared_arrays
from shmppo.ppo.gae import compute_advantages
from shmppo.ppo.gradients import ShardGradients
from shmppo.ppo.layout import run_fields
from shmppo.ppo.minibatches import build_minibatches, cut_sequences
from shmppo.runs.train_state import TrainState
from shmppo.storage.checkpoint import load_selected_checkpoint
from shmppo.utils.phase_timer import PhaseTimer

JOB = TrainConfig(
    core="none", encoder_sizes=(64, 64), separate_critic="all", epochs=10, learning_rate=3e-4, value_clip=True,
    num_envs=64, rollout_steps=64, minibatches=32, workers=0, quiet=True, total_steps=1_000_000,
)  # fmt: skip
ORDERS = 4


def new_buffers(config: TrainConfig, task: EnvSpec) -> SharedBuffers:
    """Allocate the shared buffers of a run."""
    fields = run_fields(config, task)
    return SharedBuffers(fields, allocate(fields))


def collect_rollout(config: TrainConfig, task: EnvSpec, run_dir: Path) -> tuple[SharedBuffers, dict[str, Any]]:
    """Collect the rollout that follows the newest checkpoint of a run.

    Returns:
        The buffers with the rollout, and the state of the learner in the checkpoint.
    """
    checkpoint = load_selected_checkpoint(run_dir)
    buffers = new_buffers(config, task)
    state = TrainState(config, task, buffers)
    state.restore(checkpoint)
    learner = Learner(config, task, buffers)
    learner.load(checkpoint["learner"])
    pool = WorkerPool(config, task, buffers, state.actions, state.actions.mark_lost, Path())
    try:
        learner.publish_statistics(state.iteration)
        pool.start(learner.model)
        pool.execute(Collect(state.iteration))
    finally:
        pool.close()
    return buffers, load_selected_checkpoint(run_dir)["learner"]  # the learner may use the tensors of the first one


def update_on(
    config: TrainConfig, task: EnvSpec, source: SharedBuffers, envs: np.ndarray, state: dict[str, Any], iteration: int
) -> tuple[torch.Tensor, float]:
    """Update the policy on the data of some environments.

    Args:
        config: of the run.
        task: of the run.
        source: buffers with a rollout of all environments.
        envs: indices [n] of the environments to use.
        state: of the learner before the update.
        iteration: number of the update.

    Returns:
        The weights [P] after the update, and the number of optimizer steps.
    """
    config = dataclasses.replace(config, num_envs=len(envs))
    buffers = new_buffers(config, task)
    axes = {name: declared["axes"].split() for name, declared in declared_arrays(Rollout).items()}
    for field in buffers.fields:
        if field.group == "rollout" and "N" in axes[field.name.partition("/")[0]]:
            axis = axes[field.name.partition("/")[0]].index("N")
            buffers.arrays[field.path][...] = np.take(source.arrays[field.path], envs, axis)
    learner = Learner(config, task, buffers)
    # A copy, because the optimizer continues to use the tensors of the state that it loads.
    learner.load(copy.deepcopy(state) | {"discounted_return": state["discounted_return"][envs]})
    learner.publish_statistics(iteration)
    rollout, group = buffers.rollout, SINGLE_PROCESS
    advantages = compute_advantages(config, rollout, learner.reward_normalizer, group)
    build_minibatches(
        config, rollout, buffers.minibatches, iteration=iteration, advantages=advantages, process_group=group
    )
    (everything,) = divide_work(config, len(buffers.published.weights), workers=0)
    update_only = everything._replace(columns=range(0), episodes=range(0))
    share = Share(config, task, learner.model, buffers, update_only, PhaseTimer())
    pool: Any = SimpleNamespace(timer=share.timer, execute=lambda *commands: [*map(share.execute, commands)])
    statistics = learner.update(iteration, pool)
    return torch.from_numpy(buffers.published.weights.copy()), statistics["optimizer_steps"]


class Policies:
    """Evaluates policies at all observations of a rollout."""

    def __init__(self, config: TrainConfig, task: EnvSpec, buffers: SharedBuffers, state: dict[str, Any]) -> None:
        self._distribution = task.distribution
        self._weights = torch.from_numpy(buffers.published.weights)
        learner = Learner(config, task, buffers)
        learner.load(state)
        learner.publish_statistics(0)
        self.start = self._weights.clone()
        self._gradients = ShardGradients(config, task.distribution, learner.model, buffers)
        self._sequences = cut_sequences(buffers.rollout.first, config.sequence_steps).astype(np.int64)

    def parameters(self, weights: torch.Tensor) -> torch.Tensor:
        """Return the normalized parameters [steps, P] of the policy with these weights."""
        self._weights.copy_(weights)
        params = self._gradients.outputs(self._sequences)[0].astype(np.float64)
        return torch.from_numpy(self._distribution.normalized(params))

    def kl(self, p: torch.Tensor, q: torch.Tensor) -> float:
        """Return the mean KL(p ‖ q) of two policies, given by their parameters."""
        return float(self._distribution.kl(p.numpy(), q.numpy()).mean())


def measure(config: TrainConfig, run_dir: Path, iteration: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of the table for the policy in the newest checkpoint of a run."""
    task, N = inspect_task(config), config.num_envs
    rollout, state = collect_rollout(config, task, run_dir)
    policies = Policies(config, task, rollout, state)
    start = policies.parameters(policies.start)
    for kind in ("same number", "same size"):
        for first in range(0, N, N // ORDERS):
            order = np.roll(np.arange(N), -first)
            whole = policies.parameters(update_on(config, task, rollout, order, state, iteration)[0])
            for n in (2**k for k in range(N.bit_length())):
                minibatches = config.minibatches if kind == "same number" else max(1, config.minibatches * n // N)
                # The control uses all environments in another order, so that the minibatches differ.
                envs = order[:n] if n < N else np.roll(order, N // 2)
                part = dataclasses.replace(config, minibatches=minibatches)
                weights, steps = update_on(part, task, rollout, envs, state, iteration)
                yield {
                    "env": config.env_id,
                    "seed": config.seed,
                    "iteration": iteration,
                    "minibatches": kind,
                    "first_env": first,
                    "environments": n,
                    "kl_to_all": f"{policies.kl(whole, policies.parameters(weights)):.5g}",
                    "kl_of_update": f"{policies.kl(whole, start):.5g}",
                    "optimizer_steps": int(steps),
                }


def measure_policies(env: str, seed: int, iterations: list[int]) -> Iterator[dict[str, Any]]:
    """Train, and yield the rows of the table for the policies after these numbers of updates."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        run_dir = Path(directory) / "run"
        config = dataclasses.replace(JOB, env=env, seed=seed, run_dir=str(run_dir))
        for i, iteration in enumerate(sorted(iterations)):
            if i == 0:
                train(dataclasses.replace(config, stop_at_iteration=iteration))
            else:
                resume(run_dir, stop_at_iteration=iteration)
            yield from measure(config, run_dir, iteration)
