"""Evaluation: play whole episodes with a trained policy, several at a time, and record videos of them.

The statistics that normalize observations do not change meanwhile.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from shmppo.config.trust import Trusted
from shmppo.envs.sync_vector_env import GymnasiumHandle, SyncVectorEnv
from shmppo.errors import ConfigError, EnvError
from shmppo.policies.policy import TrainedPolicy, load_trained, single_batch_actor
from shmppo.policies.video import VideoRecorder, render_without_display, simplify_mujoco, steps_per_frame
from shmppo.utils.rng import action_noise_generator
from shmppo.utils.torch_utils import torch_threads

FIRST_INDEX = 2**40  # first environment index; training uses smaller indices, and so other random streams
MAX_STEPS = 100_000
"""Steps after which an episode is stopped, so that the evaluation of an endless environment ends."""

Progress = Callable[[int, int], None]
"""Called after each step, with the number of finished episodes and the number of steps of all episodes."""


class EpisodeResult(NamedTuple):
    """One episode."""

    episode_return: float
    """Undiscounted return."""
    length: int
    """Number of steps."""
    stopped: bool
    """True if the episode was stopped at the maximum number of steps. Its return counts these steps only."""


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation."""

    iteration: int
    """Finished iterations of the policy."""
    episodes: list[EpisodeResult]

    @property
    def returns(self) -> list[float]:
        """Undiscounted returns [episodes]."""
        return [episode.episode_return for episode in self.episodes]

    @property
    def lengths(self) -> list[int]:
        """Numbers of steps [episodes]."""
        return [episode.length for episode in self.episodes]

    @property
    def stopped(self) -> int:
        """Number of episodes that were stopped at the maximum number of steps."""
        return sum(episode.stopped for episode in self.episodes)


def evaluate(
    run_dir: Path,
    *,
    checkpoint: str | int | Path = "last",
    episodes: int = 20,
    seed: int = 1,
    env_kwargs: Mapping[str, Any] | None = None,
    stochastic: bool = False,
    max_steps: int = MAX_STEPS,
    video: Path | None = None,
    progress: Progress | None = None,
    trust: Trusted = (),
) -> Evaluation:
    """Play episodes with the policy of a run. Torch uses one thread meanwhile.

    Args:
        run_dir: directory of the run.
        checkpoint: "last", "best", an iteration, or the path of a checkpoint.
        episodes: number of episodes.
        seed: seed of the episodes and of sampled actions.
        env_kwargs: arguments of the environment that replace or extend those of the run.
        stochastic: whether to sample actions. Otherwise the policy takes the most likely ones.
        max_steps: steps after which an episode is stopped.
        video: mp4 or gif file in which all episodes are recorded. None: no video.
        progress: called after each step.
        trust: modules of which the run may import code, as in `shmppo.load_policy`.

    Raises:
        ConfigError: if there is no such checkpoint, if the run names code that is not trusted, if a number is below 1,
            or if the video cannot be recorded.
        EnvError: if an environment raises.
    """
    for flag, number in (("--episodes", episodes), ("--max-steps", max_steps)):
        if number < 1:
            raise ConfigError(f"{flag} is {number}; it must be at least 1")
    # The matrices of one inference batch are so small that more threads only wait for each other.
    with torch_threads(1), nullcontext() if video is None else VideoRecorder(video) as recorder:
        trained = load_trained(run_dir, checkpoint, trust, env_kwargs)
        results = play_episodes(
            trained, episodes=episodes, seed=seed, stochastic=stochastic, max_steps=max_steps, video=recorder,
            progress=progress,
        )  # fmt: skip
    return Evaluation(trained.iteration, results)


def play_episodes(
    trained: TrainedPolicy,
    *,
    episodes: int,
    seed: int,
    stochastic: bool = False,
    max_steps: int = MAX_STEPS,
    video: VideoRecorder | None = None,
    progress: Progress | None = None,
) -> list[EpisodeResult]:
    """Play episodes, each in its own environment.

    Args:
        trained: the policy.
        episodes: number of episodes.
        seed: seed of the episodes and of sampled actions.
        stochastic: whether to sample actions. Otherwise the policy takes the most likely ones.
        max_steps: steps after which an episode is stopped.
        video: where to record the episodes, which are then played one by one. None: no video.
        progress: called after each step.

    Returns:
        One result per episode, in the order of environments.

    Raises:
        ConfigError: if the environment cannot render, or if the video cannot be written.
        EnvError: if an environment raises.
    """
    config = dataclasses.replace(trained.config, seed=seed, skip_bad_episodes=False)
    player = _Player(dataclasses.replace(trained, config=config), stochastic, max_steps, video, progress)
    while left := episodes - len(player.results):
        player.play(1 if video else min(config.inference_rows, left))
    return player.results


