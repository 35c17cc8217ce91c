"""Command `python -m shmppo.search [flags] -- [flags of train]`: search for good hyperparameters."""

from __future__ import annotations

import importlib.util
import sys

from shmppo.errors import ConfigError, run_command
from shmppo.search.options import parse_search


def main() -> int:
    """Run the command and return its exit code."""
    return run_command(_search, "interrupted; continue the search with the same command")


def _search() -> None:
    options, config, trust = parse_search(sys.argv[1:])
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError("shmppo search needs the package optuna; pip install 'shmppo[search]'")
    from shmppo.search.scheduler import search

    search(options, config, trust)


if __name__ == "__main__":
    sys.exit(main())
