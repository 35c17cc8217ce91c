"""Command `python -m shmppo.bench COMMAND [flags of train]`: run a benchmark.

Every benchmark times real training runs, not a simplified copy of the training loop.
"""

from __future__ import annotations

import importlib
import sys

from shmppo.bench.options import INTERRUPTED, Scaling, Stragglers, Throughput, Topologies
from shmppo.config.checks import nearest, require
from shmppo.config.command_line import parse, program
from shmppo.config.flag_table import flag_groups
from shmppo.config.help import HELP_FLAGS, Page, columns_of, print_text, terminal_columns
from shmppo.errors import run_command

COMMANDS: dict[str, type] = {
    "throughput": Throughput,
    "scaling": Scaling,
    "stragglers": Stragglers,
    "topologies": Topologies,
}
"""Options of each benchmark. The module of the same name measures."""
EXAMPLES = {
    "throughput": "--env HalfCheetah-v5 --workers 4",
    "scaling": "--env HalfCheetah-v5 --workers 1 2 4 --out scaling",
    "stragglers": "--env HalfCheetah-v5 --workers 4",
    "topologies": "--env HalfCheetah-v5 --processes 2",
}


def usage() -> str:
    """Return the help text of `bench --help`."""
    prog = program("bench")
    meanings = {name: flag_groups(options)[0].text for name, options in COMMANDS.items()}
    columns = terminal_columns()
    lines = [line for name, text in meanings.items() for line in columns_of(name, text, columns, indent=14)]
    return "\n".join(
        [
            f"usage: {prog} COMMAND [flags]",
            "",
            "Run a benchmark. Every benchmark times real training runs.",
            "",
            "Commands:",
            *lines,
            "",
            f"{prog} COMMAND --help shows the flags of a command.",
        ]
    )


def main() -> int:
    """Parse the command line and run the benchmark; returns the exit code."""
    return run_command(lambda: _measure(sys.argv[1:]), INTERRUPTED)


def _measure(arguments: list[str]) -> None:
    name = arguments[0] if arguments else "--help"
    if name in HELP_FLAGS:
        print_text(usage())
        return
    prog = program("bench")
    require(name in COMMANDS, f"{prog} has no command {name}{nearest(name, COMMANDS)}; see {prog} --help")
    own = flag_groups(COMMANDS[name])[0]
    page = Page(
        f"{prog} {name}",
        own.text,
        examples=(EXAMPLES[name],),
        common=tuple(flag.field for flag in own.flags),
    )
    options = parse(COMMANDS[name], arguments[1:], page)
    importlib.import_module(f"shmppo.bench.{name}").report(options)


if __name__ == "__main__":
    sys.exit(main())
