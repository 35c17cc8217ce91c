"""Benchmark `python -m shmppo.bench throughput [flags of train]`: steps per second and the time of each phase.

It also estimates the roofline: the highest rate that this machine could reach.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from shmppo.bench.measured_run import measured_run
from shmppo.bench.options import Throughput
from shmppo.config.train_config import TrainConfig
from shmppo.envs.factory import Backend, backends
from shmppo.envs.inspection import inspect_task
from shmppo.models.actor_critic import build_model
from shmppo.models.lmu import Lmu
from shmppo.utils.machine import processor, usable_cores
from shmppo.utils.phase_timer import PHASES, SAMPLING


def throughput(config: TrainConfig, iterations: int) -> dict[str, Any]:
    """Train for a number of iterations in a temporary directory and measure them.

    Returns:
        steps_per_second, phase_seconds, sync_seconds: medians over the counted iterations; seconds per iteration.
        utilization: see `utilization`.
        straggler_wait: share of the sampling time for which a worker waits for the slowest one.
        peak_memory_bytes: of all processes together (proportional set size).
        weights_sha256, and the fields of the configuration that matter for speed.
    """
    run = measured_run(config, iterations)
    config = TrainConfig(**run.summary["config"])  # with what the run has chosen
    phases = {phase: run.median(f"{phase}_seconds") for phase in PHASES}
    return {
        "env": config.env_id,
        "num_envs": config.num_envs,
        "workers": config.num_workers,
        "shards": config.shards,
        "sharded": config.workers_compute_gradients,
        "steps_per_second": run.median("steps_per_second"),
        "phase_seconds": phases,
        "utilization": utilization(config, phases, run.median("collect_seconds"), usable_cores()),
        "sync_seconds": run.median("sync_seconds"),
        "straggler_wait": run.median("straggler_wait"),
        "peak_memory_bytes": run.summary["peak_memory_bytes"],
        "weights_sha256": run.summary["weights_sha256"],
    }


def utilization(
    config: TrainConfig, phases: Mapping[str, float], collect_seconds: float, cores: int
) -> dict[str, float]:
    """Return the share of the cores' time that is used, while sampling and in the rest of the iteration.

    The phases "reduce" and "optimizer" count for one core, although the workers share them in large networks. A core
    whose environment waits for something counts as used.

    Args:
        phases: seconds of an iteration in each phase; if several processes are in a phase, their mean.
        collect_seconds: seconds of an iteration until all workers have sampled.
        cores: number of cores that the run may use.
    """
    sampling = sum(phases[phase] for phase in SAMPLING) * min(max(config.num_workers, 1), cores)
    together = min(config.num_workers, cores) if config.workers_compute_gradients else 1
    alone = sum(phases[phase] for phase in ("advantage", "publish", "reduce", "optimizer"))
    rest = sum(phases.values()) - collect_seconds
    return {
        "sampling": sampling / (cores * collect_seconds),
        "learning": (phases["gradient"] * together + alone) / (cores * rest),
    }


def in_processes(measure: Callable[[TrainConfig], float], config: TrainConfig, count: int) -> float:
    """Measure a rate in `count` processes at the same time; returns the sum.

    Processes on several cores influence each other's speed, so the rate of one process must not be scaled up.
    """
    with multiprocessing.get_context("spawn").Pool(count) as pool:
        return sum(pool.map(measure, [config] * count, chunksize=1))


def simulator_rate(config: TrainConfig, seconds: float = 2.0) -> float:
    """Measure bare simulator steps per second in this process: mj_step for MuJoCo, else `step` without wrappers.

    A vector environment steps the columns of a worker in each call.
    """
    backend = next((one for one in backends() if one.name == config.env_backend), Backend())
    env, count = backend.make_bare(config, len(config.columns_by_worker[0]))
    env.reset(seed=0)
    actions = [env.action_space.sample() for _ in range(256)]
    if hasattr(env, "model") and hasattr(env, "frame_skip") and not hasattr(env, "num_envs"):
        import mujoco

        def step(k: int) -> None:
            env.data.ctrl[:] = actions[k % 256]
            mujoco.mj_step(env.model, env.data, nstep=env.frame_skip)
            if k % 1000 == 999:
                env.reset(seed=k)
    else:

        def step(k: int) -> None:
            _, _, terminated, truncated, _ = env.step(actions[k % 256])
            ended = np.logical_or(terminated, truncated)
            if ended.ndim == 0 and ended:
                env.reset(seed=k)
            elif ended.any() and "DISABLED" in f"{env.metadata.get('autoreset_mode')}".upper():
                env.reset(options={"reset_mask": ended})

    return count * _rate(step, seconds)


def product_rate(config: TrainConfig, seconds: float = 1.0) -> float:
    """Measure floating-point operations per second of the update's largest matrix product, on one thread."""
    torch.set_num_threads(1)
    rows = config.rank_steps // config.minibatches // config.shards
    inner = config.hidden_size if config.recurrent else max(config.encoder_sizes, default=config.hidden_size)
    a, b = torch.randn(rows, inner), torch.randn(inner, (4 if config.core in ("lstm", "lmu", "lru") else 3) * inner)
    out = torch.empty(rows, b.shape[1])
    return 2 * a.numel() * b.shape[1] * _rate(lambda _: torch.mm(a, b, out=out), seconds)


