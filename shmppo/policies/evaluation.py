"""Evaluation: play whole episodes with a trained policy, several at a time, and record videos of them.

The statistics that normalize observations do not change meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any, cast

import numpy as np

from shmppo.config.checks import require
from shmppo.config.extensions import evaluation_flags
from shmppo.config.trust import Trusted
from shmppo.envs.backends import backend_of
from shmppo.envs.schedule import Options
from shmppo.envs.vector_env import RenderedHandle, VectorEnv
from shmppo.errors import ConfigError, ShmppoError
from shmppo.policies.policy import TrainedPolicy, load_trained
from shmppo.policies.video import MAX_FPS, VideoRecorder, render_without_display, simplify_mujoco
from shmppo.sampling.evaluation import MAX_STEPS, EpisodePlayer, EpisodeResult
from shmppo.utils.files import user_path
from shmppo.utils.global_generators import NAMES, kept_generators
from shmppo.utils.torch_utils import numeric_modes
from shmppo.utils.user_code import describe_error

Progress = Callable[[int, int], None]
"""Called after each step, with the number of finished episodes and the number of steps of all episodes."""
ChangeStates = Callable[[VectorEnv, int, np.ndarray], None]
"""Called before each step of a batch of episodes: with its environments, the number of its steps so far, and the
recurrent states [columns, S] with which the policy will act. It may change the states."""


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation."""

    iteration: int
    """Finished iterations of the policy."""
    episodes: list[EpisodeResult]
    options: Options | None = None
    """Options of `reset` (--env-schedule). None: no options."""

    failed: int = 0
    """Number of further episodes that have failed, with --skip-bad-episodes of the run."""

    @classmethod
    def of(cls, trained: TrainedPolicy, results: Sequence[EpisodeResult]) -> Evaluation:
        """Return the result of played episodes. Raises ShmppoError if all of them have failed."""
        valid = [result for result in results if result.length]
        if not valid:
            raise ShmppoError(f"all {len(results)} episodes have failed; see the log for the reasons")
        return cls(trained.iteration, valid, trained.options, len(results) - len(valid))

    @property
    def info(self) -> dict[str, list[float | None]]:
        """Numbers of `info` [episodes] by the name of the metric, `info/KEY`. None: the episode does not have it."""
        names = dict.fromkeys(name for episode in self.episodes for name in episode.info)
        return {name: [episode.info.get(name) for episode in self.episodes] for name in names}

    @property
    def info_means(self) -> dict[str, float]:
        """Means of `info` over the episodes that have the number."""
        return {name: fmean(value for value in values if value is not None) for name, values in self.info.items()}

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
    run_dir: str | Path,
    *,
    checkpoint: str | int | Path = "last",
    episodes: int = 20,
    seed: int = 1,
    env_kwargs: Mapping[str, Any] = MappingProxyType({}),
    stochastic: bool = False,
    max_steps: int = MAX_STEPS,
    video: str | Path | None = None,
    progress: Progress | None = None,
    trust: Trusted = (),
    change_states: ChangeStates | None = None,
    **added_flags: Any,
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
        trust: modules of which the run may import code, as in `shmppo.resume`.
        change_states: called before each step of a batch of episodes, with its environments, the number of its steps so
            far, and the recurrent states [columns, S], which it may change. None: the policy keeps its states.
        added_flags: values of the flags that extensions add to `shmppo evaluate`.

    Raises:
        ConfigError: if there is no such checkpoint, if the run names code that is not trusted, if a number is below 1,
            or if a file cannot be written.
        EnvError: if an environment raises.
    """
    for flag, number in (("--episodes", episodes), ("--max-steps", max_steps)):
        require(number >= 1, f"{flag} is {number}; it must be at least 1")
    flags = evaluation_flags()(**added_flags)  # before the user's code may change the working directory
    recorder = flags.recorder()
    # The matrices of one inference batch are so small that more threads only wait for each other.
    with numeric_modes(), nullcontext() if video is None else VideoRecorder(user_path(video, "--video")) as film:
        trained = load_trained(run_dir, checkpoint, trust, env_kwargs)
        arguments = {"trust": trust, "env_kwargs": env_kwargs, "stochastic": stochastic, **added_flags}
        trained = flags.prepare(trained, arguments)
        results = play_episodes(
            trained, episodes=episodes, seed=seed, stochastic=stochastic, max_steps=max_steps, video=film,
            progress=progress, recorder=recorder, change_states=change_states,
        )  # fmt: skip
    if recorder is not None:
        recorder.save(trained.config, trained.task)
    return Evaluation.of(trained, results)


def play_episodes(
    trained: TrainedPolicy,
    *,
    episodes: int,
    seed: int,
    stochastic: bool = False,
    max_steps: int = MAX_STEPS,
    video: VideoRecorder | None = None,
    progress: Progress | None = None,
    recorder: Any = None,
    change_states: ChangeStates | None = None,
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
        recorder: records the episodes. None: they are not recorded.
        change_states: see `ChangeStates`. None: the policy keeps its states.

    Returns:
        One result per episode, in the order of environments.

    Raises:
        ConfigError: if the environment cannot render, or if the video cannot be written.
        EnvError: if an environment raises.
    """
    config = replace(trained.config, seed=seed)
    steps = finished = 0

    def after_step(envs: VectorEnv, ended: int, step: int, states: np.ndarray) -> None:
        nonlocal steps, finished
        left = len(envs.handles) // config.columns_per_env - ended
        if video is not None and left:
            film_step(cast(RenderedHandle, envs.handles[0]), video, config.env_id, step)
        if change_states is not None:
            change_states(envs, step, states)
        steps += left
        if progress is not None:
            progress(finished + ended, steps)
        if not left:
            finished += ended

    if video is not None:
        render_without_display()
    task = trained.task
    if backend_of(task).owns_generators:  # each may be used for the first time in these episodes
        task = task.with_generators(NAMES)
    player = EpisodePlayer(
        config, task, trained.model, stochastic=stochastic, max_steps=max_steps,
        render_mode=None if video is None else "rgb_array", after_step=after_step, recorder=recorder,
        others=trained.others,
    )  # fmt: skip
    batches = [range(k, k + 1) for k in range(episodes)] if video else [range(episodes)]
    with kept_generators(), closing(player):
        played = [player.play(batch, trained.obs_mean, trained.obs_scale, trained.options) for batch in batches]
    return [result for results in played for result in results]


