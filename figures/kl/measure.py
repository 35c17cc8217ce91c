"""Measure how far updates on some environments are from the update on all of them; see `subsets.py`.

    python -m figures.kl.measure --seeds 1 2

Appends to subsets.csv. Policies that it has are not repeated. `figures.fixed_points.measure` records KL profiles.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from figures.common.command_line import script_parser
from figures.common.tables import append_rows, has_row
from figures.kl.subsets import measure_policies

SUBSETS = Path(__file__).with_name("subsets.csv")


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--env", nargs="+", default=["HalfCheetah-v5"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--iterations", nargs="+", type=int, default=[5, 40], help="ages of the policies")
    options = parser.parse_args()
    for env, seed in itertools.product(options.env, options.seeds):
        if not has_row(SUBSETS, {"env": env, "seed": seed}):
            append_rows(SUBSETS, list(measure_policies(env, seed, options.iterations)))
            print(f"{env}, seed {seed}", flush=True)


if __name__ == "__main__":
    main()
