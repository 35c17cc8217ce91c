"""Evaluation: `python -m shmppo.evaluate RUN_DIR`, the policy with frozen normalisers, and a film of it."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

from shmppo.config import ConfigError
from shmppo.envs import EnvironmentFault
from shmppo.playing import play
from shmppo.policy import load_trained
from shmppo.video import Film


@dataclass(frozen=True)
class EvaluateConfig:
    """What `python -m shmppo.evaluate` is told."""

    run_dir: tyro.conf.Positional[Path]
    """Directory of the run."""
    episodes: int = 20
    """Episodes to play, each in an environment of its own."""
    seed: int = 1
    """Seed of the episodes."""
    stochastic: bool = False
    """Draw actions from the policy, as in training, instead of taking the most likely ones."""
    video: Path | None = None
    """Film the episodes into this mp4 or gif (extra `video`). None: no film."""
    json: bool = False
    """Print one JSON object instead of a sentence."""


def evaluate(
    run_dir: Path, *, episodes: int = 20, seed: int = 1, stochastic: bool = False, video: Path | None = None
) -> list[float]:
    """Undiscounted returns of `episodes` episodes of the run's last checkpoint.

    Args:
        stochastic: draw actions from the policy; else the most likely ones.
        video: film all of them into this mp4 or gif.

    Raises:
        ConfigError: if the run directory holds no usable checkpoint, episodes < 1, or the film cannot be made.
        EnvironmentFault: if an environment raises.
    """
    if episodes < 1:
        raise ConfigError(f"--episodes is {episodes}; it must be at least 1")
    with nullcontext() if video is None else Film(video) as film:
        played = play(load_trained(run_dir), episodes=episodes, seed=seed, stochastic=stochastic, film=film)
    return [one.total for one in played]


def main() -> int:
    """The command line; returns the exit code."""
    options = tyro.cli(EvaluateConfig, prog="python -m shmppo.evaluate", description=__doc__)
    try:
        returns = evaluate(
            options.run_dir,
            episodes=options.episodes,
            seed=options.seed,
            stochastic=options.stochastic,
            video=options.video,
        )
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except EnvironmentFault as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    mean, std = float(np.mean(returns)), float(np.std(returns))
    if options.json:
        print(json.dumps({"return_mean": mean, "return_std": std, "episodes": len(returns)}))
    else:
        print(f"return {mean:.1f} ± {std:.1f} over {len(returns)} episodes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
