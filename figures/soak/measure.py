"""Train for half an hour, and check that memory and open file descriptors do not grow.

    python -m figures.soak.measure --minutes 30

Samples each process of a HalfCheetah run with two workers: its anonymous memory and its open file descriptors.
Anonymous memory is what the process has written itself. Pages of library files do not count, because they depend on
other programs. Prints the growth of each process's memory, with its standard error, in the two halves of the run after
the first two minutes. Writes soak.csv.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from figures.common.command_line import script_parser
from figures.common.paths import ROOT
from figures.common.tables import write_rows

TABLE = Path(__file__).with_name("soak.csv")
FLAGS = "--env HalfCheetah-v5 --workers 2 --total-steps 1000000000 --checkpoint-minutes 1 --quiet"
START_SECONDS = 20.0  # until all processes run
SAMPLE_SECONDS = 10.0
WARM_UP_SECONDS = 120.0  # samples before this do not count for the growth


def process_names(learner: psutil.Popen) -> dict[int, str]:
    """Return the role of each process of the run by its process id."""
    names = {learner.pid: "learner"}
    for child in learner.children(recursive=True):
        command = " ".join(child.cmdline())
        helper = child.ppid() == learner.pid
        names[child.pid] = (
            ("fork server" if "forkserver" in command else "tracker") if helper else f"worker {child.pid}"
        )
    return names


def anonymous_memory(pid: int) -> float:
    """Return the anonymous memory of a process in MiB."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) / 1024
    raise OSError(f"/proc/{pid}/smaps_rollup has no line Anonymous")


def measure(minutes: float) -> list[dict[str, Any]]:
    """Train, and return one row per sample and process."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "shmppo.train", *FLAGS.split(), "--run-dir", str(Path(directory) / "run")]
        learner = psutil.Popen(command, cwd=ROOT)
        time.sleep(START_SECONDS)
        names, begin = process_names(learner), time.monotonic()
        while (elapsed := time.monotonic() - begin) < 60 * minutes:
            for pid, name in names.items():
                memory, files = round(anonymous_memory(pid), 3), psutil.Process(pid).num_fds()
                rows.append({"seconds": round(elapsed, 1), "process": name, "mib": memory, "files": files})
            time.sleep(SAMPLE_SECONDS)
        learner.send_signal(signal.SIGTERM)
        if learner.wait(timeout=60) != 0:
            raise RuntimeError(f"the run ended with code {learner.returncode}")
    return rows


def growth(samples: np.ndarray) -> str:
    """Fit a line to samples [n, (seconds, MiB)]; return its growth and standard error in MiB per hour as text."""
    (value, _), covariance = np.polyfit(samples[:, 0] / 3600, samples[:, 1], 1, cov=True)
    return f"{value:+.2f} ± {np.sqrt(covariance[0, 0]):.2f}"


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    options = parser.parse_args()
    rows = measure(options.minutes)
    write_rows(TABLE, rows)
    for name in dict.fromkeys(row["process"] for row in rows):
        own = [row for row in rows if row["process"] == name]
        late = np.array([[row["seconds"], row["mib"]] for row in own if row["seconds"] > WARM_UP_SECONDS], float)
        halves = ", then ".join(growth(half) for half in np.array_split(late, 2))
        files = sorted({row["files"] for row in own})
        print(f"{name}: {late[:, 1].mean():.1f} MiB, growth {halves} MiB per hour, descriptors {files}")


if __name__ == "__main__":
    main()
