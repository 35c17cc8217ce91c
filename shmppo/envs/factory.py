"""Creation of one environment as the configuration describes it."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any, cast

import gymnasium

from shmppo.config.checks import flag, require
from shmppo.config.plugins import load_object, parse_call
from shmppo.config.train_config import TrainConfig
from shmppo.envs.agents import AgentsEnv, AgentsView, has_agents
from shmppo.envs.creation_errors import imported_factory
from shmppo.envs.single_vector_env import SingleVectorEnv
from shmppo.envs.wrappers import ActionMaskWrapper, PreviousStepWrapper
from shmppo.utils.user_code import FAILURES, reraise_ctrl_c

log = logging.getLogger(__name__)


def make_environment(config: TrainConfig, render_mode: str | None = None) -> gymnasium.Env:
    """Create one environment with its wrappers. Its time limit truncates episodes; it does not reset itself.

    Args:
        config: the configuration of the run.
        render_mode: Gymnasium's render mode; None for no rendering.

    Raises:
        ConfigError: if a wrapper does not exist, or if `--env` does not name an environment.
        BaseException: whatever the environment's own code raises.
    """
    if config.env_backend == "vector":
        return SingleVectorEnv(config, render_mode)
    with suppress(Exception):  # a broken MuJoCo concerns only its own tasks, whose creation raises below
        import mujoco

        # Without a handler, MuJoCo prints its warnings and writes MUJOCO_LOG.TXT into the working directory.
        mujoco.set_mju_user_warning(log.warning)
    env = _make_unwrapped(config, render_mode)
    if has_agents(env):
        return AgentsView(AgentsEnv(env, config))
    for name in ("agent_id", "critic_state", "self_play"):
        unused = getattr(config, name) in (False, None)
        require(unused, f"{flag(name)} needs an environment with several agents (possible_agents); leave it out")
    for text in config.wrappers:
        env = _wrap(env, text)
    where = f"--env {config.env_id}"
    require(
        isinstance(env, gymnasium.Env),
        f"{where} returned {type(env).__name__}, neither a gymnasium.Env nor an environment of PettingZoo with "
        "possible_agents; name a factory that returns an environment",
    )
    for name in ("observation_space", "action_space"):
        require(hasattr(env, name), f"{where} has no {name}; set it in __init__ or as a class attribute")
    if config.prev_action or config.prev_reward:
        env = PreviousStepWrapper(env, action=config.prev_action, reward=config.prev_reward)
    return ActionMaskWrapper(env, where) if config.action_masks else env


def _make_unwrapped(config: TrainConfig, render_mode: str | None) -> gymnasium.Env:
    """Call the factory `module:attribute`, or create a registered environment by its id."""
    arguments = config.env_arguments(render_mode)
    factory = imported_factory(config.env_id)
    if factory is not None:
        return cast(gymnasium.Env, factory(**arguments))  # the caller checks the type
    return gymnasium.make(config.env_id, disable_env_checker=True, **arguments)


def _wrap(env: gymnasium.Env, text: str) -> gymnasium.Env:
    """Wrap an environment in the wrapper that a text of `--wrappers` describes."""
    name, arguments = parse_call(text, "--wrappers")
    wrapper = load_object(name if ":" in name else f"gymnasium.wrappers:{name}", "--wrappers", gymnasium.Env)
    return cast(gymnasium.Env, wrapper(env, **arguments))


def close_environment(env: Any, name: str) -> None:
    """Close an environment and log what `close` raises, so that it does not replace an earlier exception.

    Args:
        env: the environment, or several in one object.
        name: its name in the log message.
    """
    try:
        env.close()
    except FAILURES as error:
        reraise_ctrl_c(error)
        log.warning("%s: close raised %r", name, error)
