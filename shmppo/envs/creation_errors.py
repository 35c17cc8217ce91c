"""Error messages for an environment that cannot be created: the cause, and what to correct."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from importlib.machinery import PathFinder
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator

from shmppo.config.checks import nearest, require, shown
from shmppo.config.plugins import check_callable, import_module
from shmppo.envs.agents import has_agents
from shmppo.errors import ConfigError
from shmppo.utils.user_code import describe_error, user_traceback


def imported_factory(env_id: str, *, vector: bool = False) -> Callable[..., Any] | None:
    """Import the module of `module:name`. Return the callable with this name, or None for a registered id.

    Args:
        env_id: the text of `--env`.
        vector: whether it must make a `gymnasium.vector.VectorEnv` instead of a `gymnasium.Env`.

    Raises:
        ConfigError: if there is no such module, if it raises, if it has no such name, or as in `check_callable`.
    """
    found = _imported(env_id)
    if found is not None:
        is_other = isinstance(found, type) and issubclass(found, gymnasium.vector.VectorEnv) and not vector
        require(not is_other, f"--env {env_id} is a vector environment; add --env-backend vector")
        if not (isinstance(found, type) and has_agents(found)):
            check_callable(found, f"--env {env_id}", gymnasium.vector.VectorEnv if vector else gymnasium.Env)
    return found


def _imported(env_id: str) -> Callable[..., Any] | None:
    """Import the callable that `module:name` names. Return None for a registered id. Raises ConfigError."""
    module_name, _, name = env_id.partition(":")
    module = import_module(module_name, f"--env {env_id}")
    found = getattr(module, name, None)  # ids such as "Pong-v5" are not attributes
    if callable(found):
        return found  # type: ignore[no-any-return]
    if found is not None:
        raise ConfigError(
            f"--env {env_id}: {name} in {module_name} is a {type(found).__name__}; name a class, a function, or an id"
        )
    versions = [key for key in gymnasium.registry if re.fullmatch(rf"{re.escape(name)}-v\d+", key)]
    if name.isidentifier() and name not in gymnasium.registry and not versions:
        known = [key for key, value in vars(module).items() if callable(value)] + list(gymnasium.registry)
        raise ConfigError(f"--env {env_id}: module {module_name} has no {name}{nearest(name, known)}; correct the name")
    return None


def check_env_name(env_id: str) -> None:
    """Check that `--env` names an environment. This imports the module that it names, but no environment is created.

    Raises:
        ConfigError: if it names none, or if the module raises.
    """
    if ":" in env_id and imported_factory(env_id) is not None:
        return
    try:
        gymnasium.spec(env_id.rpartition(":")[2])
    except gymnasium.error.UnregisteredEnv as error:
        raise creation_error(env_id, error) from error
    except gymnasium.error.Error:  # for example an id without a version, which gymnasium.make may accept
        return


def creation_error(
    env_id: str, error: BaseException, arguments: Mapping[str, Any] | None = None, *, vector: bool = False
) -> ConfigError:
    """Describe why an environment could not be created. If the cause is known, say what to correct.

    Args:
        env_id: the environment.
        error: what was raised.
        arguments: those of `--env-kwargs`.
        vector: whether a `gymnasium.vector.VectorEnv` was to be made, which also gets `num_envs`.
    """
    if isinstance(error, gymnasium.error.UnregisteredEnv):
        return _unknown_id(env_id, error)
    if isinstance(error, gymnasium.error.Error):  # its text is written for users
        return ConfigError(f"--env {env_id} could not be made: {_first_line(error)}")
    advice = _arguments_advice(env_id, arguments or {}, vector) if isinstance(error, TypeError) else ""
    if arguments and not advice:
        advice = f"; it was given --env-kwargs {shown(dict(arguments))}"
    return ConfigError(
        f"--env {env_id} could not be made: {describe_error(error)}{advice}", details=user_traceback(error)
    )


def _arguments_advice(env_id: str, arguments: Mapping[str, Any], vector: bool) -> str:
    """Name the arguments of the environment's constructor, if the given ones do not fit. "" if they fit."""
    factory = _imported(env_id) if ":" in env_id else None
    if factory is None:
        try:
            spec = gymnasium.spec(env_id.rpartition(":")[2])
        except gymnasium.error.Error:  # for example an id without a version
            return ""
        entry_point = spec.vector_entry_point if vector else spec.entry_point
        factory = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
        arguments = {**spec.kwargs, **arguments}
    own = {"num_envs": 1} if vector else {}
    accepted = None if factory is None else accepted_arguments(factory, arguments, **own)
    return "" if accepted is None else f"; correct --env-kwargs ({accepted})"


def accepted_arguments(
    function: Callable[..., Any], arguments: Mapping[str, Any], *positional: Any, **own: Any
) -> str | None:
    """Say which keyword arguments a function takes, such as "TimeLimit takes max_episode_steps".

    Args:
        function: the function or class.
        arguments: the keyword arguments of a call that the user has given.
        positional, own: the other arguments of the call. They are not named.

    Returns:
        The text. None if the function accepts the call, if it does not take `own`, or if its arguments are not known.
    """
    try:
        signature = inspect.signature(function)
        signature.bind_partial(**own)
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(*positional, **{**own, **arguments})
    except TypeError:
        keywords = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        names = [name for name, one in signature.parameters.items() if one.kind in keywords][len(positional) :]
        takes = ", ".join(name for name in names if name not in own) or "no arguments"
        return f"{getattr(function, '__name__', repr(function))} takes {takes}"
    return None


def _unknown_id(env_id: str, error: gymnasium.error.UnregisteredEnv) -> ConfigError:
    """Describe an id that is not registered, with Gymnasium's list of versions or with the most similar name."""
    module, _, name = env_id.rpartition(":")
    package, _, attribute = name.rpartition(".")
    if "versioned" in (reason := _first_line(error)):
        similar = f": {reason}"
    elif package and PathFinder.find_spec(package.partition(".")[0]):
        similar = f" (did you mean {package}:{attribute}?)"
    else:
        similar = nearest(name, gymnasium.registry)
    advice = f"check the id in {module}" if module else "for an id that a module registers, use --env module:Id"
    return ConfigError(f"--env {env_id} is not registered{similar}; {advice}")


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0].rstrip(". ")
