"""Environments: how one is made, and the slot that keeps it known by its global index.

An episode is (seed, actions): every reset is seeded by a hash of (run seed, environment index, episode
number), so any episode can be produced again by any process.
"""

from __future__ import annotations

import importlib
import logging
from functools import partial
from typing import Any

import gymnasium
import mujoco

from shmppo.config.plugins import load_object, parse_call
from shmppo.config.train_config import TrainConfig
from shmppo.envs.checker import check_contract
from shmppo.envs.envpool import SingleEnvPoolEnv
from shmppo.envs.snapshots import snapshot_spec
from shmppo.envs.spec import Task
from shmppo.envs.wrappers import ActionMaskWrapper, PreviousStepWrapper, first_allowed
from shmppo.errors import ConfigError
from shmppo.models.distributions import distribution_for
from shmppo.models.observations import Leaf, observation_spec

log = logging.getLogger(__name__)

EXTRAS = {"ale_py": "atari", "cv2": "atari", "minigrid": "minigrid", "Box2D": "box2d", "shimmy": "dm_control"}
"""Modules that environments need, and the extra of this package that installs them."""


def make_environment(config: TrainConfig, render_mode: str | None = None) -> gymnasium.Env:
    """One plain environment in its wrappers; its time limit truncates, nothing resets it automatically.

    Raises:
        ConfigError: if a wrapper cannot be found, or the name is that of something else than an environment.
        Exception: what making it raises.
    """
    if config.env_backend == "envpool":
        return SingleEnvPoolEnv(config, render_mode)
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
        env = PreviousStepWrapper(env, action=config.prev_action, reward=config.prev_reward)
    return ActionMaskWrapper(env, f"--env {config.env_id}") if config.action_masks else env


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
        wanted = "once" if config.env_backend == "envpool" else config.episode_seeding
        seeding = check_contract(env, where, wanted, act)
        return Task(observation, distribution, seeding, snapshot_spec(env, act))
    finally:
        close_environment(env, where)


def close_environment(env: gymnasium.Env, name: str) -> None:
    """Close an environment; what its own code raises is logged, so that it does not hide why it is closed."""
    try:
        env.close()
    except Exception as error:
        log.warning("%s: close raised %r", name, error)


def _try_mask(env: gymnasium.Env, where: str) -> None:
    """Begin an episode, so that a mask that is missing is known before the run starts."""
    try:
        try:
            env.reset(seed=0)
        except Exception:  # one that refuses seeds is trained on too
            env.reset()
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
