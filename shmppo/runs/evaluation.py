"""Evaluation: play whole episodes with a trained policy, several at a time, and record videos of them.

The statistics that normalize observations do not change meanwhile.
"""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from shmppo.envs.vector_env import SyncVectorEnv
from shmppo.errors import ConfigError, EnvError
from shmppo.runs.policy import TrainedPolicy, load_trained, single_batch_actor
from shmppo.runs.video import VideoRecorder, render_without_display
from shmppo.utils.rng import action_noise_generator

FIRST_INDEX = 2**40  # first environment index; training uses smaller indices, and so other random streams


class EpisodeResult(NamedTuple):
    """One finished episode."""

    episode_return: float
    """Undiscounted return."""
    length: int
    """Number of steps."""


def evaluate(
    run_dir: Path, *, episodes: int = 20, seed: int = 1, stochastic: bool = False, video: Path | None = None
) -> list[float]:
    """Play episodes with the policy of a run's newest checkpoint.

    Args:
        run_dir: directory of the run.
        episodes: number of episodes.
        seed: seed of the episodes and of sampled actions.
        stochastic: whether to sample actions. Otherwise the policy takes the most likely ones.
        video: mp4 or gif file in which all episodes are recorded. None: no video.

    Returns:
        Undiscounted returns [episodes].

    Raises:
        ConfigError: if there is no usable checkpoint, if episodes < 1, or if the video cannot be recorded.
        EnvError: if an environment raises.
    """
    if episodes < 1:
        raise ConfigError(f"--episodes is {episodes}; it must be at least 1")
    with nullcontext() if video is None else VideoRecorder(video) as recorder:
        trained = load_trained(run_dir)
        results = play_episodes(trained, episodes=episodes, seed=seed, stochastic=stochastic, video=recorder)
    return [result.episode_return for result in results]


def play_episodes(
    trained: TrainedPolicy,
    *,
    episodes: int,
    seed: int,
    stochastic: bool = False,
    video: VideoRecorder | None = None,
    recorded: int | None = None,
) -> list[EpisodeResult]:
    """Play episodes, each in its own environment.

    Args:
        trained: the policy.
        episodes: number of episodes.
        seed: seed of the episodes and of sampled actions.
        stochastic: whether to sample actions. Otherwise the policy takes the most likely ones.
        video: where to record episodes. None: no video.
        recorded: number of episodes to record, which are played one by one. None: all.

    Returns:
        One result per episode, in the order of environments.

    Raises:
        ConfigError: if the environment cannot render, or if the video cannot be written.
        EnvError: if an environment raises.
    """
    config = dataclasses.replace(trained.config, seed=seed, skip_bad_episodes=False)
    rows = config.inference_rows
    results: list[EpisodeResult] = []
    recorded = episodes if recorded is None else recorded
    while len(results) < episodes:
        recorder = video if len(results) < recorded else None
        count = 1 if recorder else min(rows, episodes - len(results))
        player = _Player(dataclasses.replace(trained, config=config), stochastic, recorder)
        results += player.play(FIRST_INDEX + len(results), count)
    return results


class _Player:
    """Plays the first episode of some environments, in one inference batch."""

    def __init__(self, trained: TrainedPolicy, stochastic: bool, video: VideoRecorder | None) -> None:
        self._trained = trained
        self._stochastic = stochastic
        self._video = video

    def play(self, first: int, count: int) -> list[EpisodeResult]:
        """Play the first episode of the environments with the global indices first … first + count − 1."""
        render_mode = None
        if self._video is not None:
            render_without_display()
            render_mode = "rgb_array"
        envs = SyncVectorEnv(self._trained.config, self._trained.task, first, first + count, render_mode)
        try:
            return self._play(envs)
        except EnvError as error:
            raise EnvError(error.env_index - FIRST_INDEX, error.message) from error
        finally:
            envs.close()

    @torch.inference_mode()
    def _play(self, envs: SyncVectorEnv) -> list[EpisodeResult]:
        """Play one episode in each environment. An environment whose episode has ended is not stepped any more."""
        count, distribution = len(envs.handles), self._trained.task.distribution
        generators = [action_noise_generator(self._trained.config.seed, handle.index, 0) for handle in envs.handles]
        actor = single_batch_actor(self._trained, envs.obs)
        envs.reset_all(0)
        results: dict[int, EpisodeResult] = {}
        rewards, terminated, truncated = np.zeros(count), np.zeros(count, bool), np.zeros(count, bool)
        actions = np.zeros((count, distribution.action_size), np.float32)
        params, values = np.zeros((count, distribution.num_params), np.float32), np.zeros(count, np.float32)
        while len(results) < count:
            if self._video is not None:
                self._record(envs, self._video)
            if self._stochastic:
                actor.load_noise(np.stack([distribution.noise(generator, 1) for generator in generators], axis=1))
            actor.act(actions, params, values, 0 if self._stochastic else None)
            chosen = [None if i in results else action for i, action in enumerate(distribution.to_env(actions))]
            for end in envs.step(chosen, rewards, terminated, truncated):
                results[end.i] = EpisodeResult(end.episode_return, end.length)
        return [results[i] for i in range(count)]

    def _record(self, envs: SyncVectorEnv, video: VideoRecorder) -> None:
        """Append the current frame of the first environment to the video."""
        handle = envs.handles[0]
        try:
            frame = handle.render()
        except Exception as error:  # drivers and libraries raise many types
            reason = " ".join(str(error).split()) or repr(error)
            raise ConfigError(
                f"--video: {self._trained.config.env_id} cannot be rendered here ({reason}); pip install "
                "'shmppo[video]', and without a display MuJoCo needs EGL (apt-get install libegl1) or MUJOCO_GL=osmesa "
                "(libosmesa6)"
            ) from error
        video.add(frame, handle.frames_per_second)
