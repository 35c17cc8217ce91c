"""Evaluate the policy of a run over some episodes: `python -m shmppo.evaluate RUN_DIR`.

The normalization statistics of the checkpoint stay fixed.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

from shmppo.errors import run_command
from shmppo.runs.evaluation import evaluate


@dataclass(frozen=True)
class EvaluateConfig:
    """The flags of `python -m shmppo.evaluate`."""

    run_dir: tyro.conf.Positional[Path]
    """Directory of the run."""
    episodes: int = 20
    """Number of episodes. Each has its own environment."""
    seed: int = 1
    """Seed of the episodes."""
    stochastic: bool = False
    """Sample actions from the policy, as in training. Otherwise the most likely actions are used."""
    video: Path | None = None
    """Record the episodes in this mp4 or gif file (extra `video`). None: no video."""
    json: bool = False
    """Print one JSON object instead of a sentence."""


def main() -> int:
    """Run the command and return its exit code."""
    return run_command(_evaluate)


def _evaluate() -> None:
    options = tyro.cli(EvaluateConfig, prog="python -m shmppo.evaluate", description=__doc__)
    returns = evaluate(
        options.run_dir,
        episodes=options.episodes,
        seed=options.seed,
        stochastic=options.stochastic,
        video=options.video,
    )
    mean, std = float(np.mean(returns)), float(np.std(returns))
    if options.json:
        print(json.dumps({"return_mean": mean, "return_std": std, "episodes": len(returns)}))
    else:
        print(f"return {mean:.1f} ± {std:.1f} over {len(returns)} episodes")


if __name__ == "__main__":
    sys.exit(main())
