"""Code that a run directory names, which is imported only if the caller trusts its module: its check, and --trust in
commands that messages tell the user to type."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro

from shmppo.config.checks import flag
from shmppo.config.option import fields_with, traits_of
from shmppo.config.options import ENCODERS
from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError
from shmppo.utils.commands import program
from shmppo.utils.files import read_object, short_path

SAFE_MODULES = ("shmppo.envs.wrappers", "gymnasium.wrappers")
"""Modules with wrappers of this package and of Gymnasium, which every run directory may name."""
Modules = Annotated[tuple[str, ...], tyro.conf.UseAppendAction]
"""Type of the flag --trust: each flag names one module."""
Trusted = Sequence[str]
"""Type of the parameter `trust` of public functions: names of modules and packages, or one name."""
TRUST_VARIABLE = "SHMPPO_TRUST"
"""An environment variable: further modules that every command trusts, separated by commas."""
_named: set[str] = set()
"""The modules that configurations of this process have named."""
_NAME_IN_TEXT = re.compile(r"[^\W\d]\w*(\.\w+)*:[^/\\]")  # `module:name`, but neither a URL nor a path with a drive


class NamedCode(NamedTuple):
    """Code that a configuration names."""

    field: str
    name: str
    """`module:attribute`, as in the configuration."""

    @property
    def module(self) -> str:
        return self.name.partition(":")[0]

    def __str__(self) -> str:
        return f"{flag(self.field)} {self.name}"


def named_code(fields: Mapping[str, Any]) -> list[NamedCode]:
    """Return the code that the fields of a configuration name, apart from registered ids and `SAFE_MODULES`."""
    found = []
    if ":" in (fields.get("env") or ""):
        found.append(NamedCode("env", fields["env"]))
    for name in ("env_kwargs", "eval_env_kwargs"):
        found += [NamedCode(name, text) for text in _texts(fields.get(name)) if _NAME_IN_TEXT.match(text)]
    wrappers = [text.partition("(")[0] for text in fields.get("wrappers") or ()]
    found += [NamedCode("wrappers", name) for name in wrappers if ":" in name]
    for field in dataclasses.fields(TrainConfig):
        if traits_of(field).code and fields.get(field.name) not in (None, field.default, *ENCODERS):
            found.append(NamedCode(field.name, fields[field.name]))
    return [code for code in found if code.module not in SAFE_MODULES]


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


def modules_of(fields: Mapping[str, Any]) -> list[str]:
    """Return the modules of the code that a configuration names."""
    return sorted({code.module for code in named_code(fields)})


def trust_own(config: TrainConfig) -> None:
    """Trust the modules that a configuration names, in this process from now on, except texts in arguments."""
    fields = config.to_json() | {"env_kwargs": {}, "eval_env_kwargs": {}}
    _named.update(modules_of(fields))


def trust_flags(modules: Sequence[str]) -> str:
    """Return the flags --trust for modules, each with a space in front."""
    return "".join(f" --trust {module}" for module in modules)


def trust_of(run_dir: Path) -> str:
    """Return the flags --trust that commands for a run need, also for its copies of other runs.

    Each has a space in front.
    """
    modules: set[str] = set()
    for path in (run_dir, *(run_dir / name for name in fields_with(TrainConfig, copied=True))):
        with suppress(ConfigError, KeyError):  # there is no config.json
            modules.update(modules_of(read_object(path / "config.json", "")["config"]))
    return trust_flags(sorted(modules))


def resume_command(run_dir: Path) -> str:
    """Return the command that continues a run with as many ranks. run_dir: directory of the run, or of one rank."""
    start, ranks = program("train"), int(os.environ.get("WORLD_SIZE", 1))
    if ranks > 1:
        machines, local = os.environ.get("GROUP_WORLD_SIZE", "1"), os.environ.get("LOCAL_WORLD_SIZE", str(ranks))
        start = f"torchrun --nnodes {machines} --nproc-per-node {local} -m shmppo.train"
    whole = run_dir.parent if ranks > 1 and run_dir.name.startswith("rank-") else run_dir
    trust = trust_of(run_dir)
    if f"{trust} ".endswith(" __main__ "):  # only the script itself has the code that it defines
        script = short_path(Path(getattr(sys.modules["__main__"], "__file__", None) or "the script"))
        return f'shmppo.resume("{short_path(whole)}", trust="__main__") in {script}'
    return f"{start} --resume {shlex.quote(short_path(whole))}{trust}"


def _names(texts: Sequence[str]) -> list[str]:
    """Return the names in texts that separate them by commas."""
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]


def check_trust(fields: Mapping[str, Any], source: Path, trust: Trusted) -> None:
    """Check that the code that the configuration of a run directory names may be imported. Nothing is imported.

    Args:
        fields: of the configuration, by name.
        source: where it was found, for the message.
        trust: modules and packages that the caller trusts, besides those of `TRUST_VARIABLE` and `trust_own`. A package
            includes its modules. A text may name several, separated by commas.

    Raises:
        ConfigError: if it names code of another module. The message names the flags that allow it.
    """
    trusted = _names((trust,) if isinstance(trust, str) else trust)
    everywhere = _names([os.environ.get(TRUST_VARIABLE, "")])
    allowed = tuple(f"{module}." for module in (*trusted, *everywhere, *_named))
    unknown = [code for code in named_code(fields) if not f"{code.module}.".startswith(allowed)]
    if unknown:
        modules = sorted({code.module for code in unknown})
        raise ConfigError(
            f"{source} names code to import: {', '.join(map(str, unknown))}; if you trust it, add"
            f"{trust_flags(modules)} (in Python: trust={sorted({*trusted, *modules})}), or for all commands: export "
            f"{TRUST_VARIABLE}={shlex.quote(','.join(sorted({*everywhere, *modules})))}"
        )
