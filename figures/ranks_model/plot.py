"""Plot ranks_model.csv: python -m figures.ranks_model.plot"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from figures.common.command_line import picture_path
from figures.common.provenance import caption
from figures.common.tables import read_rows
from figures.ranks_model.model import UPDATES, all_reduce_seconds
from shmppo.plotting.style import COLORS, REFERENCE_LINE, label, new_figure, save

TABLE = Path(__file__).with_name("ranks_model.csv")
GPU_RANK = (0.1, 25e-6, 1e-10)
"""Assumptions about a rank with a GPU: its share of the CPU rank's iteration time, seconds per message, seconds per
byte."""
PUBLISHED = (128, 107.0)  # speed-up of DD-PPO on 128 GPUs: Wijmans et al., arXiv 1911.00357


def gpu_speedup(ranks: np.ndarray, one_rank: dict[str, float]) -> np.ndarray:
    """Predict the speed-up of several ranks with a GPU each over one of them.

    Args:
        ranks: [n].
        one_rank: the row of the table for one rank.

    Returns:
        [n].
    """
    share, message, per_byte = GPU_RANK
    seconds = share * one_rank["measured_seconds"]
    communication = UPDATES * all_reduce_seconds(ranks, one_rank["gradient_bytes"], message, per_byte)
    speedup: np.ndarray = ranks * seconds / (seconds + communication)
    return speedup


def main() -> None:
    out = picture_path(TABLE.with_suffix(".svg"), __doc__)
    table = [{name: float(value) for name, value in row.items()} for row in read_rows(TABLE)]
    one_rank = table[0]
    ranks = np.array([row["ranks"] for row in table])
    measured = np.array([row["ranks"] * one_rank["measured_seconds"] / row["measured_seconds"] for row in table])
    last = int(np.flatnonzero(np.isfinite(measured))[-1])
    predicted = table[last]["speedup"]
    headline = (
        f"{ranks[last]:.0f} ranks are {measured[last]:.2f} times as fast as one; the model predicts {predicted:.2f}"
    )
    figure, (axis,) = new_figure(1, 1, height=4.0, headline=headline)
    axis.plot(ranks, ranks, **REFERENCE_LINE, label="linear speed-up")
    axis.plot(ranks, [row["speedup"] for row in table], color=COLORS[0], linewidth=3.0, alpha=0.5, label="model")
    axis.plot(ranks, gpu_speedup(ranks, one_rank), "--", color=COLORS[2], label="model, one GPU per rank")
    axis.plot(ranks, measured, "o", color=COLORS[1], markersize=6, label="measured")
    axis.plot(*PUBLISHED, "s", color=COLORS[3], markersize=6, label="DD-PPO as published (other task, GPUs)")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.set_xticks(ranks, [f"{count:.0f}" for count in ranks])
    axis.set_yticks(ranks, [f"{count:.0f}" for count in ranks])
    axis.legend(loc="upper left")
    label(axis, "ranks", "speed-up", f"Fixed work per rank: the iteration of one rank plus {UPDATES} all-reduces")
    share, message, per_byte = GPU_RANK
    note = (
        f"Fitted all-reduce: {one_rank['message_seconds'] * 1e6:.0f} µs per message, "
        f"{1e-9 / one_rank['seconds_per_byte']:.2f} GB/s; assumed with GPUs: {100 * share:.0f} % of the iteration "
        f"time, {message * 1e6:.0f} µs per message, {1e-9 / per_byte:.0f} GB/s."
    )
    save(figure, out, caption(TABLE, note))


if __name__ == "__main__":
    main()
