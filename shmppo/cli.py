"""The console script: `shmppo COMMAND …` runs `python -m shmppo.COMMAND …`.

Each command is imported only when it runs, so that the others stay fast.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Annotated, Any, NamedTuple, Union

from shmppo.config.checks import nearest
from shmppo.version import __version__


class Command(NamedTuple):
    """A command of the console script."""

    meaning: str
    """One line for the help text."""
    main: str
    """`module:function` that runs the command and returns its exit code."""
    options: str
    """`module:attribute` of its options: a dataclass, or a dictionary of dataclasses by subcommand."""


COMMANDS = {
    "train": Command("train a policy, or resume a run", "shmppo.train:main", "shmppo.config.train_config:TrainConfig"),
    "evaluate": Command("evaluate the policy of a run", "shmppo.evaluate:main", "shmppo.evaluate:EvaluateConfig"),
    "plot": Command("plot learning curves of runs", "shmppo.plot:main", "shmppo.plot:Plot"),
    "tune": Command("search for the fastest flags", "shmppo.tune:main", "shmppo.tools.tuning:Tune"),
    "bench": Command(
        "measure speed and the time of each phase", "shmppo.bench.__main__:main", "shmppo.bench.__main__:COMMANDS"
    ),
    "export": Command("export a policy as ONNX or TorchScript", "shmppo.export:main", "shmppo.export:ExportConfig"),
    "replay": Command("replay an episode that failed", "shmppo.replay:main", "shmppo.replay:ReplayConfig"),
}
COMPLETION = ("--tyro-print-completion", "--tyro-write-completion")


def usage() -> str:
    """Return the help text of `shmppo --help`."""
    lines = [f"  {name:<10}{command.meaning}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: shmppo COMMAND [flags]      (same as python -m shmppo.COMMAND)",
            "",
            *lines,
            "",
            "shmppo COMMAND --help lists the flags of a command. To install completion for bash (or zsh, tcsh):",
            "shmppo --tyro-write-completion bash ~/.local/share/bash-completion/completions/shmppo",
        ]
    )


def load(name: str) -> Any:
    """Import the object that `module:attribute` names."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def options_type(name: str) -> Any:
    """Return the type of a command's options for tyro: a dataclass, or a union of dataclasses for subcommands."""
    options = load(COMMANDS[name].options)
    if not isinstance(options, dict):
        return options
    import tyro

    parts = tuple(Annotated[kind, tyro.conf.subcommand(part)] for part, kind in options.items())
    return Union[parts]  # noqa: UP007 (X | Y cannot be built from a tuple)


def complete(arguments: list[str]) -> None:
    """Print or write the shell completion script of all commands.

    Args:
        arguments: completion flags of tyro (see `tyro.cli`).
    """
    import tyro

    types = {name: options_type(name) for name in COMMANDS}
    tyro.extras.subcommand_cli_from_dict(types, prog="shmppo", args=arguments)


def main() -> int:
    """Run the command that the command line names. Return its exit code, or 2 for an unknown command."""
    arguments = sys.argv[1:]
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        print(usage())
        return 0
    if name == "--version":
        print(f"shmppo {__version__}")
        return 0
    if name in COMPLETION:
        complete(arguments)
        return 0
    if name not in COMMANDS:
        print(f"error: shmppo has no command {name}{nearest(name, COMMANDS)}; see shmppo --help", file=sys.stderr)
        return 2
    sys.argv = [f"shmppo {name}", *arguments[1:]]
    sys.path.insert(0, os.getcwd())  # like python -m: flags may name modules in this directory
    code: int = load(COMMANDS[name].main)()
    return code
