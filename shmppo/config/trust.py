"""Which run directories may name code to import: those that this user made on this machine, with a signature.

The signature covers the fields of a configuration that can name code. It does not cover the path, so a directory can
be moved.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro

from shmppo.config.checks import flag
from shmppo.errors import ConfigError
from shmppo.utils.user_key import NoKeyError, is_signature, signature

CODE_FIELDS = ("env", "env_kwargs", "env_backend", "wrappers", "env_schedule", "network")
"""Fields of a configuration that name code, or from which code decides what to import."""
SIGNATURE = "signature"
"""Key of the signature in config.json."""
OWN_WRAPPERS = ("shmppo.envs.wrappers:RepeatAction", "shmppo.envs.wrappers:FirstActions")
"""Wrappers of this package, which every run directory may name."""
Modules = Annotated[tuple[str, ...], tyro.conf.UseAppendAction]
"""Type of the flag --trust: each flag names one module."""
_NAME_IN_TEXT = re.compile(r"[^\W\d]\w*(\.\w+)*:[^/\\]")  # `module:name`, but neither a URL nor a path with a drive

log = logging.getLogger(__name__)


class NamedCode(NamedTuple):
    """Code that a configuration names."""

    field: str
    name: str
    """`module:attribute`, as in the configuration."""

    @property
    def module(self) -> str:
        return self.name.partition(":")[0]

    def __str__(self) -> str:
        name = self.name if self.name.isprintable() else ascii(self.name)
        return f"{flag(self.field)} {name}"


def named_code(fields: Mapping[str, Any]) -> list[NamedCode]:
    """Return the code that the fields of a configuration name, apart from registered environments and own wrappers."""
    found = []
    if ":" in (fields.get("env") or ""):
        found.append(NamedCode("env", fields["env"]))
    texts = [text for text in _texts(fields.get("env_kwargs")) if _NAME_IN_TEXT.match(text)]
    found += [NamedCode("env_kwargs", text) for text in texts]
    wrappers = [text.partition("(")[0] for text in fields.get("wrappers") or ()]
    found += [NamedCode("wrappers", name) for name in wrappers if ":" in name and name not in OWN_WRAPPERS]
    functions = [(name, fields.get(name)) for name in ("env_schedule", "network")]
    found += [NamedCode(name, function) for name, function in functions if function is not None]
    return found


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts in a value that was read from JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _texts(part)


def sign(fields: Mapping[str, Any]) -> str | None:
    """Return the signature of a configuration. None, with a warning, if this user can have no key.

    Args:
        fields: of `TrainConfig.to_json`.
    """
    try:
        return signature(_signed_text(fields))
    except NoKeyError as error:
        log.warning("this run directory is not signed, because %s; commands that read it may need --trust", error)
        return None


def _signed_text(fields: Mapping[str, Any]) -> str:
    return "shmppo code names 1\n" + json.dumps({name: fields.get(name) for name in CODE_FIELDS}, sort_keys=True)


def _is_signed(fields: Mapping[str, Any], directory: Path) -> bool:
    """Return whether the config.json in a directory has the signature of the fields."""
    try:
        content = json.loads((directory / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and is_signature(content.get(SIGNATURE), _signed_text(fields))


@dataclass(frozen=True)
class Trust:
    """The code that the caller allows to be imported, although a run directory of others names it."""

    modules: tuple[str, ...] = ()
    """Modules and packages. A package includes its modules."""
    ask: bool = False
    """Whether to ask the user, if stdin and stdout are a terminal. Commands do."""

    @classmethod
    def of(cls, given: Trusted) -> Trust:
        """Convert the parameter `trust` of a public function."""
        if isinstance(given, Trust):
            return given
        return cls((given,) if isinstance(given, str) else tuple(given))

    def check(
        self,
        fields: Mapping[str, Any],
        source: Path,
        directories: Sequence[Path],
        used: Mapping[str, Any] | None = None,
    ) -> None:
        """Check that the code that a configuration names may be imported. Nothing is imported.

        Args:
            fields: of the configuration by name, with the types of `TrainConfig`.
            source: where it was found, for the message.
            directories: those whose config.json may have its signature.
            used: the fields that will be used. None: all.

        Raises:
            ConfigError: if it names code, is not signed, and the user allows this code neither before nor now.
        """
        names = named_code(fields if used is None else used)
        unknown = [name for name in names if not self._allows(name.module)]
        if not unknown or any(_is_signed(fields, directory) for directory in directories):
            return
        if self.ask and _has_terminal() and _is_confirmed(source, unknown):
            return
        modules = sorted({name.module for name in unknown})
        flags = " ".join(f"--trust {module if module.isprintable() else ascii(module)}" for module in modules)
        raise ConfigError(
            f"{source} was not made by this user on this machine, or was edited, and it names code to import: "
            f"{', '.join(map(str, unknown))}; if you trust this code, add {flags} (in Python: trust={modules})"
        )

    def _allows(self, module: str) -> bool:
        return any(module == allowed or module.startswith(f"{allowed}.") for allowed in self.modules)


Trusted = Trust | Sequence[str]
"""Type of the parameter `trust` of public functions: names of modules. A command passes `Trust`."""


def _has_terminal() -> bool:
    """Whether the user can answer. The ranks of a run share one terminal, so they do not ask."""
    streams = (sys.stdin, sys.stdout)
    return "RANK" not in os.environ and all(s is not None and not s.closed and s.isatty() for s in streams)


def _is_confirmed(source: Path, names: Sequence[NamedCode]) -> bool:
    """Ask the user whether to import the code."""
    print(f"\r\x1b[K{str(source)!r} was not made by this user on this machine, or was edited. It names code to import:")
    for name in names:
        print(f"  {name}")
    try:
        answer = input("Import and run this code? [y/N] ")
    except EOFError:
        return False
    return answer.strip().lower() in ("y", "yes")
