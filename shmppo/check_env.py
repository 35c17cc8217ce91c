"""Check an environment: `python -m shmppo.check_env ENV`. Does it follow Gymnasium's API, and is it reproducible?"""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from typing import Annotated

import tyro

from shmppo.config.command_line import parse
from shmppo.config.option import AT_LEAST_1, check_bounds, option
from shmppo.config.options import TaskOptions
from shmppo.errors import output_as_stderr, print_text, run_command
from shmppo.utils.commands import program


@dataclass(frozen=True)
class CheckEnvConfig(TaskOptions):
    """Check that an environment follows Gymnasium's API and is reproducible."""

    env: tyro.conf.Positional[str] = dataclasses.field()
    """The environment: a Gymnasium id, `module:Id` to import the module first, or `module:factory` to call a
    function."""
    steps: int = option(1000, AT_LEAST_1)
    """Steps for which two instances in two processes must give the same bits."""
    action_masks: bool = False
    """Choose only actions that info["action_mask"] allows, for Discrete and MultiDiscrete actions."""
    total_steps: Annotated[int, tyro.conf.Fixed, tyro.conf.Suppress] = 200_000


def main() -> int:
    """Run the command. Return 0 if the environment is reproducible, 1 if it is not, and the code of an error."""
    return run_command(_check_env)


def _check_env() -> int:
    options = parse(
        CheckEnvConfig, sys.argv[1:], program("check-env"),
        example="my_module:make --env-kwargs size=9 --steps 5000",
        common=("env", "env_kwargs", "wrappers", "env_backend", "steps"),
    )  # fmt: skip
    check_bounds(options)
    fields = dict(vars(options))
    steps = fields.pop("steps")
    from shmppo.tools.check_env import check_environment

    with output_as_stderr():
        text, reproducible = check_environment(fields, steps)
    print_text(text)
    return int(not reproducible)


if __name__ == "__main__":
    sys.exit(main())
