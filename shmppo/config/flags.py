"""The command line: flags grouped by subject, and configuration files."""

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
NOT_INHERITED = ("run_dir", "stop_at_iteration", "rank", "ranks")
"""Fields that a new run does not copy from another run's config.json."""


@dataclass(frozen=True)
class SourceOptions:
    """Where the configuration comes from."""

    config: Path | None = None
    """Configuration file: YAML or JSON with names and values of flags, or the config.json of a run. Flags on the
    command line override it. None: the defaults below."""
    resume: Path | None = None
    """Directory of a run to resume from its newest checkpoint. For the other flags of a resumed run, see
    --resume RUN_DIR --help. None: start a new run."""


def subjects() -> dict[str, type]:
    """Return the option classes of a configuration by subject, in the order of the help text."""
    return {base.__name__.removesuffix("Options").lower(): base for base in reversed(TrainConfig.__bases__)}


def flags_type(default: Mapping[str, Any]) -> type:
    """Make a dataclass with one field per subject, so that the help text has one box per subject.

    Args:
        default: default value of each field of a configuration, by name.
    """
    fields: list[tuple[str, type, Any]] = [("start", SourceOptions, dataclasses.field(default=SourceOptions()))]
    for name, subject in subjects().items():
        values = {f.name: default[f.name] for f in dataclasses.fields(subject)}
        fields.append((name, subject, dataclasses.field(default=subject(**values))))
    return dataclasses.make_dataclass("Flags", fields, frozen=True)


def parse_config(
    arguments: Sequence[str], *, prog: str, description: str, default: TrainConfig | None = None
) -> TrainConfig:
    """Make a configuration from a command line. Flags override the file of --config, which overrides `default`.

    Raises:
        ConfigError: if the file cannot be read, or if the configuration cannot run.
        SystemExit: with code 0 after --help, with code 2 for an unknown flag or a value of the wrong type.
    """
    file = option_value(arguments, "--config")
    base = (default or TrainConfig()).fields()
    if file is not None:
        base |= read_config_file(Path(file))
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
        raise ConfigError(f"--config {file} with the flags of the command line: {error}") from error


def option_value(arguments: Sequence[str], option: str) -> str | None:
    """Return the value of `option` on a command line, or None if it is absent. The value follows the option or "="."""
    for given, following in itertools.pairwise([*arguments, ""]):
        if given == option:
            return following
        if given.startswith(option + "="):
            return given.partition("=")[2]
    return None


def read_config_file(path: Path) -> dict[str, Any]:
    """Read fields of a configuration from a YAML or JSON file, or from a run's config.json.

    Raises:
        ConfigError: if the file cannot be read, is not a mapping, or contains an unknown field.
    """
    content = _read(path)
    if isinstance(content, dict) and isinstance(content.get("config"), dict):
        content = {k: v for k, v in content["config"].items() if k not in NOT_INHERITED}
        if content.get("anneal_steps") == content.get("total_steps"):
            content.pop("anneal_steps", None)  # so that it follows a --total-steps on the command line
    if not isinstance(content, dict):
        raise ConfigError(f"--config {path} is not a mapping of names to values; write one `name: value` per line")
    fields = {str(name).replace("-", "_"): value for name, value in content.items()}
    try:
        return typed_fields(fields)
    except ConfigError as error:
        raise ConfigError(f"--config {path}: {error}") from error


def _read(path: Path) -> Any:
    """Parse a JSON or YAML file."""
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
            f"--config {path} is YAML, but pyyaml is not installed; pip install 'shmppo[yaml]', or write JSON"
        ) from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"--config {path} is neither JSON nor YAML ({reason}); correct it") from error


@dataclass(frozen=True)
class ResumeConfig:
    """Resume a run from its newest checkpoint. Flags replace the values of the stored configuration.

    Options without a flag on the command line keep their stored values.
    """

    resume: Path
    """Directory of the run to resume."""
    total_steps: int | None = None
    """Environment steps of the whole run, including the steps before the checkpoint."""
    anneal_steps: int | None = None
    """Environment steps, counted from the run's start, after which annealed values reach 0."""
    workers: int | None = None
    """Number of worker processes."""
    learning: Literal["auto", "central", "sharded"] | None = None
    """Where gradients are computed."""
    stop_at_iteration: int | None = None
    """Stop after this iteration. None: stop after --total-steps."""
    checkpoint_every: int | None = None
    """Iterations between checkpoints."""
    rank_timeout: float | None = None
    """Seconds that a rank waits for the others."""
    quiet: bool = False
    """Print only errors."""


def parse_resume(arguments: Sequence[str]) -> tuple[Path, dict[str, Any]]:
    """Parse a command line with --resume. Return the run directory and the fields of its configuration to change."""
    options = tyro.cli(ResumeConfig, args=list(arguments), prog=TRAIN_PROG)
    given = dataclasses.asdict(options)
    run_dir = given.pop("resume")
    return run_dir, {name: value for name, value in given.items() if value is not None and value is not False}
