"""Environments: how one is made, and the slot that keeps it known by its global index.

An episode is (seed, actions): every reset is seeded by a hash of (run seed, environment index, episode
number), so any episode can be produced again by any process.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import math
import struct
import zlib
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import gymnasium
import mujoco
import numpy as np

from shmppo.config import ConfigError, TrainConfig
from shmppo.contract import Seeding, check_contract
from shmppo.distributions import Distribution, distribution_for
from shmppo.masks import MaskedActions, first_allowed
from shmppo.observations import Leaf, ObservationSpec, PreviousStep, observation_spec
from shmppo.plugins import load_object, parse_call
from shmppo.snapshots import SnapshotSpec, put_back, snapshot_spec, take_snapshot
from shmppo.streams import episode_seed

log = logging.getLogger("shmppo.envs")

EXTRAS = {"ale_py": "atari", "cv2": "atari", "minigrid": "minigrid", "Box2D": "box2d", "shimmy": "dm_control"}
"""Modules that environments need, and the extra of this package that installs them."""

_DOUBLE = struct.Struct("d")


class EnvironmentFault(RuntimeError):
    """An environment raised or broke the Gymnasium contract; carries its global index."""

    def __init__(self, env_index: int, message: str) -> None:
        super().__init__(env_index, message)
        self.env_index = env_index
        self.message = message

    def __str__(self) -> str:
        return f"environment {self.env_index}: {self.message}"


@dataclass(frozen=True)
class Task:
    """What the trainer needs to know of an environment's spaces."""

    observation: ObservationSpec
    distribution: Distribution
    seeding: Seeding = "episode"
    snapshot: SnapshotSpec | None = None
    """Of environments that can be put back by themselves."""


def make_environment(config: TrainConfig, render_mode: str | None = None) -> gymnasium.Env:
    """One plain environment in its wrappers; its time limit truncates, nothing resets it automatically.

    Raises:
        ConfigError: if a wrapper cannot be found, or the name is that of something else than an environment.
        Exception: what making it raises.
    """
    # MuJoCo prints its warnings and drops MUJOCO_LOG.TXT in the working directory unless it is given a handler.
    mujoco.set_mju_user_warning(log.warning)
    env = _make_plain(config, render_mode)
    for text in config.wrappers:
        name, arguments = parse_call(text, "--wrappers")
        env = _wrapper(name)(env, **arguments)
    if not isinstance(env, gymnasium.Env):
        raise ConfigError(
            f"--env {config.env_id} makes {type(env).__name__}, not a gymnasium.Env; name what makes an environment"
        )
    if config.prev_action or config.prev_reward:
        env = PreviousStep(env, action=config.prev_action, reward=config.prev_reward)
    return MaskedActions(env, f"--env {config.env_id}") if config.action_masks else env


def _make_plain(config: TrainConfig, render_mode: str | None) -> gymnasium.Env:
    arguments = dict(config.env_kwargs) | ({} if render_mode is None else {"render_mode": render_mode})
    module, colon, name = config.env_id.partition(":")
    if colon:
        factory = getattr(importlib.import_module(module), name, None)  # ids such as "Pong-v5" are not attributes
        if callable(factory):
            return factory(**arguments)
    return gymnasium.make(config.env_id, disable_env_checker=True, **arguments)


def _wrapper(name: str) -> Any:
    if ":" in name:
        return load_object(name, "--wrappers")
    wrapper = getattr(gymnasium.wrappers, name, None)
    if wrapper is None:
        raise ConfigError(f"--wrappers {name}: gymnasium.wrappers has none of this name; name others as module:Wrapper")
    return wrapper


def _not_made(config: TrainConfig, error: Exception) -> ConfigError:
    """Why the environment could not be made, in one line that says what to install where that is the cause."""
    reason = str(error).splitlines()[0] if str(error) else repr(error)
    extra = next((extra for module, extra in EXTRAS.items() if module in reason), None)
    hint = f"; pip install 'shmppo[{extra}]'" if extra else ""
    return ConfigError(f"--env {config.env_id} could not be made: {reason}{hint}")


