"""KL profiles over the shape of the batch and of the minibatches: figures/data/kl_sweeps.csv and kl_sweeps-runs.csv.

    python figures/measure_kl_sweeps.py --seeds 1 2
    python figures/measure_kl_sweeps.py --full --env Humanoid-v5 HalfCheetah-v5 Ant-v5 Walker2d-v5 --seeds 1 2 3 4

The grid of "Training PPO-Clip with Parallelized Data Generation", CleanRL's defaults otherwise: minibatches of 50, 100
and 1000 steps; environments × rollout of three shapes with one product; the clipped objective against the penalty. With
--full 50,000 steps an iteration as in the paper, else 10,000: environments a fifth, rollouts and minibatches as there.
A run that is in the table already is not measured again.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from provenance import DATA, record

from shmppo.config.train_config import TrainConfig
from shmppo.plotting.curves import read_columns
from shmppo.ppo.kl_profile import mean_profile, read_profiles
from shmppo.runs.trainer import train

PROFILES, RUNS = DATA / "kl_sweeps.csv", DATA / "kl_sweeps-runs.csv"
KEY = ("sweep", "name", "env", "seed")
PROFILE_COLUMNS = (*KEY, "share", "log10_sequential", "log10_reference")
RUN_COLUMNS = (
    *KEY, "num_envs", "rollout_steps", "minibatches", "objective", "env_steps", "updates_recorded", "return_mean_100",
    "sequential_mean", "reference_start", "slope", "monotonic_share", "weights_sha256",
)  # fmt: skip
CLEANRL = TrainConfig(
    core="none", encoder_sizes=(64, 64), separate_critic=True, epochs=10, learning_rate=3e-4, value_clip=True,
    workers=0, quiet=True,
)  # fmt: skip


def grid(scale: int) -> dict[tuple[str, str], dict[str, Any]]:
    """Fields of each run by (sweep, name); scale: environments are the paper's over it."""
    base: dict[str, Any] = {"num_envs": 500 // scale, "rollout_steps": 100, "objective": "clip"}
    batch = 50_000 // scale  # steps
    runs: dict[tuple[str, str], dict[str, Any]] = {
        ("minibatch", f"{batch // size} × {size} steps"): {**base, "minibatches": batch // size}
        for size in (50, 100, 1000)
    }
    for envs, steps in ((1000 // scale, 50), (500 // scale, 100), (100 // scale, 500)):
        shape = {**base, "num_envs": envs, "rollout_steps": steps, "minibatches": batch // 100}
        runs["shape", f"{envs} environments × {steps} steps"] = shape
    for objective in ("clip", "penalty"):
        runs["objective", objective] = {**base, "minibatches": batch // 100, "objective": objective}
    return runs


def measure(config: TrainConfig) -> tuple[dict[str, Any], list[dict[str, float]]]:
    """One run: its row of scalars (means over the recorded updates) and its mean profile."""
    with tempfile.TemporaryDirectory() as directory:
        run_dir = Path(directory) / "run"
        summary = train(dataclasses.replace(config, run_dir=str(run_dir)))
        profiles = list(read_profiles(run_dir).values())
        table = read_columns(run_dir / "kl.csv")
    returns = summary["return_mean_100"]
    share, sequential = mean_profile(profiles, "sequential")
    _, reference = mean_profile(profiles, "reference")
    scalars: dict[str, Any] = {
        "num_envs": config.num_envs,
        "rollout_steps": config.rollout_steps,
        "minibatches": config.minibatches,
        "objective": config.objective,
        "env_steps": summary["env_steps"],
        "updates_recorded": len(profiles),
        "return_mean_100": returns if returns is None else round(returns, 2),  # no episode may have ended yet
        "weights_sha256": summary["weights_sha256"],
    }
    for name in ("sequential_mean", "reference_start", "slope", "monotonic_share"):
        scalars[name] = f"{np.nanmean(table[name]):.5g}"
    points = [
        {"share": round(float(x), 2), "log10_sequential": round(float(a), 4), "log10_reference": round(float(b), 4)}
        for x, a, b in zip(share, sequential, reference, strict=True)
    ]
    return scalars, points


def known() -> set[tuple[str, ...]]:
    if not RUNS.exists():
        return set()
    with open(RUNS, newline="") as file:
        return {tuple(row[name] for name in KEY) for row in csv.DictReader(file)}


def append(path: Path, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    new = not path.exists()
    with open(path, "a", newline="") as file:
        writer = csv.DictWriter(file, columns)
        if new:
            writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", nargs="+", default=["HalfCheetah-v5"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--total-steps", type=int, default=300_000)
    parser.add_argument("--every", type=int, default=5, help="iterations from one recorded update to the next")
    parser.add_argument("--full", action="store_true", help="the paper's batch of 50,000 steps")
    options = parser.parse_args()
    done: dict[tuple[Any, ...], tuple[dict[str, Any], list[dict[str, float]]]] = {}
    for env in options.env:
        for seed in options.seeds:
            for (sweep, name), fields in grid(1 if options.full else 5).items():
                if (sweep, name, env, str(seed)) in known():
                    continue
                every, steps = options.every, options.total_steps
                config = dataclasses.replace(
                    CLEANRL, env=env, seed=seed, total_steps=steps, kl_profile_every=every, **fields
                )
                same = (env, seed, *sorted(fields.items()))  # the middle of each sweep is one and the same run
                if same not in done:
                    done[same] = measure(config)
                scalars, points = done[same]
                key = dict(zip(KEY, (sweep, name, env, seed), strict=True))
                append(PROFILES, PROFILE_COLUMNS, [key | point for point in points])
                append(RUNS, RUN_COLUMNS, [key | scalars])
                record(PROFILES, f"{steps:,} steps a run, one in {every} updates recorded.")
                print(key | scalars, flush=True)


if __name__ == "__main__":
    main()
