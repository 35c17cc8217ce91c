"""Check that a run can be reproduced, or compare two runs: `python -m shmppo.verify RUN_DIR [RUN_DIR]`."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from shmppo.config.checks import require
from shmppo.config.command_line import parse
from shmppo.config.train_config import compute_like
from shmppo.config.trust import Modules
from shmppo.errors import ConfigError, print_text, run_command
from shmppo.utils.commands import program
from shmppo.utils.files import user_path


@dataclass(frozen=True)
class VerifyConfig:
    """Check a run by executing a part of it again, or find where two runs differ."""

    run_dirs: tyro.conf.Positional[tuple[Path, ...]]
    """A run or an exported policy, to execute a part of it again, or two runs to compare. Runs must have ended."""
    from_iteration: int | None = None
    """Number of finished iterations at the start of the part. The execution begins at the nearest checkpoint before it;
    see --keep-every of train. None: at the newest checkpoint that has iterations after it."""
    iterations: int | None = None
    """Number of iterations to execute again. 0: only check the files. None: 10, or all of an exported policy; 1 with
    --dump."""
    sample: str | None = None
    """Number of iterations to draw, or COUNT:SEED to repeat a draw. The parts between checkpoints that contain them are
    executed, with evaluations. None: one part."""
    dump: Path | None = None
    """Directory for what the iterations compute: rollouts, minibatches, gradients, and weights."""
    workers: int | None = None
    """Number of worker processes. It does not change the result. None: as in the run."""
    trust: Modules = ()
    """A module or package that may be imported although only a run directory names it, for example that of its
    environment. Give the flag once per module."""


def main() -> int:
    """Run the command. Return 0 if everything is equal, 1 if something differs, and 2 if a file is damaged."""
    return run_command(_verify)


def _verify() -> int:
    """Print what was found. Return 0 if everything is equal, else 1."""
    example = "runs/pendulum --from-iteration 100 --iterations 20"
    options = parse(VerifyConfig, sys.argv[1:], program("verify"), example=example)
    count, of_part = len(options.run_dirs), (options.from_iteration, options.iterations, options.dump)
    require(count in (1, 2), f"{count} run directories are given; name one or two")
    message = "--from-iteration, --iterations, and --dump are for one run; leave them out to compare two runs"
    require(count == 1 or (*of_part, options.sample) == (None,) * 4, message)
    message = "--sample chooses the iterations; leave out --from-iteration, --iterations, and --dump"
    require(options.sample is None or of_part == (None,) * 3, message)
    run_dirs = [user_path(path, "RUN_DIRS") for path in options.run_dirs]
    for run_dir in run_dirs:
        compute_like(run_dir)
    from shmppo.tools.verify import compare_runs, verify_run

    if count == 2:
        verdict = compare_runs((run_dirs[0], run_dirs[1]), workers=options.workers, trust=options.trust)
    else:
        given = {name: value for name, value in vars(options).items() if name != "run_dirs"}
        given["sample"], given["seed"] = _draw(options.sample)
        given["dump"] = options.dump and user_path(options.dump, "--dump")
        verdict = verify_run(run_dirs[0], **given)
    print_text(verdict.text)
    return int(not verdict.equal)


def _draw(text: str | None) -> tuple[int | None, int | None]:
    """Return the two numbers of --sample. Raises ConfigError if it has another form."""
    if text is None:
        return None, None
    parts = re.fullmatch(r"(\d+)(?::(\d+))?", text)
    if parts is None:
        raise ConfigError(f"--sample is {text}; name a number of iterations, or COUNT:SEED, for example 5 or 5:1234")
    return int(parts[1]), None if parts[2] is None else int(parts[2])


if __name__ == "__main__":
    sys.exit(main())
