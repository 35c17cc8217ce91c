"""One rank of a training run that records when its collective operations begin and end.

    torchrun --nproc-per-node 2 -m figures.ranks_communication.recording_rank [flags of shmppo.train]

Writes collectives-RANK.npy [collectives, (begin, end, bytes)] into the directory that RECORD_DIR names. Times are in
seconds of the machine's monotonic clock, which all ranks on a machine share.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from shmppo.parallel.process_group import ProcessGroup
from shmppo.train import main as train_main


def recorded(operation: Callable[..., Any], records: list[tuple[float, float, int]]) -> Callable[..., Any]:
    """Return the collective operation, changed to append (begin, end, bytes) of each call to `records`."""

    def call(group: ProcessGroup, values: Any) -> Any:
        begin = time.monotonic()
        result = operation(group, values)
        if values.nbytes:  # empty arrays are not exchanged
            records.append((begin, time.monotonic(), values.nbytes))
        return result

    return call


def main() -> int:
    """Train as the command line says; returns the exit code."""
    records: list[tuple[float, float, int]] = []
    with (
        mock.patch.object(ProcessGroup, "sum", recorded(ProcessGroup.sum, records)),
        mock.patch.object(ProcessGroup, "gather", recorded(ProcessGroup.gather, records)),
    ):
        code = train_main()
    np.save(Path(os.environ["RECORD_DIR"]) / f"collectives-{os.environ['RANK']}.npy", np.array(records))
    return code


if __name__ == "__main__":
    sys.exit(main())
