"""Evaluation: play whole episodes with fixed weights, several at a time, each in its own environment.

Episode k has its own seed, and always the same row of an inference batch if torch computes one, so its result does not
depend on which process plays it, or on how many episodes that process plays.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from shmppo.config.extensions import evaluation_flags
from shmppo.config.train_config import TrainConfig
from shmppo.envs.backends import backend_of
from shmppo.envs.episode_info import info_row
from shmppo.envs.schedule import Options, read_options
from shmppo.envs.spec import EnvSpec
from shmppo.envs.vector_env import FIRST_INDEX, VectorEnv
from shmppo.errors import EnvError, ShmppoError
from shmppo.models.actor_critic import ActorCritic
from shmppo.parallel.shared_buffers import SharedBuffers
from shmppo.sampling.actor import Actor
from shmppo.utils.rng import ACTION_NOISE, keyed_generator

EPISODES_AT_ONCE = 64
MAX_STEPS = 100_000
"""Steps after which an episode is stopped, so that the evaluation of an endless environment ends."""

AfterStep = Callable[[VectorEnv, int, int, np.ndarray], None]
"""Called when a batch of episodes begins, and after each of its steps: with the environments of the batch, the number
of its episodes that have ended, the number of its steps so far, and the recurrent states [columns, S] with which the
policy will act, which it may change."""


class EpisodeResult(NamedTuple):
    """One episode."""

    episode_return: float
    """Undiscounted return."""
    length: int
    """Number of steps. 0: the episode failed, and --skip-bad-episodes is given."""
    stopped: bool
    """True if the episode was stopped at the maximum number of steps. Its return counts these steps only."""
    info: Mapping[str, float]
    """The numbers of `info` that the episode has, by the name of the metric, `info/KEY`."""


class Others:
    """Acts in evaluations for columns that the policy does not act for. An extension may have a subclass."""

    def begin(self, envs: VectorEnv, seed: int) -> None:
        """Begin an episode in every environment."""

    def act(self, actions: list[Any]) -> None:
        """Replace actions of the policy, one per column. None: the episode has ended."""

    def end(self, column: int) -> None:
        """Called when the episode of a column has ended. It may begin again."""


class EpisodePlayer:
    """Plays episodes with a model. The environments of the last batch are kept for the next call."""

    def __init__(
        self,
        config: TrainConfig,
        task: EnvSpec,
        model: ActorCritic,
        *,
        stochastic: bool = False,
        max_steps: int = MAX_STEPS,
        render_mode: str | None = None,
        after_step: AfterStep | None = None,
        recorder: Any = None,
        others: Others | None = None,
    ) -> None:
        """Create a player that has no environments yet.

        Args:
            config: with the seed of the episodes.
            model: the network. Each batch of episodes copies its weights.
            stochastic: whether to sample actions. Otherwise the policy takes the most likely ones.
            max_steps: steps after which an episode is stopped.
            render_mode: Gymnasium's render mode. None: no rendering.
            recorder: records the episodes. None: they are not recorded.
            others: acts beside the policy. None: what the options of the run say.
        """
        self._recorder, self._others = recorder, others or evaluation_flags().others(config)
        self._config = dataclasses.replace(config, rank=0, ranks=1)  # the seeds do not depend on the ranks
        self._task, self._model = task, model
        self._stochastic, self._max_steps = stochastic, max_steps
        self._render_mode, self._after_step = render_mode, after_step
        self._rows = config.columns_per_env
        # As many environments as a worker has in training: some processes can hold only one simulator.
        of_worker = -(-config.num_envs // max(config.num_workers, 1))
        one_window = config.env_kwargs.get("render_mode") == "human"
        self._at_once = 1 if one_window else min(EPISODES_AT_ONCE, of_worker)
        self._envs: VectorEnv | None = None

    def play(
        self, episodes: range, obs_mean: np.ndarray, obs_scale: np.ndarray, options: Options | None
    ) -> list[EpisodeResult]:
        """Play episodes, and return their results.

        Args:
            episodes: their numbers, from 0.
            obs_mean, obs_scale: [D], statistics that normalize observations, see `Actor.load`.
            options: of the resets. None: no options.

        Raises:
            EnvError: if an environment raises. Its index is the number of the episode.
        """
        results: list[EpisodeResult] = []
        size, begin = self._at_once, episodes.start
        if self._config.kernel == "torch" or self._model.has_torch_encoders:  # one inference batch at a time
            size = min(size, max(1, self._config.inference_rows // self._rows))
            begin -= begin % size
        for first in range(begin, episodes.stop, size):
            low, high = max(first, episodes.start), min(first + size, episodes.stop)
            try:
                envs = self._environments(low, high)
                envs.options = options
                first_row, distribution = low * self._rows, self._task.distribution
                actor = Actor(self._config, self._model, distribution, envs.obs, low=first_row, active=envs.active)
                actor.load(obs_mean, obs_scale)
                results += self._play(envs, actor)
            except EnvError as error:
                raise EnvError(error.env_index - FIRST_INDEX, error.message, details=error.details) from error
        return results

    def _environments(self, low: int, high: int) -> VectorEnv:
        """Return the environments of episodes low … high − 1."""
        first, count = (FIRST_INDEX + low) * self._rows, (high - low) * self._rows
        kept = self._task.seeding == "episode"  # with other seeding, an episode depends on those before
        if self._envs is None or len(self._envs.handles) != count or not kept:
            self.close()
            backend = backend_of(self._task)
            self._envs = backend.make_played(self._config, self._task, first, first + count, self._render_mode)
        for index, handle in enumerate(self._envs.handles, first):
            handle.index = index
        return self._envs

    @property
    def has_others(self) -> bool:
        """Whether code of others acts beside the policy."""
        return self._others is not None

    @torch.inference_mode()
    def _play(self, envs: VectorEnv, actor: Actor) -> list[EpisodeResult]:
        """Play one episode in each environment. An environment whose episode has ended is not stepped any more."""
        count, distribution, rows = len(envs.handles), self._task.distribution, self._rows
        episodes = count // rows
        generators = [keyed_generator(self._config.seed, ACTION_NOISE, index=handle.index) for handle in envs.handles]
        envs.reset_all(0)
        if self._others is not None:
            self._others.begin(envs, self._config.seed)
        results: dict[int, EpisodeResult] = {}
        rewards, terminated, truncated = np.zeros(count), np.zeros(count, bool), np.zeros(count, bool)
        actions = np.zeros((count, distribution.action_size), np.float32)
        take_step = functools.partial(self._recorder.step, envs, actions) if self._recorder else envs.step
        for step in itertools.count():
            if step == self._max_steps:
                for k in set(range(episodes)) - results.keys():
                    length = int(envs.lengths[k * rows])
                    results[k] = EpisodeResult(envs.total(k * rows), length, True, envs.info_of(k))
            if self._after_step is not None:
                self._after_step(envs, len(results), step, actor.states)
            if len(results) == episodes:
                break
            if self._stochastic:
                actor.load_noise(np.stack([distribution.noise(generator, 1) for generator in generators], axis=1))
            actions[:] = actor.act(0 if self._stochastic else None)
            chosen = [None if i // rows in results else action for i, action in enumerate(distribution.to_env(actions))]
            if self._others is not None:
                self._others.act(chosen)
            ended = take_step(chosen, rewards, terminated, truncated)
            for end in ended:
                actor.states[end.i] = 0.0  # the episode of the column may begin again
                if self._others is not None:
                    self._others.end(end.i)
            for end in envs.reported(ended):
                results[end.i // rows] = EpisodeResult(end.episode_return, end.length, False, end.info)
        if self._recorder:
            self._recorder.end_batch(envs, [results[i].length for i in range(count)])
        return [results[k] for k in range(episodes)]

    def close(self) -> None:
        """Close the environments."""
        if self._envs is not None:
            self._envs.close()
            self._envs = None


@contextlib.contextmanager
def evaluation_errors(iteration: int) -> Iterator[None]:
    """Raise an EnvError as a ShmppoError, because a run reports an EnvError as the failure of a training episode."""
    try:
        yield
    except EnvError as error:
        text = f"the evaluation of iteration {iteration} failed in episode {error.env_index}: {error.message}"
        raise ShmppoError(text, details=error.details) from error


class EvaluationShare:
    """The part of the evaluations during training (--eval-every) that one process plays."""

    def __init__(
        self,
        config: TrainConfig,
        task: EnvSpec,
        model: ActorCritic,
        buffers: SharedBuffers,
        episodes: range,
        progress: np.ndarray,
    ) -> None:
        """Prepare the share. The first evaluation makes the environments.

        Args:
            model: the network that learns.
            episodes: the episodes of this process, among those of its rank.
            progress: [2], row of this process in `Control.progress`.
        """
        config = config.with_env_kwargs(config.eval_env_kwargs)
        self._buffers, self._own = buffers, slice(episodes.start, episodes.stop)
        self._keys = config.reported_info
        first = config.own_eval_episodes.start
        self._episodes = range(first + episodes.start, first + episodes.stop)

        def count_step(*_: object) -> None:  # a method would keep this object, and with it the shared memory
            progress[1] += 1

        self._player = EpisodePlayer(config, task, model, after_step=count_step)
        self._repeats = self._player.has_others  # the check of the environment does not execute the code of others

    def play(self, iteration: int) -> None:
        """Play the episodes with the current weights, and write the results to the shared buffers.

        If others act, the first evaluation repeats its episodes, because they may remember earlier ones.

        Args:
            iteration: number of finished iterations.

        Raises:
            ShmppoError: if an environment raises.
        """
        if not self._episodes:
            return
        published, results = self._buffers.published, self._buffers.evaluation
        with evaluation_errors(iteration):
            inputs = published.obs_mean, published.obs_scale, read_options(published.reset_options)
            played = self._player.play(self._episodes, *inputs)
            if self._repeats:
                results.unrepeated[self._own] = self._player.play(self._episodes, *inputs) != played
                self._repeats = False
        results.returns[self._own] = [result.episode_return for result in played]
        results.lengths[self._own] = [result.length for result in played]
        results.info[self._own] = [info_row(self._keys, result.info) for result in played]

    def close(self) -> None:
        """Close the environments."""
        self._player.close()