def inspect_task(config: TrainConfig) -> Task:
    """Make one environment, look at its spaces, close it.

    Raises:
        ConfigError: if it cannot be made, a space is not supported, an index to hide does not exist, or one step shows
            that it breaks Gymnasium's contract.
    """
    try:
        env = make_environment(config)
    except ConfigError:
        raise
    except Exception as error:  # whatever the environment's own code raises
        raise _not_made(config, error) from error
    where = f"--env {config.env_id}"
    try:
        observation = observation_spec(env.observation_space, where)
        if config.action_masks:
            observation = observation.with_mask()
            _try_mask(env, where)
        _check_hidden(config, observation.leaves[0])
        distribution = distribution_for(env.action_space, where, squash=config.squash_actions)
        act = partial(first_allowed, env.action_space) if config.action_masks else None
        seeding = check_contract(env, where, config.episode_seeding, act)
        return Task(observation, distribution, seeding, snapshot_spec(env, act))
    finally:
        env.close()


def _try_mask(env: gymnasium.Env, where: str) -> None:
    """Begin an episode, so that a mask that is missing is known before the run starts."""
    try:
        env.reset(seed=0)
    except Exception as error:
        raise ConfigError(f"--action-masks: {where} could not begin an episode: {error}") from error


def _check_hidden(config: TrainConfig, leaf: Leaf) -> None:
    """Indices to hide are those of the environment's own observation, which must be one vector: the first leaf."""
    if not config.hidden_indices:
        return
    if leaf.kind != "vector" or not set(leaf.keys) <= {"obs"}:  # "obs" within what our own wrappers show
        raise ConfigError(f"--hide-obs hides in one vector, which {config.env_id} does not observe; leave it out")
    beyond = [i for i in config.hidden_indices if not 0 <= i < leaf.numbers]
    if beyond:
        raise ConfigError(
            f"--hide-obs names {beyond} but {config.env_id} observes {leaf.numbers} numbers; "
            f"use indices 0 … {leaf.numbers - 1}"
        )


class EnvironmentSlot:
    """Environment n of the run, for ever: its episodes and their seeds."""

    def __init__(self, config: TrainConfig, task: Task, index: int, render_mode: str | None = None) -> None:
        self.index = index
        self.episode = 0
        self._config = config
        self._task = task
        self._render_mode = render_mode
        self.make()

    def make(self) -> None:
        """Make the environment, in place of the one before if there was one. Raises EnvironmentFault."""
        try:
            self._env = make_environment(self._config, self._render_mode)
        except Exception as error:
            raise EnvironmentFault(self.index, f"could not be made: {error}") from error
        self.step = self._env.step
        self._seeded = self._task.seeding != "never"  # whether the next reset is

    def begin(self, episode: int) -> Any:
        """Reset to the start of an episode; returns its first observation."""
        self.episode = episode
        stream = self._config.first_env + self.index  # global: no two ranks share one
        seed = episode_seed(self._config.seed, stream, episode) if self._seeded else None
        self._seeded = self._task.seeding == "episode"
        try:
            observation, _ = self._env.reset() if seed is None else self._env.reset(seed=seed)
        except Exception as error:
            rule = "reset must return (observation, info)"
            raise EnvironmentFault(self.index, f"reset(seed={seed}) raised {error!r}; {rule}") from error
        return observation

    def render(self) -> Any:
        """What the environment draws of its present state."""
        return self._env.render()

    @property
    def frames_per_second(self) -> float:
        """Frames per second of a film that shows every step at the environment's own pace."""
        return float(self._env.metadata.get("render_fps", 30))

    def keep(self, snapshot: np.ndarray) -> None:
        """Write what `put_back` needs, uint8 [bytes], for environments that offer snapshots."""
        if self._task.snapshot is not None:
            take_snapshot(self._env, self._task.snapshot, snapshot)

    def put_back(self, snapshot: np.ndarray, length: int) -> None:
        """Bring the episode just begun to where it was kept, after `length` steps."""
        assert self._task.snapshot is not None
        put_back(self._env, self._task.snapshot, snapshot, length)

    def close(self) -> None:
        self._env.close()