class _Player:
    """Plays the first episode of each environment, a few at a time in one inference batch. results: so far."""

    def __init__(
        self,
        trained: TrainedPolicy,
        stochastic: bool,
        max_steps: int,
        video: VideoRecorder | None,
        progress: Progress | None,
    ) -> None:
        self.results: list[EpisodeResult] = []
        self._trained, self._stochastic, self._max_steps = trained, stochastic, max_steps
        self._video, self._progress = video, progress
        self._steps = 0

    def play(self, count: int) -> None:
        """Play the next `count` episodes."""
        first = FIRST_INDEX + len(self.results)
        if self._video is not None:
            render_without_display()
        render_mode = None if self._video is None else "rgb_array"
        envs = SyncVectorEnv(self._trained.config, self._trained.task, first, first + count, render_mode)
        envs.iteration = max(1, self._trained.iteration)
        try:
            self.results += self._play(envs)
        except EnvError as error:
            raise EnvError(error.env_index - FIRST_INDEX, error.message) from error
        finally:
            envs.close()

    @torch.inference_mode()
    def _play(self, envs: SyncVectorEnv) -> list[EpisodeResult]:
        """Play one episode in each environment. An environment whose episode has ended is not stepped any more."""
        count, config, distribution = len(envs.handles), self._trained.config, self._trained.task.distribution
        generators = [action_noise_generator(config.seed, handle.index, 0) for handle in envs.handles]
        actor = single_batch_actor(self._trained, envs.obs)
        envs.reset_all(0)
        results: dict[int, EpisodeResult] = {}
        rewards, terminated, truncated = np.zeros(count), np.zeros(count, bool), np.zeros(count, bool)
        actions = np.zeros((count, distribution.action_size), np.float32)
        params, values = np.zeros((count, distribution.num_params), np.float32), np.zeros(count, np.float32)
        recording = None if self._video is None else _Recording(envs.handles[0], self._video, config.env_id)
        step = 0
        while len(results) < count:
            if recording is not None:
                recording.add(step)
            if self._stochastic:
                actor.load_noise(np.stack([distribution.noise(generator, 1) for generator in generators], axis=1))
            actor.act(actions, params, values, 0 if self._stochastic else None)
            chosen = [None if i in results else action for i, action in enumerate(distribution.to_env(actions))]
            step += 1
            self._steps += count - len(results)
            for end in envs.step(chosen, rewards, terminated, truncated):
                results[end.i] = EpisodeResult(end.episode_return, end.length, False)
            if step == self._max_steps:
                for i in set(range(count)) - results.keys():
                    results[i] = EpisodeResult(float(envs.returns[i]), int(envs.lengths[i]), True)
            if self._progress is not None:
                self._progress(len(self.results) + len(results), self._steps)
        return [results[i] for i in range(count)]


class _Recording:
    """The video of one environment."""

    def __init__(self, handle: GymnasiumHandle, video: VideoRecorder, env_id: str) -> None:
        """Prepare the environment for rendering.

        Args:
            handle: the environment, whose render mode is rgb_array.
            video: receives the frames.
            env_id: name of the environment for the error message.
        """
        self._handle, self._video, self._env_id = handle, video, env_id
        self._stride = steps_per_frame(handle.frames_per_second)
        simplify_mujoco(handle.unwrapped)

    def add(self, step: int) -> None:
        """Append the current frame to the video, if the video has a frame for this step.

        Raises:
            ConfigError: if the environment cannot render, or if the video cannot be written.
        """
        if step % self._stride:
            return
        try:
            frame = self._handle.render()
        except Exception as error:  # drivers and libraries raise many types
            reason = " ".join(str(error).split()) or repr(error)
            raise ConfigError(
                f"--video: {self._env_id} cannot be rendered here ({reason}); pip install "
                "'shmppo[video]', and without a display MuJoCo needs EGL (apt-get install libegl1) or MUJOCO_GL=osmesa "
                "(libosmesa6)"
            ) from error
        self._video.add(frame, self._handle.frames_per_second / self._stride)
