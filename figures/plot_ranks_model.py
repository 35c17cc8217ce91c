"""figures/data/ranks_model.csv → figures/ranks_model.svg

python figures/plot_ranks_model.py
"""

from __future__ import annotations

import csv

import numpy as np
from measure_ranks import UPDATES, ring_seconds
from provenance import DATA, caption, output

from shmppo.plotting.plots import COLOURS, label, new_figure, save

GPU_RANK = (0.1, 25e-6, 1e-10)
"""Assumed of a rank with a GPU: share of the CPU rank's time for an iteration, seconds a message, seconds a byte."""
PUBLISHED = (128, 107.0)  # DD-PPO on 128 GPUs: Wijmans et al., arXiv 1911.00357


def gpu_speedup(ranks: np.ndarray, alone: dict[str, float]) -> np.ndarray:
    """Speed-up [n] of ranks [n] over one of them, each faster than the measured one and better connected."""
    share, hop, per_byte = GPU_RANK
    iteration = share * alone["measured_seconds"]
    return ranks * iteration / (iteration + UPDATES * ring_seconds(ranks, alone["gradient_bytes"], hop, per_byte))


def main() -> None:
    out = output("ranks_model", __doc__)
    with open(DATA / "ranks_model.csv", newline="") as file:
        table = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    ranks = np.array([row["ranks"] for row in table])
    measured = np.array([row["ranks"] * table[0]["measured_seconds"] / row["measured_seconds"] for row in table])
    figure, axes = new_figure(1, 1, width=6.5, height=3.6)
    axes[0].plot(ranks, ranks, color="#888888", linewidth=0.8, linestyle=":", label="one each")
    axes[0].plot(ranks, [row["speedup"] for row in table], color=COLOURS[0], label="model")
    axes[0].plot(ranks, gpu_speedup(ranks, table[0]), "--", color=COLOURS[0], label="model, a GPU for each rank")
    axes[0].plot(ranks, measured, "o", color=COLOURS[1], label="measured")
    axes[0].plot(*PUBLISHED, "s", color=COLOURS[2], label="DD-PPO, published (another task, GPUs)")
    axes[0].set_xscale("log", base=2)
    axes[0].set_yscale("log", base=2)
    axes[0].legend()
    label(axes[0], "ranks", "speed-up", "Fixed work per rank: an iteration of one rank plus 16 all-reduces in a ring")
    share, hop, per_byte = GPU_RANK
    note = (
        f"Ring: {table[0]['hop_seconds'] * 1e6:.0f} µs a message, {1e-9 / table[0]['seconds_per_byte']:.2f} GB/s. GPU, "
        f"assumed: {share:.0%} of the iteration's time, {hop * 1e6:.0f} µs a message, {1e-9 / per_byte:.0f} GB/s."
    )
    save(figure, out, caption("ranks_model", note=note))


if __name__ == "__main__":
    main()
