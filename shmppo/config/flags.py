"""The command line: flags grouped by subject, and configuration files."""

# ruff: noqa: RUF009 (option returns a dataclasses.field, which is what a dataclass needs)

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import re
import shlex
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shmppo.config.checks import flag, require
from shmppo.config.command_line import field_texts, given_fields, parse
from shmppo.config.hints import refuse_foreign_flags
from shmppo.config.option import fields_with, option
from shmppo.config.presets import preset_fields
from shmppo.config.removed import without_removed
from shmppo.config.resumable import BRANCHABLE, RESUMABLE, refusal
from shmppo.config.train_config import EXTENSIONS, ExtensionFields, TrainConfig, typed_fields
from shmppo.config.trust import Modules, check_trust, modules_of
from shmppo.errors import ConfigError
from shmppo.utils.commands import program
from shmppo.utils.files import is_run, refuse_links, user_path

WITHOUT_FLAGS = "Train recurrent PPO. Without flags: CartPole-v1 with hidden velocities."
DEFAULTS_OF_SCRIPT = "Train recurrent PPO. Flags override the script's options."


@dataclass(frozen=True)
class SourceOptions:
    """Where the configuration comes from, and the seeds of several runs."""

    config: Path | None = option(None, common=True)
    """Configuration file: YAML or JSON with names and values of flags, or the config.json of a run. Flags on the
    command line override it. None: no file."""
    preset: str | None = option(None, common=True)
    """Tested options for a known environment: the name of a preset, or auto for the preset of --env. --config and flags
    override them. None: no preset."""
    resume: Path | None = option(None, common=True, set_by_search=True)
    """Directory of a run to resume from its newest checkpoint. `--resume RUN_DIR --help` shows the flags of a resumed
    run. None: start a new run."""
    trust: Modules = ()
    """A module or package that may be imported although only a run directory names it, for example that of its
    environment. Give the flag once per module."""
    overwrite: bool = option(False, set_by_search=True)
    """Replace a run in --run-dir: remove its checkpoints, tables, and videos, but no other files."""
    seeds: tuple[int, ...] = option((), common=True, set_by_search=True)
    """Train one run with each of these seeds, in RUN_DIR-s1, RUN_DIR-s2, …. Needs --run-dir. The same command continues
    them."""
    jobs: int = option(1, set_by_search=True)
    """Runs of --seeds that train at the same time, each on cores of its own."""


def subjects() -> dict[str, type]:
    """Return the option classes of a configuration by subject, in the order of the help text."""
    core = [base for base in reversed(TrainConfig.__bases__) if base is not ExtensionFields]
    kinds = [kind for kind in (*core, *EXTENSIONS) if dataclasses.fields(kind)]
    return {kind.__name__.removesuffix("Options").lower(): kind for kind in kinds}


def common_fields() -> tuple[str, ...]:
    """Return the fields whose flags `train --help` shows."""
    return fields_with(TrainConfig, common=True) + fields_with(SourceOptions, common=True)


def flags_type(default: Mapping[str, Any] | None = None) -> type:
    """Make a dataclass with one field per subject, as the command line has one flag per field.

    Args:
        default: default value of each field of a configuration, by name. None: those of the default job.
    """
    default = TrainConfig().fields() if default is None else default
    fields: list[tuple[str, type, Any]] = [("start", SourceOptions, dataclasses.field(default=SourceOptions()))]
    for name, subject in subjects().items():
        values = {f.name: default[f.name] for f in dataclasses.fields(subject)}
        fields.append((name, subject, dataclasses.field(default=subject(**values))))
    return dataclasses.make_dataclass("Flags", fields, frozen=True)


