"""Predict the speed-up over ranks by a model, and measure it for 1, 2, and 4 ranks.

    python -m figures.ranks_model.measure

The environments sleep, so four ranks can share two cores. The model adds the time of the gradients' all-reduces to the
measured iteration of one rank. Its two constants, the time per message and per byte, are fitted to all-reduces of
several sizes. Predictions go up to 256 ranks. Writes ranks_model.csv.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from figures.common.command_line import script_parser
from figures.common.ranks import SLEEPING_JOB, torchrun, train_ranks
from figures.common.tables import write_rows
from figures.ranks_model.all_reduce import SIZES
from figures.ranks_model.model import UPDATES, all_reduce_seconds, fit
from shmppo.storage.checkpoint import load_newest_checkpoint

TABLE = Path(__file__).with_name("ranks_model.csv")
MEASURED_RANKS = (1, 2, 4)
MAX_RANKS = 256
JOB = SLEEPING_JOB | {"env_kwargs": {"seconds": 0.002}}


def measure_all_reduce() -> tuple[float, float]:
    """Measure all-reduces with 2 and 4 ranks; returns the fitted seconds per message and per byte."""
    counts = (2, 4)
    lines = [torchrun(ranks, "figures.ranks_model.all_reduce").splitlines() for ranks in counts]
    seconds = np.concatenate([json.loads(line[-1]) for line in lines])
    ranks = np.repeat(counts, len(SIZES))
    sizes = np.tile(4 * np.array(SIZES), len(counts))
    return fit(ranks, sizes, seconds)


def measure_iteration(ranks: int, iterations: int) -> tuple[float, int]:
    """Train; returns the seconds of an iteration and the bytes of a gradient."""
    with tempfile.TemporaryDirectory() as directory:
        run_dir = Path(directory) / "run"
        columns = train_ranks(ranks, JOB, iterations, run_dir)
        weights = load_newest_checkpoint(run_dir)["learner"]["model"].values()
        gradient_bytes = sum(4 * tensor.numel() for tensor in weights)
    batch_steps = ranks * JOB["num_envs"] * JOB["rollout_steps"]
    return float(np.median(batch_steps / columns["steps_per_second"])), gradient_bytes


def rows(iterations: int) -> list[dict[str, Any]]:
    """Return the table: predicted and measured seconds of an iteration for each number of ranks."""
    message, per_byte = measure_all_reduce()
    measured = {ranks: measure_iteration(ranks, iterations) for ranks in MEASURED_RANKS}
    one_rank, size = measured[1]
    table = []
    for ranks in (2**k for k in range(MAX_RANKS.bit_length())):
        predicted = one_rank + UPDATES * float(all_reduce_seconds(ranks, size, message, per_byte))
        table.append(
            {
                "ranks": ranks,
                "predicted_seconds": predicted,
                "measured_seconds": measured[ranks][0] if ranks in measured else float("nan"),
                "speedup": ranks * one_rank / predicted,
                "message_seconds": message,
                "seconds_per_byte": per_byte,
                "gradient_bytes": size,
            }
        )
    return table


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--iterations", type=int, default=43)
    options = parser.parse_args()
    write_rows(TABLE, rows(options.iterations))
    print(TABLE.read_text(), end="")


if __name__ == "__main__":
    main()
