"""Whole episodes with a trained policy and frozen normalizers, side by side; what is drawn of them goes into a film."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from shmppo.envs.sync import SyncVectorEnv
from shmppo.errors import ConfigError, EnvError
from shmppo.models.inference import ActingNetwork
from shmppo.models.normalization import leaf_statistics, normalize_leaf
from shmppo.runs.policy import TrainedPolicy, load_trained
from shmppo.runs.video import VideoRecorder, render_without_display
from shmppo.utils.rng import action_noise_generator

FIRST_INDEX = 2**40  # environment indices that no training run reaches, so no stream is shared with one


class EpisodeResult(NamedTuple):
    """One episode."""

    total: float
    """Undiscounted return."""
    length: int
    """Steps."""


def play(
    trained: TrainedPolicy,
    *,
    episodes: int,
    seed: int,
    stochastic: bool = False,
    film: VideoRecorder | None = None,
    filmed: int | None = None,
) -> list[EpisodeResult]:
    """Play `episodes` episodes, each in an environment of its own.

    Args:
        stochastic: draw actions from the policy; else the most likely ones.
        film: gets the frames of the first `filmed` episodes (None: all), which are then played one by one.

    Raises:
        ConfigError: if the environment cannot be drawn, or the film not be written.
        EnvError: if an environment raises.
    """
    players = _Players(trained, seed, stochastic)
    played: list[EpisodeResult] = []
    alone = 0 if film is None else min(episodes, episodes if filmed is None else filmed)
    while len(played) < episodes:
        drawn = film if len(played) < alone else None
        count = 1 if drawn else min(players.rows, episodes - len(played))
        played += players.play(FIRST_INDEX + len(played), count, drawn)
    return played


class _Players:
    """The policy acting in one tile of environments."""

    def __init__(self, trained: TrainedPolicy, seed: int, stochastic: bool) -> None:
        self._config = dataclasses.replace(trained.config, seed=seed, skip_bad_episodes=False)
        self._task = trained.task
        self._stochastic = stochastic
        self.rows = self._config.inference_rows
        self._network = ActingNetwork(trained.model, trained.task.distribution, tiles=1, rows=self.rows)
        self._network.load()
        moments = trained.moments
        mean, scale = (torch.from_numpy(a.astype(np.float32)) for a in (moments.mean, 1 / moments.std))
        parts = trained.task.observation.normalized
        self._statistics = leaf_statistics(parts, mean, scale, trained.config.normalize_obs)

    @torch.inference_mode()
    def play(self, first: int, count: int, film: VideoRecorder | None) -> list[EpisodeResult]:
        """The first episode of each of `count` environments."""
        render_mode = None
        if film is not None:
            render_without_display()
            render_mode = "rgb_array"
        batch = SyncVectorEnv(self._config, self._task, first, first + count, render_mode)
        try:
            return self._play(batch, film)
        except EnvError as fault:
            raise EnvError(fault.env_index - FIRST_INDEX, fault.message) from fault
        finally:
            batch.close()

    def _play(self, batch: SyncVectorEnv, film: VideoRecorder | None) -> list[EpisodeResult]:
        count, network, distribution = len(batch.handles), self._network, self._task.distribution
        generators = [action_noise_generator(self._config.seed, slot.index, 0) for slot in batch.handles]
        network.state.zero_()
        batch.begin(0)
        played: dict[int, EpisodeResult] = {}
        rewards, terminated, truncated = np.zeros(count), np.zeros(count, bool), np.zeros(count, bool)
        shown = list(zip(map(torch.from_numpy, batch.obs), self._statistics, network.obs, strict=True))
        while len(played) < count:
            if film is not None:
                self._draw(batch, film)
            for obs, of_leaf, seen in shown:
                normalize_leaf(obs, of_leaf, out=seen[0, :count])
            network.step(0)
            params = network.params[:count]
            if self._stochastic:
                noise = np.concatenate([distribution.noise(generator, 1) for generator in generators])
                chosen = distribution.sample(params, torch.from_numpy(noise))
            else:
                chosen = distribution.mode(params)
            actions = [None if i in played else action for i, action in enumerate(distribution.to_env(chosen.numpy()))]
            for ended in batch.step(actions, rewards, terminated, truncated):
                played[ended.i] = EpisodeResult(ended.total, ended.length)
        return [played[i] for i in range(count)]

    def _draw(self, batch: SyncVectorEnv, film: VideoRecorder) -> None:
        slot = batch.handles[0]
        try:
            frame = slot.render()
        except Exception as error:  # drivers and libraries fail in many ways
            reason = " ".join(str(error).split()) or repr(error)
            raise ConfigError(
                f"--video: {self._config.env_id} cannot be drawn here ({reason}); pip install 'shmppo[video]', and "
                "without a display MuJoCo needs EGL (apt-get install libegl1) or MUJOCO_GL=osmesa (libosmesa6)"
            ) from error
        film.add(frame, slot.frames_per_second)


def evaluate(
    run_dir: Path, *, episodes: int = 20, seed: int = 1, stochastic: bool = False, video: Path | None = None
) -> list[float]:
    """Undiscounted returns of `episodes` episodes of the run's last checkpoint.

    Args:
        stochastic: draw actions from the policy; else the most likely ones.
        video: film all of them into this mp4 or gif.

    Raises:
        ConfigError: if the run directory holds no usable checkpoint, episodes < 1, or the film cannot be made.
        EnvError: if an environment raises.
    """
    if episodes < 1:
        raise ConfigError(f"--episodes is {episodes}; it must be at least 1")
    with nullcontext() if video is None else VideoRecorder(video) as film:
        played = play(load_trained(run_dir), episodes=episodes, seed=seed, stochastic=stochastic, film=film)
    return [one.total for one in played]
