"""The callable that `--env module:name` names, and error messages for an environment that cannot be created."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium

from shmppo.config.checks import shown
from shmppo.config.extensions import added
from shmppo.config.plugins import check_callable, import_module
from shmppo.errors import ConfigError
from shmppo.utils.user_code import describe_error, user_traceback


def import_environment(env_id: str) -> None:
    """Import the module of `module:name`, if it has this form. Raises ConfigError if there is none, or if it raises."""
    module_name, colon, _ = env_id.partition(":")
    if colon:
        import_module(module_name, f"--env {env_id}")


def imported_factory(env_id: str, base: type = gymnasium.Env) -> Callable[..., Any] | None:
    """Import the module of `module:name`. Return the callable with this name, or None for an id.

    Args:
        env_id: the text of `--env`.
        base: base class that a class must have.

    Raises:
        ConfigError: if there is no such module, if it raises, or as in `check_callable`.
    """
    module_name, colon, name = env_id.partition(":")
    if not colon:
        return None
    found = getattr(import_module(module_name, f"--env {env_id}"), name, None)  # "Pong-v5" is not an attribute
    accepted = isinstance(found, type) and (
        is_adaptable(found) or any(module.BACKEND.accepts(found) for module in added("backend"))
    )
    if found is not None and not accepted:
        check_callable(found, f"--env {env_id}", base)
    return found


def is_adaptable(kind: type) -> bool:
    """Whether objects of a class are no environments, but return one from their method `as_gymnasium(render_mode)`."""
    return hasattr(kind, "as_gymnasium") and not issubclass(kind, gymnasium.Env)


def check_env_name(env_id: str) -> None:
    """Check that `--env` names an environment. This imports the module that it names, but no environment is created.

    Raises:
        ConfigError: if it names none, or if the module raises.
    """
    if imported_factory(env_id) is not None:
        return
    try:
        gymnasium.spec(env_id.rpartition(":")[2])
    except gymnasium.error.UnregisteredEnv as error:
        raise creation_error(env_id, error) from error
    except gymnasium.error.Error:  # for example an id without a version, which gymnasium.make may accept
        return


def creation_error(env_id: str, error: BaseException, arguments: Mapping[str, Any] | None = None) -> ConfigError:
    """Describe why an environment could not be created. arguments: those of `--env-kwargs`."""
    if isinstance(error, gymnasium.error.Error):  # its text is written for users
        text = str(error).partition("\n")[0].rstrip(". ")
        if not isinstance(error, gymnasium.error.UnregisteredEnv):
            return ConfigError(f"--env {env_id} could not be made: {text}")
        module = env_id.rpartition(":")[0]
        advice = (
            f"check the name in {module}"
            if module
            else "for a class, a factory, or an id of a module, use --env module:Name"
        )
        return ConfigError(f"--env {env_id} is not registered ({text}); {advice}")
    given = f"; it was given the arguments {shown(dict(arguments))}" if arguments else ""
    return ConfigError(
        f"--env {env_id} could not be made: {describe_error(error)}{given}", details=user_traceback(error)
    )
