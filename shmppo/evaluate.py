"""Evaluation: `python -m shmppo.evaluate RUN_DIR`, the deterministic policy with frozen normalisers."""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import tyro

from shmppo.config import ConfigError, TrainConfig
from shmppo.distributions import Distribution
from shmppo.envs import EnvironmentBatch, EnvironmentFault
from shmppo.inference import ActingNetwork
from shmppo.normalize import RunningMoments, leaf_statistics, show
from shmppo.policy import load_trained

FIRST_INDEX = 2**40  # environment indices that no training run reaches, so no stream is shared with one


@dataclass(frozen=True)
class EvaluateConfig:
    """What `python -m shmppo.evaluate` is told."""

    run_dir: tyro.conf.Positional[Path]
    """Directory of the run."""
    episodes: int = 20
    """Episodes to play, each in an environment of its own."""
    seed: int = 1
    """Seed of the episodes."""
    json: bool = False
    """Print one JSON object instead of a sentence."""


def evaluate(run_dir: Path, *, episodes: int = 20, seed: int = 1) -> list[float]:
    """Undiscounted returns of `episodes` episodes of the run's last checkpoint.

    Raises:
        ConfigError: if the run directory holds no usable checkpoint, or episodes < 1.
        EnvironmentFault: if an environment raises.
    """
    if episodes < 1:
        raise ConfigError(f"--episodes is {episodes}; it must be at least 1")
    trained = load_trained(run_dir)
    config, task, model = dataclasses.replace(trained.config, seed=seed), trained.task, trained.model
    network = ActingNetwork(model, task.distribution, tiles=1, rows=config.tile)
    network.load()
    returns: list[float] = []
    while len(returns) < episodes:
        first = FIRST_INDEX + len(returns)
        count = min(config.tile, episodes - len(returns))
        batch = EnvironmentBatch(config, first, first + count, task.observation)
        returns += _play(config, batch, network, trained.moments, task.distribution)
        batch.close()
    return returns


@torch.inference_mode()
def _play(
    config: TrainConfig,
    batch: EnvironmentBatch,
    network: ActingNetwork,
    moments: RunningMoments,
    distribution: Distribution,
) -> list[float]:
    """Returns of the first episode of each environment, side by side in one tile, most likely actions."""
    count = len(batch.slots)
    network.state.zero_()
    batch.begin(0)
    returns: dict[int, float] = {}
    rewards, terminated, truncated = np.zeros(count), np.zeros(count, bool), np.zeros(count, bool)
    mean, scale = (torch.from_numpy(a.astype(np.float32)) for a in (moments.mean, 1 / moments.std))
    statistics = leaf_statistics(batch.observation.normalized, mean, scale, config.normalize_obs)
    shown = list(zip(map(torch.from_numpy, batch.obs), statistics, network.obs, strict=True))
    while len(returns) < count:
        for obs, of_leaf, seen in shown:
            show(obs, of_leaf, out=seen[0, :count])
        network.step(0)
        actions = distribution.to_env(distribution.mode(network.params).numpy()[:count])
        for ended in batch.step(actions, rewards, terminated, truncated):
            returns.setdefault(ended.i, ended.total)
            network.state[0, ended.i] = 0.0
    return [returns[i] for i in range(count)]


def main() -> int:
    """The command line; returns the exit code."""
    options = tyro.cli(EvaluateConfig, prog="python -m shmppo.evaluate", description=__doc__)
    try:
        returns = evaluate(options.run_dir, episodes=options.episodes, seed=options.seed)
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
