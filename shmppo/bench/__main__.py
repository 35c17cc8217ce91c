"""Command `python -m shmppo.bench COMMAND [flags of train]`: run a benchmark.

Every benchmark times real training runs, not a simplified copy of the training loop.
"""

from __future__ import annotations

import importlib
import inspect
import sys

from shmppo.bench.options import Scaling, Throughput
from shmppo.config.checks import nearest, require
from shmppo.config.command_line import HELP_FLAGS, parse
from shmppo.errors import run_command
from shmppo.utils.commands import program

COMMANDS: dict[str, type] = {"throughput": Throughput, "scaling": Scaling}
"""Options of each benchmark. The module of the same name measures."""
EXAMPLES = {
    "throughput": "--env HalfCheetah-v5 --workers 4",
    "scaling": "--env HalfCheetah-v5 --workers 1 2 4 --out scaling.csv",
}


def usage() -> str:
    """Return the help text of `bench --help`."""
    prog = program("bench")
    meanings = [f"  {name:<12}{(inspect.getdoc(kind) or '').splitlines()[0]}\n" for name, kind in COMMANDS.items()]
    return (
        f"usage: {prog} COMMAND [flags]\n\nRun a benchmark. Every benchmark times real training runs.\n\n"
        f"{''.join(meanings)}\n{prog} COMMAND --help shows the flags of a command."
    )


def main() -> int:
    """Parse the command line and run the benchmark; returns the exit code."""
    return run_command(_measure, "interrupted; the unfinished measurement is discarded")


def _measure() -> None:
    name, *flags = sys.argv[1:] or ["--help"]
    if name in HELP_FLAGS:
        print(usage())
        return
    prog = program("bench")
    require(name in COMMANDS, f"{prog} has no command {name}{nearest(name, COMMANDS)}; see {prog} --help")
    kind = COMMANDS[name]
    options = parse(
        kind, flags, f"{prog} {name}", example=EXAMPLES[name], common=inspect.get_annotations(kind),
    )  # fmt: skip
    importlib.import_module(f"shmppo.bench.{name}").report(options)


if __name__ == "__main__":
    sys.exit(main())