def parse_start(
    arguments: Sequence[str], *, script: str | None = None, default: TrainConfig | None = None
) -> tuple[TrainConfig, SourceOptions]:
    """Make a configuration from a command line, and return it with the options that do not belong to it.

    Flags override --config, which overrides --preset or `default`. With --init-from, but without the three, flags
    override the configuration of that run. --env-kwargs are added to those of the same environment.

    Args:
        arguments: the command line.
        script: the command as the user types it. None: the command `train`.
        default: configuration that preset, file, and flags override. None: the default job.

    Raises:
        ConfigError: for an unknown flag or a wrong value, if the file cannot be read, or if the configuration cannot
            run.
        SystemExit: with code 0 after --help.
    """
    name = option_value(arguments, "--preset")
    option, file = _config_file(arguments, inherit=name is None and default is None)
    from_file = {} if file is None else read_config_file(file, option)
    base = (default or TrainConfig()).fields()
    if name is not None:
        env = option_value(arguments, "--env") or from_file.get("env", base["env"])
        base = TrainConfig().fields() | preset_fields(name, env)
    base |= from_file
    parsed = parse(
        flags_type(base), arguments, script or program("train"), common=common_fields(),
        example="--env Pendulum-v1 --hide-obs 2 --run-dir runs/pendulum",
        text=WITHOUT_FLAGS if default is None else DEFAULTS_OF_SCRIPT,
    )  # fmt: skip
    named = given_fields(arguments)
    require("seeds" not in named or bool(parsed.start.seeds), "--seeds has no values; name the seeds")
    require(not {"seed", "seeds"} <= named, "--seed cannot be combined with --seeds; leave one of them out")
    require(not (parsed.start.seeds and parsed.start.overwrite), "--seeds continues its runs; leave out --overwrite")
    lacks = parsed.start.overwrite and "run_dir" not in named
    require(not lacks, "--overwrite replaces the run in --run-dir; add --run-dir, or leave out --overwrite")
    require(bool(parsed.start.seeds) or parsed.start.jobs == 1, "--jobs needs --seeds; add it, or leave out --jobs")
    fields = {name: value for subject in subjects() for name, value in vars(getattr(parsed, subject)).items()}
    given = {name: fields[name] for name in named if name in fields}
    if fields["env"] == base["env"] and given.get("env_kwargs"):
        fields["env_kwargs"] = base["env_kwargs"] | given["env_kwargs"]
    config = TrainConfig(**fields)
    if file is not None:
        used = {name: fields[name] for name in from_file}
        of_script = modules_of(default.to_json()) if default is not None else []
        check_trust(used, file, (*parsed.start.trust, *modules_of(given), *of_script))
    return config, parsed.start


def _config_file(arguments: Sequence[str], *, inherit: bool) -> tuple[str, Path | None]:
    """Return the configuration file of a command line, and the option that names it.

    Args:
        arguments: the command line.
        inherit: whether the file may be the config.json beside the weights of --init-from.
    """
    file, source = (option_value(arguments, option) for option in ("--config", "--init-from"))
    if file is not None or source is None or not inherit:
        return "--config", None if file is None else user_path(file, "--config")
    path = user_path(source, "--init-from")
    run_dir = path.parent if path.is_file() else path
    if not path.is_file() or is_run(run_dir):  # a file may also be beside other files of the user
        refuse_links(run_dir)
    config = run_dir / "config.json"
    return "--init-from", config if config.is_file() and not config.is_symlink() else None


def option_value(arguments: Sequence[str], option: str) -> str | None:
    """Return the last value of `option` on a command line, or None if it is absent."""
    found = None
    for given, following in itertools.pairwise([*arguments, ""]):
        name, equals, value = given.partition("=")
        if name.replace("_", "-") == option:
            found = value if equals else following
    return found


def read_config_file(path: Path, option: str) -> dict[str, Any]:
    """Read fields of a configuration from a YAML or JSON file, or from a run's config.json.

    Args:
        path: the file.
        option: the option that names the file, for error messages.

    Raises:
        ConfigError: if the file cannot be read, is not a mapping, or contains an unknown field.
    """
    content = read_mapping(path, option)
    if isinstance(content.get("config"), dict):
        own_fields = fields_with(TrainConfig, inherited=False)
        with _errors_that_name(option, path):
            content = without_removed(content["config"])
        content = {k: v for k, v in content.items() if k not in own_fields}
        if content.get("anneal_steps") == content.get("total_steps"):
            content.pop("anneal_steps", None)  # so that it follows a --total-steps on the command line
        for name in fields_with(TrainConfig, copied=True):
            if content.get(name) is not None and (own := path.parent / name).is_dir():
                content[name] = str(own)
        if option == "--init-from":
            content = TrainConfig.continued(content)
    with _errors_that_name(option, path):
        return typed_fields({str(name).replace("-", "_"): value for name, value in content.items()})


