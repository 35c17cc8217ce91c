"""Creation and inspection of one environment as the configuration describes it."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Literal, cast

import gymnasium
import mujoco

from shmppo.config.plugins import load_object, parse_call
from shmppo.config.train_config import TrainConfig
from shmppo.envs.checker import check_contract
from shmppo.envs.creation_errors import accepted_arguments, creation_error, imported_factory
from shmppo.envs.envpool import SingleEnvPoolEnv
from shmppo.envs.mujoco_support import reason_for_gymnasium, simulation_snapshot
from shmppo.envs.snapshots import snapshot_spec
from shmppo.envs.spec import Task
from shmppo.envs.wrappers import ActionMaskWrapper, PreviousStepWrapper, first_allowed_action
from shmppo.errors import ConfigError
from shmppo.models.distributions import distribution_for
from shmppo.models.observations import Leaf, observation_spec
from shmppo.utils.user_code import FAILURES, describe_error, main_is_importable, reraise_ctrl_c, user_traceback

log = logging.getLogger(__name__)


def make_environment(config: TrainConfig, render_mode: str | None = None) -> gymnasium.Env:
    """Create one environment with its wrappers. Its time limit truncates episodes; it does not reset itself.

    Args:
        config: the configuration of the run.
        render_mode: Gymnasium's render mode; None for no rendering.

    Raises:
        ConfigError: if a wrapper does not exist or lacks an argument, or if `--env` does not name an environment.
        BaseException: whatever the environment's own code raises.
    """
    if config.env_backend == "envpool":
        return SingleEnvPoolEnv(config, render_mode)
    # Without a handler, MuJoCo prints its warnings and writes MUJOCO_LOG.TXT into the working directory.
    mujoco.set_mju_user_warning(log.warning)
    env = _make_unwrapped(config, render_mode)
    for text in config.wrappers:
        env = _wrap(env, text)
    if not isinstance(env, gymnasium.Env):
        raise ConfigError(
            f"--env {config.env_id} returned {type(env).__name__}, not a gymnasium.Env; name a factory that returns an "
            "environment"
        )
    _check_spaces(env, f"--env {config.env_id}")
    if config.prev_action or config.prev_reward:
        env = PreviousStepWrapper(env, action=config.prev_action, reward=config.prev_reward)
    return ActionMaskWrapper(env, f"--env {config.env_id}") if config.action_masks else env


def _make_unwrapped(config: TrainConfig, render_mode: str | None) -> gymnasium.Env:
    """Call the factory `module:attribute`, or create a registered environment by its id."""
    arguments = dict(config.env_kwargs) | ({} if render_mode is None else {"render_mode": render_mode})
    factory = imported_factory(config.env_id) if ":" in config.env_id else None
    if factory is not None:
        return cast(gymnasium.Env, factory(**arguments))  # the caller checks the type
    try:
        return gymnasium.make(config.env_id, disable_env_checker=True, **arguments)
    except gymnasium.error.UnregisteredEnv as error:
        raise creation_error(config.env_id, error) from error


def _wrap(env: gymnasium.Env, text: str) -> gymnasium.Env:
    """Wrap an environment in the wrapper that a text of `--wrappers` describes."""
    name, arguments = parse_call(text, "--wrappers")
    wrapper = _wrapper(name)
    try:
        return cast(gymnasium.Env, wrapper(env, **arguments))
    except TypeError as error:
        accepted = accepted_arguments(wrapper, env, **arguments)
        if accepted is None:  # the wrapper's own code has raised the error
            raise
        raise ConfigError(
            f"--wrappers {text}: {error} ({accepted}); write its arguments in parentheses, for example --wrappers "
            '"TimeLimit(max_episode_steps=500)"'
        ) from error


def _check_spaces(env: gymnasium.Env, where: str) -> None:
    """Raise ConfigError if an environment does not define its spaces."""
    for name in ("observation_space", "action_space"):
        if not hasattr(env, name):
            raise ConfigError(f"{where} has no {name}; set it in __init__ or as a class attribute")


def _wrapper(name: str) -> Any:
    """Return the wrapper class that `--wrappers` names."""
    if ":" in name:
        return load_object(name, "--wrappers")
    wrapper = getattr(gymnasium.wrappers, name, None)
    if wrapper is None:
        raise ConfigError(
            f"--wrappers {name}: gymnasium.wrappers has no {name}; write a wrapper of another module as module:Wrapper"
        )
    return wrapper


def inspect_task(config: TrainConfig) -> Task:
    """Create one environment, check it, describe it, and close it.

    Raises:
        ConfigError: if the environment cannot be created, a space is not supported, an index of `--hide-obs` does not
            exist, or the environment breaks Gymnasium's API.
    """
    try:
        env = make_environment(config)
    except ConfigError:
        raise
    except FAILURES as error:
        reraise_ctrl_c(error)
        raise creation_error(config.env_id, error, config.env_kwargs) from error
    where = f"--env {config.env_id}"
    try:
        _check_importable(config, env)
        observation = observation_spec(env.observation_space, where)
        if config.action_masks:
            observation = observation.with_mask()
            _check_mask(env, where)
        _check_hidden_indices(config, observation.leaves[0])
        distribution = distribution_for(env.action_space, where, squash=config.squash_actions)
        choose_action = partial(first_allowed_action, env.action_space) if config.action_masks else None
        wanted = "once" if config.env_backend == "envpool" else config.episode_seeding
        seeding = check_contract(env, where, wanted, choose_action, allow_out_of_bounds=config.allow_out_of_bounds)
        backend = _backend(config, env)
        native = backend == "mujoco" and seeding == "episode"
        snapshot = simulation_snapshot(env) if native else snapshot_spec(env, choose_action)
        return Task(observation, distribution, seeding, snapshot, backend)
    finally:
        close_environment(env, where)


def _check_importable(config: TrainConfig, env: gymnasium.Env) -> None:
    """Raise ConfigError if the class of the environment exists only in this process."""
    in_main = type(env.unwrapped).__module__ == "__main__"
    if in_main and config.num_workers and not main_is_importable():
        raise ConfigError(
            f"--env {config.env_id} is defined in a notebook or on standard input, which workers cannot import; put it "
            "into a module, or use --workers 0"
        )


def _backend(config: TrainConfig, env: gymnasium.Env) -> Literal["gymnasium", "mujoco", "envpool"]:
    """Choose the backend. Raises ConfigError if `--env-backend mujoco` cannot step the environment."""
    if config.env_backend in ("gymnasium", "envpool"):
        return config.env_backend
    reason = reason_for_gymnasium(config, env)
    if reason is None:
        return "mujoco"
    if config.env_backend == "mujoco":
        raise ConfigError(f"--env-backend mujoco cannot step {config.env_id}, because {reason}; use --env-backend auto")
    log.info("Gymnasium steps %s, because %s", config.env_id, reason)
    return "gymnasium"


def close_environment(env: gymnasium.Env, name: str) -> None:
    """Close an environment and log what `close` raises, so that it does not replace an earlier exception.

    Args:
        env: the environment.
        name: its name in the log message.
    """
    try:
        env.close()
    except FAILURES as error:
        reraise_ctrl_c(error)
        log.warning("%s: close raised %r", name, error)


def _check_mask(env: gymnasium.Env, where: str) -> None:
    """Reset the environment once, so that a missing mask is reported before the run starts. Raises ConfigError."""
    try:
        try:
            env.reset(seed=0)
        except Exception:  # environments that do not accept seeds are allowed
            env.reset()
    except FAILURES as error:
        reraise_ctrl_c(error)
        raise ConfigError(
            f"--action-masks: reset of {where} failed: {str(error) or describe_error(error)}; correct reset",
            details=user_traceback(error),
        ) from error


def _check_hidden_indices(config: TrainConfig, leaf: Leaf) -> None:
    """Check the indices of `--hide-obs` against the first leaf, which must be the environment's own vector."""
    if not config.hidden_indices:
        return
    # The keys are empty, or they are all "obs": our own wrappers put the environment's observation there.
    if leaf.kind != "vector" or not set(leaf.keys) <= {"obs"}:
        raise ConfigError(
            f"--hide-obs needs an observation that is one vector, and that of {config.env_id} is not; remove --hide-obs"
        )
    beyond = [i for i in config.hidden_indices if not 0 <= i < leaf.input_size]
    if beyond:
        raise ConfigError(
            f"--hide-obs names {beyond}, but the observation of {config.env_id} has {leaf.input_size} numbers; use "
            f"indices 0 … {leaf.input_size - 1}"
        )
