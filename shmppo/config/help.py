"""The help texts of all commands: plain text of at most 80 columns."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shmppo.config.flag_table import Flag, Group

COLUMNS = 80
INDENT = 26
"""Column at which the text of a flag begins."""
PLAIN = str.maketrans(
    {"γ": "gamma", "λ": "lambda", "β": "beta", "ε": "epsilon", "α": "alpha", "·": "*", "×": "x", "±": "+-"}
    | {"…": "...", "–": "-", "−": "-", "’": "'", "“": '"', "”": '"'}
)  # fmt: skip
"""Replacements for terminals that cannot show these letters."""
HELP_FLAGS = ("-h", "--help", "--help-all")


@dataclass(frozen=True)
class Page:
    """What the help text of a command says besides its flags."""

    prog: str
    """The command as the user types it."""
    description: str
    """One or two sentences."""
    examples: tuple[str, ...] = ()
    """Flags of example commands."""
    common: tuple[str, ...] = ()
    """Fields whose flags --help shows. --help-all shows the others too. Empty: --help shows all flags."""


def help_text(page: Page, groups: Sequence[Group], *, complete: bool) -> str:
    """Return the help text of a command.

    Args:
        page: everything but the flags.
        groups: all flags.
        complete: show all flags instead of the common ones.
    """
    columns = terminal_columns()
    positional = [flag.name for group in groups for flag in group.flags if flag.positional]
    lines = [" ".join(["usage:", page.prog, *positional, "[flags]"]), "", *textwrap.wrap(page.description, columns)]
    if page.common and not complete:
        lines += _common(page, groups, columns)
    else:
        for group in groups:
            lines += ["", *_heading(group, columns)]
            lines += [line for flag in group.flags for line in _entry(flag, flag.help, columns)]
    if page.examples:
        lines += ["", "Example:" if len(page.examples) == 1 else "Examples:"]
        lines += [line for example in page.examples for line in _command(f"{page.prog} {example}", columns)]
    return "\n".join(lines)


def terminal_columns() -> int:
    """Return the width of help texts: that of the terminal, but at most 80."""
    return min(COLUMNS, shutil.get_terminal_size((COLUMNS, 24)).columns)


def print_text(text: str) -> None:
    """Print a text on standard output, with plain letters if its encoding has no others."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(PLAIN).encode(encoding, errors="replace").decode(encoding)
    print(text)


def _command(command: str, columns: int) -> list[str]:
    """Return the lines of a shell command. A backslash ends each line but the last."""
    lines = textwrap.wrap(command, columns - 2, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False)
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def _heading(group: Group, columns: int) -> list[str]:
    """Return the lines above the flags of a group. The page's description already says what a command's own do."""
    if group.title == "Flags":
        return ["Flags:"]
    return textwrap.wrap(f"{group.title}: {group.text}", columns)


def _common(page: Page, groups: Sequence[Group], columns: int) -> Iterator[str]:
    """Yield the common flags, and the subjects of the others."""
    flags = {flag.field: flag for group in groups for flag in group.flags}
    yield from ("", "Common flags:")
    for name in page.common:
        yield from _entry(flags[name], flags[name].help, columns)
    yield from ("", f"--help-all shows all {len(flags)} flags. Subjects of the others:")
    for group in groups:
        if any(flag.field not in page.common for flag in group.flags):
            yield from columns_of(group.title.lower(), group.text, columns, indent=14)


def _entry(flag: Flag, text: str, columns: int) -> list[str]:
    """Return the lines of a flag."""
    return columns_of(f"{flag.name} {flag.metavar}".rstrip(), text, columns, indent=INDENT)


def columns_of(left: str, right: str, columns: int, *, indent: int) -> list[str]:
    """Return `left` and the wrapped text `right` beside it, or below it if `left` is too long.

    Args:
        left: a name.
        right: its meaning.
        columns: width of the lines.
        indent: column at which the meaning begins.
    """
    wrapped = textwrap.wrap(
        right,
        columns,
        initial_indent=" " * indent,
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
    if wrapped and len(left) + 4 <= indent:
        wrapped[0] = f"  {left}".ljust(indent) + wrapped[0][indent:]
        return wrapped
    return [f"  {left}", *wrapped]
