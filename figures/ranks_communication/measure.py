"""Measure the share of an iteration that two ranks spend on communication, on task A.

    python -m figures.ranks_communication.measure

Every rank is a process under torchrun. It records when each collective operation begins and ends. A collective can
transfer data only after the last rank has arrived, so the time before that is waiting and the time after it is
transfer. Writes ranks_communication.csv.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from figures.common.command_line import script_parser
from figures.common.jobs import TASK_A
from figures.common.ranks import WARM_UP, train_ranks
from figures.common.tables import write_rows

TABLE = Path(__file__).with_name("ranks_communication.csv")
LARGE = 100_000  # bytes; only gradients are larger


def measure(iterations: int, ranks: int) -> dict[str, float]:
    """Train, and split the seconds per iteration of the collectives into transfer and waiting."""
    with tempfile.TemporaryDirectory() as directory:
        columns = train_ranks(
            ranks,
            TASK_A,
            iterations,
            Path(directory) / "run",
            module="figures.ranks_communication.recording_rank",
            RECORD_DIR=directory,
        )
        files = [Path(directory) / f"collectives-{rank}.npy" for rank in range(ranks)]
        begin, end, sizes = np.moveaxis(np.stack([np.load(file) for file in files]), -1, 0)  # each [R, collectives]
    transfer = (end - begin.max(axis=0)).mean(axis=0)
    waiting = (begin.max(axis=0) - begin).mean(axis=0)
    count = columns["iteration"].size + WARM_UP
    seconds = float(np.median(columns["env_steps"][0] / columns["iteration"][0] / columns["steps_per_second"]))
    return {
        "ranks": ranks,
        "iteration_seconds": seconds,
        "transfer_seconds": float(transfer.sum()) / count,
        "waiting_seconds": float(waiting.sum()) / count,
        "share": float(transfer.sum()) / count / seconds,
        "gradient_median_seconds": float(np.median(transfer[sizes[0] > LARGE])),
        "collective_calls": len(transfer) / count,
    }


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--iterations", type=int, default=43)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    row = measure(options.iterations, options.ranks)
    write_rows(TABLE, [row])
    print(row)


if __name__ == "__main__":
    main()
