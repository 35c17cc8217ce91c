"""The console script: `shmppo COMMAND …` is `python -m shmppo.COMMAND …`. What a command needs is imported with it."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Annotated, Any, NamedTuple, Union

from shmppo.config.options import nearest
from shmppo.version import __version__


class Command(NamedTuple):
    """A module with a `main`."""

    meaning: str
    main: str
    """`module:function` of the command."""
    options: str
    """`module:attribute` of its options: a dataclass, or a dictionary of dataclasses by subcommand."""


COMMANDS = {
    "train": Command(
        "train a policy, or go on with a run", "shmppo.train:main", "shmppo.config.train_config:TrainConfig"
    ),
    "evaluate": Command("play episodes with a run's policy", "shmppo.evaluate:main", "shmppo.evaluate:EvaluateConfig"),
    "plot": Command("curves of runs, over seeds", "shmppo.plot:main", "shmppo.plot:Plot"),
    "tune": Command("find fast flags for a given batch", "shmppo.tune:main", "shmppo.tools.tuning:Tune"),
    "bench": Command(
        "measure speed, and where the time goes", "shmppo.bench.__main__:main", "shmppo.bench.__main__:COMMANDS"
    ),
    "export": Command("write the policy as ONNX or TorchScript", "shmppo.export:main", "shmppo.export:ExportConfig"),
    "replay": Command(
        "bring an environment back to the step that failed", "shmppo.replay:main", "shmppo.replay:ReplayConfig"
    ),
}
COMPLETION = ("--tyro-print-completion", "--tyro-write-completion")


def usage() -> str:
    """What `shmppo --help` prints."""
    lines = [f"  {name:<10}{command.meaning}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: shmppo COMMAND [flags]      (the same as python -m shmppo.COMMAND)",
            "",
            *lines,
            "",
            "shmppo COMMAND --help names its flags. Completion of commands and flags for bash, zsh or tcsh:",
            "shmppo --tyro-write-completion bash ~/.local/share/bash-completion/completions/shmppo",
        ]
    )


def load(name: str) -> Any:
    """The object that `module:attribute` names."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def options_type(name: str) -> Any:
    """The type of a command's options as tyro takes it."""
    options = load(COMMANDS[name].options)
    if not isinstance(options, dict):
        return options
    import tyro

    parts = tuple(Annotated[kind, tyro.conf.subcommand(part)] for part, kind in options.items())
    return Union[parts]  # noqa: UP007 (made of a tuple)


def complete(arguments: list[str]) -> None:
    """Write the shell's completion script for all commands, as `arguments` say (see `tyro.cli`)."""
    import tyro

    types = {name: options_type(name) for name in COMMANDS}
    tyro.extras.subcommand_cli_from_dict(types, prog="shmppo", args=arguments)


def main() -> int:
    """The command line; returns the exit code of the command, 2 for one that does not exist."""
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
    sys.path.insert(0, os.getcwd())  # as python -m does: modules that flags name may lie here
    code: int = load(COMMANDS[name].main)()
    return code
