"""A run of half an hour whose memory and descriptors must not grow: figures/data/soak.csv.

    python figures/measure_soak.py --minutes 30

Samples every process of a HalfCheetah run with two workers: anonymous memory (what it has written itself; pages of
library files come and go with other programs) and open descriptors. Prints, for each process, the slope of its memory
in the first half (after two minutes) and in the second, each with its standard error, and the numbers of its
descriptors.
"""

from __future__ import annotations

import argparse
import csv
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

DATA = Path(__file__).parent / "data"
FLAGS = "--env HalfCheetah-v5 --workers 2 --total-steps 1000000000 --checkpoint-minutes 1 --quiet"
EVERY = 10.0  # seconds
WARM = 120.0  # seconds that a process may grow in


def processes(learner: psutil.Popen) -> dict[int, str]:
    """Process ids of the run, with their part in it."""
    parts = {learner.pid: "learner"}
    for child in learner.children(recursive=True):
        line = " ".join(child.cmdline())
        helper = child.ppid() == learner.pid
        parts[child.pid] = ("fork server" if "forkserver" in line else "tracker") if helper else f"worker {child.pid}"
    return parts


def anonymous_memory(pid: int) -> float:
    """MiB."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) / 1024
    raise OSError(f"/proc/{pid}/smaps_rollup has no line Anonymous")


def sample(minutes: float) -> list[dict[str, float | str]]:
    rows: list[dict[str, float | str]] = []
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "shmppo.train", *FLAGS.split(), "--run-dir", str(Path(directory) / "run")]
        learner = psutil.Popen(command)
        time.sleep(20)
        parts, begun = processes(learner), time.monotonic()
        while (elapsed := time.monotonic() - begun) < 60 * minutes:
            for pid, part in parts.items():
                memory, files = round(anonymous_memory(pid), 3), psutil.Process(pid).num_fds()
                rows.append({"seconds": round(elapsed, 1), "process": part, "mib": memory, "files": files})
            time.sleep(EVERY)
        learner.send_signal(signal.SIGTERM)
        assert learner.wait(timeout=60) == 0
    return rows


def slope(samples: np.ndarray) -> str:
    """Slope and standard error of samples [n, (seconds, MiB)] in MiB per hour."""
    (value, _), covariance = np.polyfit(samples[:, 0] / 3600, samples[:, 1], 1, cov=True)
    return f"{value:+.2f} ± {np.sqrt(covariance[0, 0]):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    options = parser.parse_args()
    rows = sample(options.minutes)
    with open(DATA / "soak.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    for part in dict.fromkeys(row["process"] for row in rows):
        own = [row for row in rows if row["process"] == part]
        late = np.array([[row["seconds"], row["mib"]] for row in own if float(row["seconds"]) > WARM], float)
        slopes = " then ".join(slope(half) for half in np.array_split(late, 2))
        files = sorted({row["files"] for row in own})
        print(f"{part}: {late[:, 1].mean():.1f} MiB, slope {slopes} MiB per hour, descriptors {files}")


if __name__ == "__main__":
    main()