class Ended(NamedTuple):
    """An episode that ended with a step."""

    i: int
    """Position in the batch."""
    final: tuple[np.ndarray, ...]
    """Its last observation, each leaf as stored, hidden indices 0."""
    terminated: bool
    """False where it was only truncated, so that its value goes on."""
    bad: bool
    """It was given up at a step that failed: that step has no outcome, and the episode counts in no statistics."""
    total: float
    """Undiscounted return."""
    length: int


class EnvironmentBatch:
    """A contiguous range of environments, stepped one after the other; those that end begin their next episode.

    Attributes:
        obs: [n, …] of each leaf, the present observations with hidden indices 0. The one memory that steps write to:
            environments that reuse their own buffer cannot change it later.
        returns, lengths: return and length so far of each episode in progress.
        hashes: a running CRC-32 over each episode's raw observations, before anything is hidden, and rewards.
    """

    def __init__(self, config: TrainConfig, task: Task, low: int, high: int, render_mode: str | None = None) -> None:
        self.slots = [EnvironmentSlot(config, task, n, render_mode) for n in range(low, high)]
        self.observation = observation = task.observation
        self._skip_bad = config.skip_bad_episodes
        self.obs = tuple(np.zeros((len(self.slots), *leaf.shape), leaf.dtype) for leaf in observation.leaves)
        self.returns = [0.0] * len(self.slots)
        self.lengths = [0] * len(self.slots)
        self.hashes = [0] * len(self.slots)
        self._rows = list(zip(*self.obs, strict=True))
        self._vectors = [obs for obs in self.obs if obs.dtype == np.float32]
        self._see = self._see_vector if observation.plain else self._see_leaves
        self._hidden = list(config.hidden_indices)
        self._steps = [slot.step for slot in self.slots]

    def begin(self, episode: int) -> None:
        """Begin the same episode everywhere."""
        for i in range(len(self.slots)):
            self.begin_one(i, episode)

    def step(self, actions: list, rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray) -> list[Ended]:
        """Step every environment with its action; fills the three rows [n] and `obs`.

        Raises:
            EnvironmentFault: naming the environment that raised or broke the contract.
        """
        ended: list[Ended] = []
        row_rewards, row_terminated, row_truncated = [], [], []
        for i, action in enumerate(actions):
            try:
                reward, terminates, truncates = self._advance(i, action)
                if terminates or truncates:
                    ended.append(self._end(i, terminates))
            except EnvironmentFault as fault:
                reward, terminates, truncates = 0.0, False, True
                ended.append(self._give_up(i, fault))
            row_rewards.append(reward)
            row_terminated.append(terminates)
            row_truncated.append(truncates)
        for obs in self._vectors:
            if not np.isfinite(obs).all():
                for i in np.flatnonzero(~np.isfinite(obs).all(axis=1)).tolist():
                    broken = self._fault(i, f"observed {obs[i].tolist()}: not finite")
                    row_rewards[i], row_terminated[i], row_truncated[i] = 0.0, False, True
                    ended.append(self._give_up(i, broken))
        if self._hidden:
            self.obs[0][:, self._hidden] = 0.0
        rewards[:] = row_rewards
        terminated[:] = row_terminated
        truncated[:] = row_truncated
        return ended

    def replay(self, i: int, number: int, actions: list, expected_hash: int) -> bool:
        """Bring one environment to where an episode in progress was; whether it got there.

        Where the hash differs (an environment with a history of its own, another build of the simulator) the episode
        is given up and the next one begun.
        """
        self.begin_one(i, number)
        try:
            for action in actions:
                _, terminated, truncated = self._advance(i, action)
                if terminated or truncated:
                    break
        except EnvironmentFault as fault:
            self._give_up(i, fault)
            return False
        self.obs[0][i, self._hidden] = 0.0
        if self.lengths[i] == len(actions) and self.hashes[i] == expected_hash:
            return True
        self.begin_one(i, number + 1)
        return False

    def _advance(self, i: int, action: Any) -> tuple[float, bool, bool]:
        """One step of one environment; returns (reward, terminated, truncated)."""
        try:
            observation, reward, terminated, truncated, _ = self._steps[i](action)
            number = float(reward)
            self._see(i, observation, zlib.crc32(_DOUBLE.pack(number), self.hashes[i]))
        except Exception as error:
            rule = "step must return (observation, reward, terminated, truncated, info)"
            raise self._fault(i, f"step raised {error!r}; {rule}") from error
        if not math.isfinite(number):
            raise self._fault(i, f"rewarded {number}: not finite")
        self.returns[i] += number
        self.lengths[i] += 1
        return number, terminated, truncated

    def _fault(self, i: int, message: str) -> EnvironmentFault:
        slot = self.slots[i]
        return EnvironmentFault(slot.index, f"{message} (episode {slot.episode}, after {self.lengths[i]} steps)")

    def _see_vector(self, i: int, observation: Any, hashed: int) -> None:
        """Take over an observation that is one vector, and its hash."""
        (row,) = self._rows[i]
        if getattr(observation, "shape", None) != row.shape:  # assignment alone would broadcast a single number
            shape = np.shape(observation)
            if shape != row.shape:
                raise ValueError(f"observation of shape {shape}, but its space says {row.shape}")
        row[:] = observation
        self.hashes[i] = zlib.crc32(np.ascontiguousarray(observation).data, hashed)

    def _see_leaves(self, i: int, observation: Any, hashed: int) -> None:
        """Take over an observation leaf by leaf, and the hash of all of them."""
        for leaf, row in zip(self.observation.leaves, self._rows[i], strict=True):
            value = leaf.of(observation)
            row[...] = leaf.stored(value)
            hashed = zlib.crc32(np.ascontiguousarray(value).data, hashed)
        self.hashes[i] = hashed

    def begin_one(self, i: int, episode: int) -> None:
        """Begin an episode of one environment."""
        self._see(i, self.slots[i].begin(episode), 0)
        self.obs[0][i, self._hidden] = 0.0
        self.returns[i] = 0.0
        self.lengths[i] = 0

    def _end(self, i: int, terminated: bool) -> Ended:
        """Keep what is left of the episode, then begin the next."""
        final = tuple(row.copy() for row in self._rows[i])
        final[0][self._hidden] = 0.0
        for part in final:
            if part.dtype == np.float32 and not np.isfinite(part).all():
                raise self._fault(i, f"ended with the observation {part.tolist()}: not finite")
        ended = Ended(i, final, bool(terminated), False, self.returns[i], self.lengths[i])
        self.begin_one(i, self.slots[i].episode + 1)
        return ended

    def _give_up(self, i: int, fault: EnvironmentFault) -> Ended:
        """Go on after a step that failed, with the next episode of an environment made anew.

        Raises:
            EnvironmentFault: `fault`, unless the configuration says to skip bad episodes.
        """
        if not self._skip_bad:
            raise fault
        log.warning("%s; skipped", fault)
        slot = self.slots[i]
        with contextlib.suppress(Exception):  # whatever state it is in
            slot.close()
        slot.make()
        self._steps[i] = slot.step
        self.begin_one(i, slot.episode + 1)
        return Ended(i, (), False, True, 0.0, 0)

    def close(self) -> None:
        for slot in self.slots:
            slot.close()
