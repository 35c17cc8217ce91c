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

from shmppo.checkpoint import NAME as CHECKPOINT
from shmppo.checkpoint import load_checkpoint
from shmppo.config import ConfigError, TrainConfig, from_json
from shmppo.distributions import Distribution
from shmppo.envs import EnvironmentFault, EnvironmentSlot, inspect_task
from shmppo.inference import ActingNetwork
from shmppo.learner import build_model
from shmppo.normalize import CLIP, RunningMoments

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
    state = load_checkpoint(run_dir / CHECKPOINT)
    config = dataclasses.replace(from_json(json.loads(state["config"])), seed=seed)
    task = inspect_task(config)
    model = build_model(config, task)
    model.load_state_dict(state["learner"]["model"])
    moments = RunningMoments(task.observation_size)
    moments.load({name: tensor.numpy() for name, tensor in state["learner"]["obs_moments"].items()})
    network = ActingNetwork(model, task.distribution, tiles=1, rows=config.tile, observation_size=task.observation_size)
    network.load()
    returns: list[float] = []
    while len(returns) < episodes:
        count = min(config.tile, episodes - len(returns))
        slots = [EnvironmentSlot(config, FIRST_INDEX + len(returns) + i) for i in range(count)]
        returns += _play(config, slots, network, moments, task.distribution)
        for slot in slots:
            slot.close()
    return returns


@torch.inference_mode()
def _play(
    config: TrainConfig,
    slots: list[EnvironmentSlot],
    network: ActingNetwork,
    moments: RunningMoments,
    distribution: Distribution,
) -> list[float]:
    """Returns of one episode in each slot, side by side in one tile, most likely actions."""
    network.state.zero_()
    obs = np.stack([slot.begin(0) for slot in slots])
    returns = [0.0] * len(slots)
    playing = set(range(len(slots)))
    while playing:
        if config.normalize_obs:
            mean, scale = moments.mean.astype(np.float32), (1 / moments.std).astype(np.float32)
            seen = np.clip((obs - mean) * scale, -CLIP, CLIP)
        else:
            seen = obs
        network.obs[0, : len(slots)] = torch.from_numpy(seen)
        params, _ = network.step(0)
        actions = distribution.to_env(distribution.mode(params).numpy()[: len(slots)])
        for i in sorted(playing):
            obs[i], reward, terminated, truncated = slots[i].step(actions[i])
            returns[i] += reward
            if terminated or truncated:
                playing.discard(i)
    return returns


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
