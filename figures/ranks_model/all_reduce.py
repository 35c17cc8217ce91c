"""One rank that measures the all-reduce of arrays of several sizes.

    torchrun --nproc-per-node 2 -m figures.ranks_model.all_reduce

Rank 0 prints the median seconds for each of SIZES as a JSON list.
"""

from __future__ import annotations

import json
import time

import numpy as np
import torch

from shmppo.parallel.rendezvous import connect

SIZES = (1_000, 10_000, 135_000, 500_000)  # float32 numbers
REPETITIONS = 200


def main() -> None:
    torch.set_num_threads(1)
    with connect(timeout=60) as group:
        medians = []
        for size in SIZES:
            tensor, times = torch.zeros(size), []
            for _ in range(REPETITIONS):
                group.gather(np.zeros(1))  # a barrier, so that all ranks begin together
                begin = time.monotonic()
                group.sum(tensor)
                times.append(time.monotonic() - begin)
            medians.append(float(np.median(times)))
        if group.rank == 0:
            print(json.dumps(medians))


if __name__ == "__main__":
    main()
