"""How fast an update settles with more environments: figures/data/assumption4.csv.

    python figures/measure_assumption4.py --seeds 1 2

From one policy and one rollout of N environments, an update on the columns of n of them gives π^n, on all of them π^N;
the table has KL(π^N ‖ π^n), mean over all states of the rollout, against n. The subsets are nested, in four orders that
begin at different environments. Either the number of minibatches stays (they get smaller) or their size (there are
fewer). The last row of each, n = N, is another shuffling of the same data: what the order of minibatches alone does.
"""

from __future__ import annotations

import argparse
import copy
import csv
import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from provenance import DATA, record

from shmppo.config.train_config import TrainConfig
from shmppo.envs.factory import inspect_task
from shmppo.envs.spec import Task
from shmppo.loggers.trackers import LoggerList
from shmppo.parallel.process_group import SINGLE_PROCESS
from shmppo.parallel.shared_buffers import SharedBuffers, allocate
from shmppo.ppo.gradients import ShardGradients
from shmppo.ppo.learner import Learner, arena_fields
from shmppo.ppo.minibatches import cut_sequences
from shmppo.runs.checkpoint import load_newest_checkpoint
from shmppo.runs.session import Session
from shmppo.runs.trainer import resume, train
from shmppo.utils.phase_timer import PhaseTimer

COLUMNS = (
    "env", "seed", "iteration", "minibatches", "first_env", "environments", "kl_to_all", "kl_of_update",
    "optimizer_steps",
)  # fmt: skip
JOB = TrainConfig(
    core="none", encoder_sizes=(64, 64), separate_critic=True, epochs=10, learning_rate=3e-4, value_clip=True,
    num_envs=64, rollout_steps=64, minibatches=32, workers=0, quiet=True, total_steps=1_000_000,
)  # fmt: skip
STARTS = 4


def new_arena(config: TrainConfig, task: Task) -> SharedBuffers:
    fields = arena_fields(config, task)
    return SharedBuffers(fields, allocate(fields))


def collected(config: TrainConfig, task: Task, run_dir: Path) -> tuple[SharedBuffers, dict[str, Any]]:
    """The next rollout after the run's checkpoint, and the checkpoint's learner."""
    checkpoint = load_newest_checkpoint(run_dir)
    arena = new_arena(config, task)
    with Session(config, task, arena, run_dir, checkpoint, LoggerList(None, []), SINGLE_PROCESS) as session:
        session.learner.publish_statistics()
        session.learner.publish()
        session.pool.collect(session.learner.version, session.iteration, session.timer)
    return arena, load_newest_checkpoint(run_dir)["learner"]


def updated(
    config: TrainConfig, task: Task, source: SharedBuffers, columns: np.ndarray, state: dict[str, Any], iteration: int
) -> tuple[torch.Tensor, float]:
    """Weights [P] after an update on some columns of a rollout, and the optimizer steps that it took."""
    config = dataclasses.replace(config, num_envs=len(columns))
    arena = new_arena(config, task)
    for field in arena.fields:
        if field.writer == "worker, own columns" and field.phase == "COLLECT" and field.bytes:
            axis = 0 if field.name in ("obs_moments", "taken") else 1
            arena.tensor(field.name).copy_(source.tensor(field.name).index_select(axis, torch.from_numpy(columns)))
    learner = Learner(config, task, arena)
    # A copy: the optimizer would go on in the very tensors that it is given.
    learner.load(copy.deepcopy(state) | {"discounted_return": state["discounted_return"][columns]})
    learner.publish_statistics()
    learner.publish()
    gradients = ShardGradients(config, task.distribution, learner.model, arena)

    def compute(version: int, epoch: int, minibatch: int) -> None:
        gradients.compute(epoch, minibatch, range(config.shards))

    steps = learner.update(iteration, compute, PhaseTimer())["optimizer_steps"]
    return arena.tensor("weights").clone(), steps


def measure(config: TrainConfig, run_dir: Path, iteration: int) -> Iterator[dict[str, Any]]:
    """Rows of the table for the policy that the run's checkpoint holds."""
    task, N = inspect_task(config), config.num_envs
    arena, state = collected(config, task, run_dir)
    learner = Learner(config, task, arena)
    gradients = ShardGradients(config, task.distribution, learner.model, arena)
    rows = cut_sequences(arena.array("first"), config.sequence_steps).astype(np.int64)

    def policy(weights: torch.Tensor) -> torch.Tensor:
        arena.tensor("weights").copy_(weights)
        params, real = gradients.policy(rows)
        return params[real].double()

    def kl(p: torch.Tensor, q: torch.Tensor) -> float:
        return float(task.distribution.kl(p, q).mean())

    learner.load(state)
    learner.publish_statistics()
    start = policy(arena.tensor("weights").clone())
    for kind in ("same number", "same size"):
        for first in range(0, N, N // STARTS):
            order = np.roll(np.arange(N), -first)
            whole = policy(updated(config, task, arena, order, state, iteration)[0])
            for n in (2**k for k in range(N.bit_length())):
                minibatches = config.minibatches if kind == "same number" else max(1, config.minibatches * n // N)
                # All columns in another order: the same data in other minibatches.
                columns = order[:n] if n < N else np.roll(order, N // 2)
                part = dataclasses.replace(config, minibatches=minibatches)
                weights, steps = updated(part, task, arena, columns, state, iteration)
                numbers = (kl(whole, policy(weights)), kl(whole, start))
                keys = (config.env_id, config.seed, iteration, kind, first, n)
                values = (*keys, *(f"{number:.5g}" for number in numbers), int(steps))
                yield dict(zip(COLUMNS, values, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--iterations", nargs="+", type=int, default=[5, 40], help="ages of the policies, in updates")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with open(DATA / "assumption4.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for seed in options.seeds:
            with tempfile.TemporaryDirectory() as directory:
                run_dir = Path(directory) / "run"
                config = dataclasses.replace(JOB, env=options.env, seed=seed, run_dir=str(run_dir))
                for i, iteration in enumerate(sorted(options.iterations)):
                    if i == 0:
                        train(dataclasses.replace(config, stop_at_iteration=iteration))
                    else:
                        resume(run_dir, stop_at_iteration=iteration)
                    writer.writerows(measure(config, run_dir, iteration))
                    file.flush()
                    print(f"seed {seed}, after {iteration} updates", flush=True)
    record(DATA / "assumption4.csv")


if __name__ == "__main__":
    main()