def _rate(step: Callable[[int], object], seconds: float) -> float:
    """Call `step` with 0, 1, 2, … for some seconds; returns calls per second."""
    for k in range(100):
        step(k)
    count, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds:
        for _ in range(50):
            step(count)
            count += 1
    return count / elapsed


def roofline(config: TrainConfig) -> dict[str, float]:
    """Estimate the steps per second if only simulator steps and matrix products took time, on all cores.

    For each environment step, a weight costs two operations in the forward pass and four in the backward pass of every
    epoch. Acting costs two more. A constant that is multiplied (see `Lmu`) has no gradient, so it costs two less per
    epoch.
    """
    task = inspect_task(config)
    model = build_model(config, task.observation, task.distribution)
    weights = sum(p.numel() for p in model.parameters() if p.dim() == 2)
    constants = sum(module.constant_products for module in model.modules() if isinstance(module, Lmu))
    operations = weights * (6 * config.epochs + 2) + constants * (4 * config.epochs + 2)
    cores = usable_cores()
    simulator, products = in_processes(simulator_rate, config, cores), in_processes(product_rate, config, cores)
    return {
        "simulator_steps_per_second": simulator,
        "products_per_second": products,
        "steps_per_second": 1 / (1 / simulator + operations / products),
    }


def report(options: Throughput) -> None:
    """Measure and print. There is no roofline if the environment raises: it gets random actions, also invalid ones."""
    result = throughput(options.train, options.iterations) | {"processor": processor(), "cores": usable_cores()}
    if options.roofline:
        try:
            limit = roofline(options.train)
            result |= {"roofline": limit, "share_of_roofline": result["steps_per_second"] / limit["steps_per_second"]}
        except Exception as error:  # the environment's code may raise anything
            print(f"no roofline: the bare environment could not be stepped ({error!r})", file=sys.stderr)
    print(json.dumps(result) if options.json else text(result))


def text(result: dict[str, Any]) -> str:
    """Format the result of `report` for printing."""
    whole = sum(result["phase_seconds"].values())
    used = result["utilization"]
    times = {**result["phase_seconds"], "signals to workers": result["sync_seconds"]}
    lines = [
        f"{result['env']}, {result['num_envs']} environments, {result['workers']} workers, {result['shards']} shards",
        f"{result['cores']} cores of {result['processor']}",
        f"steps per second      {result['steps_per_second']:10,.0f}",
        *(f"  {name:<20}{seconds * 1e3:10.2f} ms {seconds / whole:6.1%}" for name, seconds in times.items()),
        f"wait for slowest worker {result['straggler_wait']:8.1%} of the sampling time",
        f"cores in use          {used['sampling']:10.0%} while sampling, {used['learning']:.0%} or more while learning",
        f"peak memory           {result['peak_memory_bytes'] / 2**20:10.0f} MiB, all processes together",
    ]
    if "roofline" in result:
        lines.append(f"roofline              {result['roofline']['steps_per_second']:10,.0f} steps per second")
        lines.append(f"share of the roofline {result['share_of_roofline']:10.2f}")
    return "\n".join(lines)
