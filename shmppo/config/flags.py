"""Command lines: the flags of a configuration grouped by subject, and files that hold flags."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from shmppo.config.train_config import TrainConfig, typed_fields
from shmppo.errors import ConfigError

TRAIN_PROG = "python -m shmppo.train"
OF_ANOTHER_RUN = ("run_dir", "stop_at_iteration", "rank", "ranks")
"""Fields that a new run does not take over from a run's config.json."""


@dataclass(frozen=True)
class SourceOptions:
    """Where the configuration comes from."""

    config: Path | None = None
    """File of flags: YAML or JSON of names and values, or the config.json of a run. Flags given here go on top of it.
    None: the defaults below."""
    resume: Path | None = None
    """Directory of a run to go on with, from its newest checkpoint. Its other flags: --resume RUN_DIR --help. None: a
    new run."""


def subjects() -> dict[str, type]:
    """The groups of fields that a configuration is made of, by name, in the order of the help text."""
    return {base.__name__.removesuffix("Options").lower(): base for base in reversed(TrainConfig.__bases__)}


def flags_type(default: Mapping[str, Any]) -> type:
    """A dataclass with one field per subject, so that the help text has a box for each; default: the value of each."""
    fields: list[tuple[str, type, Any]] = [("start", SourceOptions, dataclasses.field(default=SourceOptions()))]
    for name, subject in subjects().items():
        values = {f.name: default[f.name] for f in dataclasses.fields(subject)}
        fields.append((name, subject, dataclasses.field(default=subject(**values))))
    return dataclasses.make_dataclass("Flags", fields, frozen=True)


def parse_config(
    arguments: Sequence[str], *, prog: str, description: str, default: TrainConfig | None = None
) -> TrainConfig:
    """The configuration that a command line names: `default`, then the file of --config, then the flags.

    Raises:
        ConfigError: for a file that cannot be read, or a configuration that cannot run.
        SystemExit: with code 0 after --help, 2 after a flag that does not exist or a value of another type.
    """
    file = option_value(arguments, "--config")
    base = vars(default or TrainConfig())
    if file is not None:
        base = base | read_config_file(Path(file))
    parsed: Any = tyro.cli(
        flags_type(base),
        args=list(arguments),
        prog=prog,
        description=description,
        config=(tyro.conf.OmitArgPrefixes,),
    )
    groups = [getattr(parsed, name) for name in subjects()]
    fields = {f.name: getattr(group, f.name) for group in groups for f in dataclasses.fields(group)}
    try:
        return TrainConfig(**fields)
    except ConfigError as error:
        if file is None:
            raise
        raise ConfigError(f"--config {file} and the flags on top: {error}") from error


def option_value(arguments: Sequence[str], option: str) -> str | None:
    """What follows `option` on a command line, as the next argument or behind "="; None where it is not named."""
    for given, following in itertools.pairwise([*arguments, ""]):
        if given == option:
            return following
        if given.startswith(option + "="):
            return given.partition("=")[2]
    return None


def read_config_file(path: Path) -> dict[str, Any]:
    """Fields of a configuration from a YAML or JSON file, or from the config.json of a run (then less its directory).

    Raises:
        ConfigError: if it cannot be read, is no mapping, or names a field that does not exist.
    """
    content = _read(path)
    if isinstance(content, dict) and isinstance(content.get("config"), dict):
        content = {k: v for k, v in content["config"].items() if k not in OF_ANOTHER_RUN}
        if content.get("anneal_steps") == content.get("total_steps"):
            content.pop("anneal_steps", None)  # resolved from the other: it is to follow a flag that changes that
    if not isinstance(content, dict):
        raise ConfigError(f"--config {path} holds no names and values; write one `name: value` per line")
    fields = {str(name).replace("-", "_"): value for name, value in content.items()}
    try:
        return typed_fields(fields)
    except ConfigError as error:
        raise ConfigError(f"--config {path}: {error}") from error


def _read(path: Path) -> Any:
    """Whatever a JSON or YAML file holds."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path} cannot be read ({error}); name a YAML or JSON file") from error
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        if path.suffix == ".json":
            raise ConfigError(f"--config {path} is not JSON ({error}); correct it") from error
    try:
        import yaml
    except ImportError as error:
        raise ConfigError(
            f"--config {path} is YAML, and pyyaml is not installed; pip install 'shmppo[yaml]', or write JSON"
        ) from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"--config {path} is neither JSON nor YAML ({reason}); correct it") from error


@dataclass(frozen=True)
class ResumeConfig:
    """Going on from a checkpoint: the stored configuration, with what is given here in its place."""

    resume: Path
    """Directory of the run to go on with."""
    total_steps: int | None = None
    """Environment steps of the whole run, those already done included."""
    anneal_steps: int | None = None
    """Horizon of the annealing, in environment steps from the run's start."""
    workers: int | None = None
    """Rollout processes."""
    learning: Literal["auto", "central", "sharded"] | None = None
    """Who computes gradients."""
    stop_at_iteration: int | None = None
    """Stop after this iteration."""
    checkpoint_every: int | None = None
    """Iterations between checkpoints."""
    rank_timeout: float | None = None
    """Seconds that a rank waits for the others."""
    quiet: bool = False
    """Print nothing but errors. Not given: as the run was begun."""


def parse_resume(arguments: Sequence[str]) -> tuple[Path, dict[str, Any]]:
    """The run directory that `--resume` names, and the fields of its configuration to change."""
    options = tyro.cli(ResumeConfig, args=list(arguments), prog=TRAIN_PROG)
    given = dataclasses.asdict(options)
    run_dir = given.pop("resume")
    return run_dir, {name: value for name, value in given.items() if value is not None and value is not False}
