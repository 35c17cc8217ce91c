"""Error messages for an environment that cannot be created: the cause, and the flag or the package that helps."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from collections.abc import Callable, Mapping
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
from gymnasium.envs.registration import load_env_creator

from shmppo.config.checks import nearest, require
from shmppo.config.plugins import check_callable
from shmppo.errors import ConfigError
from shmppo.utils.user_code import FAILURES, describe_error, reraise_ctrl_c, user_traceback

EXTRAS = {"ale_py": "atari", "cv2": "atari", "minigrid": "minigrid", "Box2D": "box2d", "shimmy": "dm_control"}
"""The extra of this package that installs a module, by the name of the module."""


class _Package(NamedTuple):
    """A package that registers environments when it is imported."""

    pattern: str
    """Regular expression of the beginning of its ids."""
    module: str
    """The module to import."""
    install: str
    """What pip installs, without an extra of this package."""


_PACKAGES = (
    _Package(r"ALE/", "ale_py", "ale-py"),
    _Package(r"\w+NoFrameskip-v\d", "ale_py", "ale-py"),
    _Package(r"MiniGrid-|BabyAI-", "minigrid", "minigrid"),
    _Package(r"popgym-", "popgym", "popgym"),
    _Package(r"dm_control/|bsuite/", "shimmy", "'shimmy[dm-control,bsuite]'"),
    _Package(r"(Fetch(Reach|Push|Slide|Pick)|HandReach|HandManipulate|Adroit|FrankaKitchen|PointMaze_|AntMaze_)",
             "gymnasium_robotics", "gymnasium-robotics"),
    _Package(r"Meta-World/", "metaworld", "metaworld"),
    _Package(r"MiniWorld-", "miniworld", "miniworld"),
    _Package(r"(highway|merge|roundabout|parking|intersection|racetrack)(-\w+)*-v\d", "highway_env", "highway-env"),
    _Package(r"Vizdoom", "vizdoom.gymnasium_wrapper", "vizdoom"),
    _Package(r"PyFlyt/", "PyFlyt.gym_envs", "PyFlyt"),
)  # fmt: skip
_TOO_NEW_MUJOCO = {"dm_control": (4, 0), "gymnasium_robotics": (3, 12)}
"""First version of MuJoCo with which the environments of a package raise AttributeError or AssertionError."""


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
        check_callable(found, f"--env {env_id}", gymnasium.vector.VectorEnv if vector else gymnasium.Env)
    return found


def _imported(env_id: str) -> Callable[..., Any] | None:
    """Import the callable that `module:name` names. Return None for a registered id. Raises ConfigError."""
    module_name, _, name = env_id.partition(":")
    try:
        module = importlib.import_module(module_name)
    except FAILURES as error:
        reraise_ctrl_c(error)
        raise _import_error(env_id, module_name, error) from error
    found = getattr(module, name, None)  # ids such as "Pong-v5" are not attributes
    if callable(found):
        return found  # type: ignore[no-any-return]
    if found is not None:
        raise ConfigError(
            f"--env {env_id}: {name} in {module_name} is a {type(found).__name__}; name a class, a function, or an id"
        )
    if name.isidentifier() and name not in gymnasium.registry and not _versions(name):
        known = [key for key, value in vars(module).items() if callable(value)] + list(gymnasium.registry)
        raise ConfigError(f"--env {env_id}: module {module_name} has no {name}{nearest(name, known)}; correct the name")
    return None


def _versions(name: str) -> list[str]:
    """Return the registered ids that are versions of an id without a version."""
    return [key for key in gymnasium.registry if re.fullmatch(rf"{re.escape(name)}-v\d+", key)]


def _import_error(env_id: str, module: str, error: BaseException) -> ConfigError:
    """Describe why a module could not be imported."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is not None and f"{module}.".startswith(f"{missing}."):
        extra = EXTRAS.get(missing)
        local = nearest(module, (path.stem for path in Path().glob("*.py")))
        advice = f"pip install 'shmppo[{extra}]'" if extra else "install it, or run in the directory that contains it"
        return ConfigError(f"--env {env_id}: there is no module {missing}{local}; {advice}")
    return ConfigError(
        f"--env {env_id}: the import of {module} raised {describe_error(error)}{_advice(error)}; correct the module",
        details=user_traceback(error),
    )


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


