"""What all commands do with their command line: show help, check the flags, and parse them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from shmppo.config.arguments import check_arguments
from shmppo.config.flag_table import flag_groups
from shmppo.config.help import HELP_FLAGS, Page, help_text, print_text
from shmppo.errors import CommandEnd


def program(command: str) -> str:
    """Return a command as the user starts it: `shmppo COMMAND` from the console script, else `python -m …`."""
    if sys.argv[0].startswith("shmppo "):
        return f"shmppo {command}"
    return f"python -m shmppo.{command.replace('-', '_')}"


def parse(kind: Any, arguments: Sequence[str], page: Page) -> Any:
    """Parse a command line, or print the help text that it asks for.

    Args:
        kind: dataclass of the options.
        arguments: the command line.
        page: texts of the help page.

    Returns:
        An object of type `kind`.

    Raises:
        ConfigError: for an unknown flag or a wrong value.
        CommandEnd: with code 0 after the help text, or with the code of tyro.
    """
    groups = flag_groups(kind)
    if any(argument in HELP_FLAGS for argument in arguments):
        print_text(help_text(page, groups, complete="--help-all" in arguments))
        raise CommandEnd(0)
    if not any(argument.startswith("--tyro-") for argument in arguments):
        check_arguments(arguments, [flag for group in groups for flag in group.flags], page.prog)
    import tyro

    settings = (tyro.conf.OmitArgPrefixes,)
    try:
        return tyro.cli(kind, args=list(arguments), prog=page.prog, description=page.description, config=settings)
    except SystemExit as error:
        raise CommandEnd(error.code) from error
