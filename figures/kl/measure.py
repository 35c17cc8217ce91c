"""Study the KL divergences of updates, as the paper "Training PPO-Clip with Parallelized Data Generation" does.

    python -m figures.kl.measure sweeps --seeds 1 2
    python -m figures.kl.measure sweeps --full --env Humanoid-v5 HalfCheetah-v5 Ant-v5 Walker2d-v5 --seeds 1 2 3 4
    python -m figures.kl.measure subsets --seeds 1 2

sweeps: KL profiles of updates with the grid of the paper. All other settings are the defaults of CleanRL. The sweeps
are minibatches of 50, 100, and 1000 steps; three shapes of environments × rollout steps with the same product; and the
clipped objective and the KL penalty. With --full an iteration has 50,000 steps, as in the paper. Without it the number
of environments is a fifth of that, so an iteration has 10,000 steps. Appends to kl.csv and kl-runs.csv.

subsets: KL between an update on n environments and the update on all of them, see `subsets.py`. Appends to subsets.csv.

What the tables have already is not repeated.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from figures.common.command_line import script_parser
from figures.common.paths import FIGURES
from figures.common.tables import append_rows, has_row
from figures.kl.subsets import measure_policies
from shmppo import TrainConfig, train
from shmppo.plotting.curves import read_columns
from shmppo.ppo.kl_profile import mean_profile, read_profiles

PROFILES = FIGURES / "kl" / "kl.csv"
RUNS = PROFILES.with_name("kl-runs.csv")
SUBSETS = PROFILES.with_name("subsets.csv")
PAPER_BATCH_STEPS = 50_000
REDUCED_SCALE = 5
CLEANRL = TrainConfig(
    core="none", encoder_sizes=(64, 64), separate_critic="all", epochs=10, learning_rate=3e-4, value_clip=True,
    workers=0, quiet=True,
)  # fmt: skip
Result = tuple[dict[str, Any], list[dict[str, float]]]


def grid(scale: int) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the fields of each run by (sweep, name). The paper's numbers of environments are divided by `scale`."""
    base: dict[str, Any] = {"num_envs": 500 // scale, "rollout_steps": 100, "objective": "clip"}
    batch = PAPER_BATCH_STEPS // scale
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


def measure(config: TrainConfig) -> Result:
    """Train one run.

    Returns:
        The row of the run, with means over the recorded updates, and the points of its mean profile.
    """
    with tempfile.TemporaryDirectory() as directory:
        run_dir = Path(directory) / "run"
        summary = train(dataclasses.replace(config, run_dir=str(run_dir)))
        profiles = list(read_profiles(run_dir).values())
        table = read_columns(run_dir / "kl.csv")
    returns = summary["return_mean_100"]  # None before the end of the first episode
    share, sequential = mean_profile(profiles, "sequential")
    _, reference = mean_profile(profiles, "reference")
    columns = ("sequential_mean", "reference_start", "slope", "monotonic_share")
    run = {
        "num_envs": config.num_envs,
        "rollout_steps": config.rollout_steps,
        "minibatches": config.minibatches,
        "objective": config.objective,
        "env_steps": summary["env_steps"],
        "updates_recorded": len(profiles),
        "return_mean_100": returns if returns is None else round(returns, 2),
        **{column: f"{np.nanmean(table[column]):.5g}" for column in columns},
        "weights_sha256": summary["weights_sha256"],
    }
    points = [
        {"share": round(float(x), 2), "log10_sequential": round(float(a), 4), "log10_reference": round(float(b), 4)}
        for x, a, b in zip(share, sequential, reference, strict=True)
    ]
    return run, points


def measure_sweeps(options: argparse.Namespace) -> None:
    """Train the runs of the grid that the table lacks."""
    note = f"{options.total_steps:,} steps per run; one of {options.every} updates is recorded."
    done: dict[tuple[Any, ...], Result] = {}
    runs = grid(1 if options.full else REDUCED_SCALE)
    for env, seed, ((sweep, name), fields) in itertools.product(options.env, options.seeds, runs.items()):
        key = {"sweep": sweep, "name": name, "env": env, "seed": seed}
        if has_row(RUNS, key):
            continue
        identity = (env, seed, *sorted(fields.items()))  # one run is part of all three sweeps
        if identity not in done:
            config = dataclasses.replace(CLEANRL, env=env, seed=seed, total_steps=options.total_steps, **fields)
            done[identity] = measure(dataclasses.replace(config, kl_profile_every=options.every))
        run, points = done[identity]
        append_rows(PROFILES, [key | point for point in points], note)
        append_rows(RUNS, [key | run], note=None)
        print(key | run, flush=True)


def measure_subsets(options: argparse.Namespace) -> None:
    """Measure the policies that the table lacks."""
    for env, seed in itertools.product(options.env, options.seeds):
        if not has_row(SUBSETS, {"env": env, "seed": seed}):
            append_rows(SUBSETS, list(measure_policies(env, seed, options.iterations)))
            print(f"{env}, seed {seed}", flush=True)


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("part", choices=("sweeps", "subsets"))
    parser.add_argument("--env", nargs="+", default=["HalfCheetah-v5"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--total-steps", type=int, default=300_000, help="steps of a run of sweeps")
    parser.add_argument("--every", type=int, default=5, help="iterations between two recorded updates of sweeps")
    parser.add_argument("--full", action="store_true", help=f"use the paper's batch of {PAPER_BATCH_STEPS:,} steps")
    parser.add_argument("--iterations", nargs="+", type=int, default=[5, 40], help="ages of the policies of subsets")
    options = parser.parse_args()
    (measure_sweeps if options.part == "sweeps" else measure_subsets)(options)


if __name__ == "__main__":
    main()