def creation_error(env_id: str, error: BaseException, arguments: Mapping[str, Any] | None = None) -> ConfigError:
    """Describe why an environment could not be created. If the cause is known, say what to correct or to install.

    Args:
        env_id: the environment.
        error: what was raised.
        arguments: those of `--env-kwargs`.
    """
    if isinstance(error, gymnasium.error.UnregisteredEnv):
        return _unknown_id(env_id, error)
    if isinstance(error, gymnasium.error.Error):  # its text is written for users
        return ConfigError(f"--env {env_id} could not be made: {_first_line(error)}{_advice(error)}")
    advice = _advice(error) or (_arguments_advice(env_id, arguments or {}) if isinstance(error, TypeError) else "")
    return ConfigError(
        f"--env {env_id} could not be made: {describe_error(error)}{advice}", details=user_traceback(error)
    )


def _arguments_advice(env_id: str, arguments: Mapping[str, Any]) -> str:
    """Name the arguments of the environment's constructor, if the given ones do not fit. "" if they fit."""
    factory = _imported(env_id) if ":" in env_id else None
    if factory is None:
        try:
            spec = gymnasium.spec(env_id.rpartition(":")[2])
        except gymnasium.error.Error:  # for example an id without a version
            return ""
        entry_point = spec.entry_point
        factory = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
        arguments = {**spec.kwargs, **arguments}
    accepted = None if factory is None else accepted_arguments(factory, **arguments)
    return "" if accepted is None else f"; correct --env-kwargs ({accepted})"


def accepted_arguments(function: Callable[..., Any], *positional: Any, **arguments: Any) -> str | None:
    """Say which keyword arguments a function takes, such as "TimeLimit takes max_episode_steps".

    Args:
        function: the function or class.
        positional: the positional arguments of a call. They are not named.
        arguments: the keyword arguments of the call.

    Returns:
        The text. None if the function accepts the call, or if its arguments are not known.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(*positional, **arguments)
    except TypeError:
        keywords = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        names = [name for name, one in signature.parameters.items() if one.kind in keywords][len(positional) :]
        function_name = getattr(function, "__name__", repr(function))
        return f"{function_name} takes {', '.join(names) or 'no arguments'}"
    return None


def _unknown_id(env_id: str, error: gymnasium.error.UnregisteredEnv) -> ConfigError:
    """Describe an id that is not registered. Name its package, if it is known, or the most similar id."""
    module, colon, name = env_id.rpartition(":")
    package = next((package for package in _PACKAGES if re.match(package.pattern, name)), None)
    if package is not None and module != package.module:
        install = "" if _installed(package.module) else f"pip install {_requirement(package)} and "
        return ConfigError(
            f"--env {env_id} belongs to a package that is not imported; {install}use --env {package.module}:{name}"
        )
    if name.startswith("procgen"):
        return ConfigError(
            f"--env {env_id}: procgen supports gym, but not gymnasium; pip install 'shimmy[gym-v21]' and use --env "
            f"shimmy:GymV21Environment-v0 --env-kwargs env_id=procgen:{name.removeprefix('procgen:')}"
        )
    reason = _first_line(error)
    advice = f"check the id in {module}" if colon else "for an id that your own module registers, use --env module:Id"
    return ConfigError(f"--env {env_id} is not registered{_similar(name, reason)}; {advice}")


def _similar(name: str, reason: str) -> str:
    """Return a hint with the most similar registered id, or Gymnasium's list of versions."""
    if "versioned" in reason:
        return f": {reason}"
    module, _, attribute = name.rpartition(".")
    if module and _is_module(module):
        return f" (did you mean {module}:{attribute}?)"
    return nearest(name, gymnasium.registry)


def _is_module(name: str) -> bool:
    """Whether a module exists. Neither it nor its packages are imported."""
    first, *rest = name.split(".")
    spec = importlib.util.find_spec(first) if first else None
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return False
        spec = PathFinder.find_spec(f"{spec.name}.{part}", spec.submodule_search_locations)
    return spec is not None


def _requirement(package: _Package) -> str:
    extra = EXTRAS.get(package.module)
    return f"'shmppo[{extra}]'" if extra else package.install


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package is missing
        return False


def _advice(error: BaseException) -> str:
    """Say what to install against a missing module or a known conflict of versions. "" if the cause is not known."""
    if isinstance(error, (ImportError, gymnasium.error.Error)):
        for module, extra in EXTRAS.items():
            if module in _first_line(error):
                return f"; pip install 'shmppo[{extra}]'"
    trace, version = user_traceback(error), metadata.version("mujoco")
    if isinstance(error, (AssertionError, AttributeError)):
        for package, limit in _TOO_NEW_MUJOCO.items():
            if f"/{package}/" in trace and tuple(map(int, version.split(".")[:2])) >= limit:
                needed = ".".join(map(str, limit)).removesuffix(".0")
                return f"; {package} does not support MuJoCo {version}: pip install 'mujoco<{needed}'"
    return ""


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0].rstrip(". ")
