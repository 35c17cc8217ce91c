"""Speed-up over workers on task A of measure_peers.py: figures/data/scaling.csv and scaling-curves.csv.

    python figures/measure_scaling.py --workers 1 2 4 --repetitions 3

It is `python -m shmppo.bench scaling` of that task, with the time to a return of 500 beside it. On a quiet machine.
"""

from __future__ import annotations

import argparse

from provenance import DATA, record

from shmppo.bench.scaling import Scaling, report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=23)
    parser.add_argument("--total-steps", type=int, default=400_000, help="of the runs to the target return")
    options = parser.parse_args()
    scaling = Scaling(
        env="HalfCheetah-v5",
        hidden_size=128,
        encoder_sizes=(128,),
        epochs=4,
        minibatches=4,
        seq_len=16,
        total_steps=options.total_steps,
        target_return=500.0,
        workers=tuple(options.workers),
        repetitions=options.repetitions,
        iterations=options.iterations,
        out=DATA / "scaling",
    )
    report(scaling)
    (DATA / "scaling.svg").unlink()  # drawn again by plot_scaling.py, with its caption
    record(DATA / "scaling.csv", f"Medians of {options.repetitions} interleaved runs.")


if __name__ == "__main__":
    main()
