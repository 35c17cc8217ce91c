"""Whole episodes with a trained policy and frozen normalisers, side by side; what is drawn of them goes into a film."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
import torch

from shmppo.batches import EnvironmentBatch
from shmppo.config import ConfigError
from shmppo.envs import EnvironmentFault
from shmppo.inference import ActingNetwork
from shmppo.normalize import leaf_statistics, show
from shmppo.policy import Trained
from shmppo.streams import action_noise
from shmppo.video import Film, render_without_display

FIRST_INDEX = 2**40  # environment indices that no training run reaches, so no stream is shared with one


class Played(NamedTuple):
    """One episode."""

    total: float
    """Undiscounted return."""
    length: int
    """Steps."""


def play(
    trained: Trained,
    *,
    episodes: int,
    seed: int,
    stochastic: bool = False,
    film: Film | None = None,
    filmed: int | None = None,
) -> list[Played]:
    """Play `episodes` episodes, each in an environment of its own.

    Args:
        stochastic: draw actions from the policy; else the most likely ones.
        film: gets the frames of the first `filmed` episodes (None: all), which are then played one by one.

    Raises:
        ConfigError: if the environment cannot be drawn, or the film not be written.
        EnvironmentFault: if an environment raises.
    """
    players = _Players(trained, seed, stochastic)
    played: list[Played] = []
    alone = 0 if film is None else min(episodes, episodes if filmed is None else filmed)
    while len(played) < episodes:
        drawn = film if len(played) < alone else None
        count = 1 if drawn else min(players.rows, episodes - len(played))
        played += players.play(FIRST_INDEX + len(played), count, drawn)
    return played


class _Players:
    """The policy acting in one tile of environments."""

    def __init__(self, trained: Trained, seed: int, stochastic: bool) -> None:
        self._config = dataclasses.replace(trained.config, seed=seed, skip_bad_episodes=False)
        self._task = trained.task
        self._stochastic = stochastic
        self.rows = self._config.tile
        self._network = ActingNetwork(trained.model, trained.task.distribution, tiles=1, rows=self.rows)
        self._network.load()
        moments = trained.moments
        mean, scale = (torch.from_numpy(a.astype(np.float32)) for a in (moments.mean, 1 / moments.std))
        parts = trained.task.observation.normalized
        self._statistics = leaf_statistics(parts, mean, scale, trained.config.normalize_obs)

    @torch.inference_mode()
    def play(self, first: int, count: int, film: Film | None) -> list[Played]:
        """The first episode of each of `count` environments."""
        render_mode = None
        if film is not None:
            render_without_display()
            render_mode = "rgb_array"
        batch = EnvironmentBatch(self._config, self._task, first, first + count, render_mode)
        try:
            return self._play(batch, film)
        except EnvironmentFault as fault:
            raise EnvironmentFault(fault.env_index - FIRST_INDEX, fault.message) from fault
        finally:
            batch.close()

    def _play(self, batch: EnvironmentBatch, film: Film | None) -> list[Played]:
        count, network, distribution = len(batch.slots), self._network, self._task.distribution
        generators = [action_noise(self._config.seed, slot.index, 0) for slot in batch.slots]
        network.state.zero_()
        batch.begin(0)
        played: dict[int, Played] = {}
        rewards, terminated, truncated = np.zeros(count), np.zeros(count, bool), np.zeros(count, bool)
        shown = list(zip(map(torch.from_numpy, batch.obs), self._statistics, network.obs, strict=True))
        while len(played) < count:
            if film is not None:
                self._draw(batch, film)
            for obs, of_leaf, seen in shown:
                show(obs, of_leaf, out=seen[0, :count])
            network.step(0)
            params = network.params[:count]
            if self._stochastic:
                noise = np.concatenate([distribution.noise(generator, 1) for generator in generators])
                chosen = distribution.sample(params, torch.from_numpy(noise))
            else:
                chosen = distribution.mode(params)
            actions = [None if i in played else action for i, action in enumerate(distribution.to_env(chosen.numpy()))]
            for ended in batch.step(actions, rewards, terminated, truncated):
                played[ended.i] = Played(ended.total, ended.length)
        return [played[i] for i in range(count)]

    def _draw(self, batch: EnvironmentBatch, film: Film) -> None:
        slot = batch.slots[0]
        try:
            frame = slot.render()
        except Exception as error:  # drivers and libraries fail in many ways
            reason = " ".join(str(error).split()) or repr(error)
            raise ConfigError(
                f"--video: {self._config.env_id} cannot be drawn here ({reason}); pip install 'shmppo[video]', and "
                "without a display MuJoCo needs EGL (apt-get install libegl1) or MUJOCO_GL=osmesa (libosmesa6)"
            ) from error
        film.add(frame, slot.frames_per_second)