@contextlib.contextmanager
def _errors_that_name(option: str, path: Path) -> Iterator[None]:
    """Let a ConfigError begin with a file and the option that names it."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{option} {path}: {error}") from error


def read_mapping(path: Path, option: str) -> dict[str, Any]:
    """Read a JSON or YAML file that has names and values.

    Args:
        path: the file.
        option: the option that names the file, for error messages.

    Raises:
        ConfigError: if it cannot be read, or if it is not a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{option} {path} cannot be read ({error}); name a YAML or JSON file") from error
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        if path.suffix == ".json" or not isinstance(error, json.JSONDecodeError):
            raise ConfigError(f"{option} {path} is not JSON ({error}); correct it") from error
        content = _read_yaml(text, f"{option} {path}")
    require(isinstance(content, dict), f"{option} {path} is not a mapping; write one `name: value` per line")
    return content  # type: ignore[no-any-return]


def _read_yaml(text: str, where: str) -> Any:
    """Parse a YAML text."""
    try:
        import yaml
    except ImportError as error:
        raise ConfigError(f"{where} needs pyyaml; pip install 'shmppo[yaml]', or write JSON") from error
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, TypeError, IndexError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{where} is neither JSON nor YAML ({reason}); correct it") from error


@dataclass(frozen=True)
class ResumeOptions:
    """Which run to resume, and where."""

    resume: Path
    """Directory of the run to resume."""
    checkpoint: str = "last"
    """The checkpoint: last, best, the number of an iteration, or a checkpoint file."""
    run_dir: Path | None = None
    """A new directory to continue in, as a branch. It gets the metrics up to the checkpoint. None: RUN_DIR for the last
    checkpoint, otherwise RUN_DIR-from-ITERATION."""
    trust: Modules = ()
    """A module or package that may be imported although only a run directory names it, for example that of its
    environment. Give the flag once per module."""


def _resume_config() -> Any:
    """Make the dataclass of all flags of `train --resume`: those of `ResumeOptions`, and the changeable fields.

    None means that the run keeps its value, so the sentence about None is left out of the help text.
    """
    kinds, texts = typing.get_type_hints(TrainConfig, include_extras=True), field_texts(TrainConfig)
    fields: list[tuple[str, Any, Any]] = []
    for name in BRANCHABLE:
        text = re.sub(r" None: [^.]*\.", "", texts[name])
        default, kind = (getattr(TrainConfig, name), bool) if kinds[name] is bool else (None, kinds[name] | None)
        fields.append((name, kind, dataclasses.field(default=default, metadata={"help": text})))
    last = flag(RESUMABLE[-1])
    text = f"Resume a run from its newest checkpoint. Flags replace its options.\n\nFlags after {last} need --run-dir."
    return dataclasses.make_dataclass(
        "ResumeConfig", fields, bases=(ResumeOptions,), frozen=True, namespace={"__doc__": text}
    )


ResumeConfig = _resume_config()


def parse_resume(arguments: Sequence[str]) -> tuple[Path, dict[str, Any]]:
    """Parse a command line with --resume. Return the run directory and the other arguments of `shmppo.resume`.

    Raises:
        ConfigError: for a flag that a resumed run cannot change, for an unknown flag, or for a wrong value.
        SystemExit: with code 0 after --help.
    """
    prog, given, fields = program("train"), given_fields(arguments), TrainConfig().fields().keys()
    known = {field.name for field in dataclasses.fields(ResumeConfig)}
    refuse_foreign_flags(arguments, [flag(name) for name in fields | known])
    if refused := [name for name in fields if name in given - known]:
        flags: list[list[str]] = [[]]  # each with its values
        for word in arguments:
            if word.startswith("--"):
                flags.append([])
            flags[-1].append(word)
        changes = [shlex.join(words) for words in flags if given_fields(words) & fields]
        raise ConfigError(refusal(Path(option_value(arguments, "--resume") or "RUN_DIR"), refused, changes))
    example = "--resume runs/pendulum --total-steps 1000000 --anneal-steps 1000000"
    options = parse(ResumeConfig, arguments, prog, example=example)
    changes_of_run = {name: getattr(options, name) for name in BRANCHABLE if name in given}
    where = {"checkpoint": options.checkpoint, "new_run_dir": options.run_dir, "quiet": options.quiet}
    return user_path(options.resume, "--resume"), {**where, "trust": options.trust, **changes_of_run}