def record_episode(trained: TrainedPolicy, file: Path, *, stochastic: bool = False, max_steps: int = MAX_STEPS) -> None:
    """Record the first episode with the seed of the run. For arguments and errors, see `play_episodes`."""
    with VideoRecorder(file) as video:
        seed = trained.config.seed
        play_episodes(trained, episodes=1, seed=seed, stochastic=stochastic, max_steps=max_steps, video=video)


def film_step(handle: RenderedHandle, video: VideoRecorder, env_id: str, step: int) -> None:
    """Append the current frame of an environment to a video, if the video has a frame for this step.

    Raises:
        ConfigError: if the environment cannot render, or if the video cannot be written.
    """
    if not step:
        simplify_mujoco(handle.env.unwrapped)
    stride = max(1, math.ceil(handle.frames_per_second / MAX_FPS))
    if step % stride:
        return
    try:
        frame = handle.env.render()
    except Exception as error:  # drivers and libraries raise many types
        raise ConfigError(
            f"{env_id} cannot be rendered here ({describe_error(error)}); write its method render, or pip "
            "install 'shmppo[video]'; without a display, MuJoCo needs EGL (apt-get install libegl1) or "
            "MUJOCO_GL=osmesa (libosmesa6)"
        ) from error
    video.add(frame, handle.frames_per_second / stride)
