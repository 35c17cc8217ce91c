"""The console script: `shmppo COMMAND …` runs `python -m shmppo.COMMAND …`.

Each command is imported only when it runs, so that the others stay fast.
"""

from __future__ import annotations

import os
import pkgutil
import sys
from typing import Annotated, Any, NamedTuple, Union

from shmppo.config.checks import nearest
from shmppo.config.command_line import HELP_FLAGS, PARSER_SETTINGS, with_texts
from shmppo.errors import CommandEnd, ConfigError, run_command
from shmppo.version import __version__


class Command(NamedTuple):
    """A command of the console script."""

    meaning: str
    """One line for the help text."""
    module: str
    """The module of this package whose function `main` runs the command and returns its exit code."""
    options: str
    """`module:attribute` of its options: a dataclass, a function that makes it, or a dictionary by subcommand."""


COMMANDS = {
    "train": Command("train a policy, or resume a run", "train", "config.flags:flags_type"),
    "evaluate": Command("evaluate the policy of a run", "evaluate", "evaluate:EvaluateConfig"),
    "plot": Command("plot learning curves of runs", "plot", "plot:Plot"),
    "search": Command("search for good hyperparameters", "search.__main__", "search.options:SearchOptions"),
    "bench": Command("measure speed and the time of each phase", "bench.__main__", "bench.__main__:COMMANDS"),
    "export": Command("export a policy for other programs, or to publish it", "export", "export:ExportConfig"),
    "check-env": Command("check whether an environment is reproducible", "check_env", "check_env:CheckEnvConfig"),
    "new-task": Command("write a task for a MuJoCo model", "new_task", "new_task:NewTaskConfig"),
    "replay": Command("look at episodes of a run again", "replay", "replay:ReplayConfig"),
    "verify": Command("check or compare runs", "verify", "verify:VerifyConfig"),
}


def usage() -> str:
    """Return the help text of `shmppo --help`."""
    commands = "\n".join(f"  {name:<11}{command.meaning}" for name, command in COMMANDS.items())
    return f"""\
usage: shmppo COMMAND [flags]

Train recurrent PPO policies. python -m shmppo.COMMAND does the same.

Commands:
{commands}

shmppo COMMAND --help shows the flags of a command. shmppo --version shows the
version. To install completion for bash (or zsh):
  shmppo --tyro-write-completion bash \\
      ~/.local/share/bash-completion/completions/shmppo"""


def options_by_subcommand(name: str) -> dict[str, type]:
    """Return the dataclasses of a command's options by subcommand. Without subcommands, the only key is ""."""
    options = pkgutil.resolve_name(f"shmppo.{COMMANDS[name].options}")
    if isinstance(options, dict):
        return options
    return {"": options if isinstance(options, type) else options()}


def options_type(name: str) -> Any:
    """Return the type of a command's options for tyro: a dataclass, or a union of dataclasses for subcommands."""
    options = {part: with_texts(kind) for part, kind in options_by_subcommand(name).items()}
    if "" in options:
        return options[""]
    import tyro

    parts = tuple(Annotated[kind, tyro.conf.subcommand(part)] for part, kind in options.items())
    return Union[parts]  # noqa: UP007 (X | Y cannot be built from a tuple)


def complete(arguments: list[str]) -> None:
    """Let tyro print or write the shell completion script of all commands."""
    import tyro

    types = {name: options_type(name) for name in COMMANDS}
    try:
        tyro.extras.subcommand_cli_from_dict(types, prog="shmppo", args=arguments, config=PARSER_SETTINGS)
    except SystemExit as error:
        raise CommandEnd(error.code) from error


def main() -> int:
    """Run the command that the command line names. Return its exit code, or 2 for an unknown command."""
    arguments = sys.argv[1:]
    name = arguments[0] if arguments else "--help"
    if name not in COMMANDS:
        return run_command(lambda: _without_command(name, arguments))
    sys.argv[1:] = arguments[1:]
    sys.path.insert(0, os.getcwd())  # like python -m: flags may name modules in this directory
    if os.path.isdir("shmppo"):  # a copy of the repository: workers import the installed package, as this process does
        sys.path.insert(0, os.path.dirname(os.path.dirname(__file__)))
    return int(pkgutil.resolve_name(f"shmppo.{COMMANDS[name].module}:main")())


def _without_command(name: str, arguments: list[str]) -> None:
    """Do what a command line without a command asks for. name: its first word."""
    if name in HELP_FLAGS:
        print(usage())
    elif name == "--version":
        from shmppo.kernels import supported_variants

        print(f"shmppo {__version__}, kernels: {next(iter(supported_variants()), 'not compiled')}")
    elif name.startswith("--tyro-"):
        complete(arguments)
    else:
        raise ConfigError(f"shmppo has no command {name}{nearest(name, COMMANDS)}; see shmppo --help")
