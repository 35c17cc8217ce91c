"""Search for good hyperparameters with Optuna: `python -m shmppo.search --trials 27 -- --env …`.

Modules:

- `options`: the flags.
- `space`: which options a trial varies.
- `study`: the Optuna study, which samples the trials bracket by bracket.
- `trial_run`: one training run of a trial, in a process of its own.
- `scheduler`: successive halving, which pauses trials at rungs and continues the best of them from their checkpoints.
- `view`: the table on the terminal.
- `report`: the files at the end.
"""

from __future__ import annotations

import importlib.util
import sys


def main() -> int:
    """Run the command `search` and return its exit code."""
    from shmppo.errors import run_command
    from shmppo.search.options import INTERRUPTED

    return run_command(lambda: _search(sys.argv[1:]), INTERRUPTED)


def _search(arguments: list[str]) -> None:
    from shmppo.errors import ConfigError
    from shmppo.search.options import parse_search

    options, config, trust = parse_search(arguments)
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError("shmppo search needs the package optuna; pip install 'shmppo[search]'")
    from shmppo.search.scheduler import search

    search(options, config, trust)
