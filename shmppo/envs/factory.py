"""Creation of environments as the configuration describes them, and the backends that make and step them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, cast

import gymnasium

from shmppo.config.checks import require
from shmppo.config.extensions import added
from shmppo.config.plugins import load_object, parse_call
from shmppo.config.train_config import TrainConfig
from shmppo.envs.creation_errors import imported_factory, is_adaptable
from shmppo.envs.snapshots import SnapshotSpec, snapshot_spec
from shmppo.envs.spec import EnvSpec
from shmppo.envs.vector_env import VectorEnv
from shmppo.envs.wrappers import ActionMaskWrapper, PreviousStepWrapper
from shmppo.utils.user_code import FAILURES, parameters_of, reraise_ctrl_c

log = logging.getLogger(__name__)


class Backend:
    """One way in which environments are made and stepped.

    The base of BACKEND in the module `backend` of an extension, which overrides what it needs. The description of an
    environment (`EnvSpec.backend`) names the backend that steps it.
    """

    name: str
    """The value of --env-backend that demands it."""
    owns_generators = True
    """Whether each environment can have its own generators in place of the global ones."""
    can_skip = True
    """Whether it can skip an episode that fails, and replay one in a single environment."""

    def make(self, config: TrainConfig, render_mode: str | None) -> gymnasium.Env | None:
        """Make an environment without its wrappers. None: Gymnasium makes it."""
        return None

    def accepts(self, env: Any) -> bool:
        """Whether it makes environments of something that is no `gymnasium.Env`, or of a class that is none."""
        return False

    def adapt(self, env: Any, config: TrainConfig) -> gymnasium.Env:
        """Return an environment that it accepts as one of Gymnasium."""
        raise NotImplementedError

    def steps(self, config: TrainConfig, env: gymnasium.Env) -> bool:
        """Whether it steps an environment. Raises ConfigError if it cannot, but --env-backend demands it."""
        raise NotImplementedError

    def snapshot(self, env: gymnasium.Env, choose_action: Callable[[Any], Any]) -> SnapshotSpec | None:
        """Return the format of the environment's snapshots. None: it has no usable ones."""
        return snapshot_spec(env, choose_action)

    def complete(self, config: TrainConfig, task: EnvSpec, env: gymnasium.Env) -> EnvSpec:
        """Check further properties of an environment, and return its complete description."""
        return task

    def plays(self, config: TrainConfig) -> bool:
        """Whether rollouts come from this backend, whichever steps the environment in evaluations."""
        return False

    def make_range(self, config: TrainConfig, task: EnvSpec, low: int, high: int) -> VectorEnv:
        """Make the columns low … high − 1 of a rollout. Raises EnvError if an environment cannot be made."""
        return self.make_played(config, task, low, high, None)

    def make_played(
        self, config: TrainConfig, task: EnvSpec, low: int, high: int, render_mode: str | None
    ) -> VectorEnv:
        """Make columns in which whole episodes are played. Raises EnvError if an environment cannot be made."""
        raise NotImplementedError

    def make_bare(self, config: TrainConfig, columns: int) -> tuple[Any, int]:
        """Make what steps the simulator of a process with so many columns, and return how many it steps in a call."""
        return make_environment(config).unwrapped, 1

    def make_checked(self, config: TrainConfig, task: EnvSpec, low: int, high: int) -> VectorEnv:
        """Make environments for the check of their determinism: one column each."""
        return self.make_range(config, task, low, high)


def backends() -> list[Backend]:
    """Return the backends of extensions."""
    return [module.BACKEND for module in added("backend")]


def make_environment(config: TrainConfig, render_mode: str | None = None, index: int = -1) -> gymnasium.Env:
    """Create one environment with its wrappers. Its time limit truncates episodes; it does not reset itself.

    Args:
        config: the configuration of the run.
        render_mode: Gymnasium's render mode; None for no rendering.
        index: what a factory gets as `env_index`, if it has this parameter: for example for ports. −1: a check.

    Raises:
        ConfigError: if a wrapper does not exist, or if `--env` does not name an environment.
        BaseException: whatever the environment's own code raises.
    """
    made = [env for backend in backends() if (env := backend.make(config, render_mode)) is not None]
    env = made[0] if made else _make_unwrapped(config, render_mode, index)
    for backend in backends():
        if backend.accepts(env):
            return backend.adapt(env, config)
    for text in config.wrappers:
        env = _wrap(env, text)
    where = f"--env {config.env_id}"
    require(
        isinstance(env, gymnasium.Env),
        f"{where} returned {type(env).__name__}, which is no gymnasium.Env; name a factory that returns an environment",
    )
    for name in ("observation_space", "action_space"):
        require(hasattr(env, name), f"{where} has no {name}; set it in __init__ or as a class attribute")
    if config.prev_action or config.prev_reward:
        env = PreviousStepWrapper(env, action=config.prev_action, reward=config.prev_reward)
    return ActionMaskWrapper(env, where) if config.action_masks else env


def _make_unwrapped(config: TrainConfig, render_mode: str | None, index: int) -> gymnasium.Env:
    """Call the factory `module:attribute`, or create a registered environment by its id.

    The factory may also return an object that `is_adaptable`.
    """
    arguments = config.env_arguments(render_mode)
    factory = imported_factory(config.env_id)
    if factory is None:
        return gymnasium.make(config.env_id, disable_env_checker=True, **arguments)
    if "env_index" in parameters_of(factory):
        arguments["env_index"] = index
    mode = arguments.get("render_mode")
    if isinstance(factory, type) and is_adaptable(factory):
        arguments.pop("render_mode", None)  # `as_gymnasium` takes it
    made: Any = factory(**arguments)
    return cast(gymnasium.Env, made.as_gymnasium(mode) if is_adaptable(type(made)) else made)  # the caller checks it


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
