"""The command `python -m shmppo.train`. The module does not import torch, so that --help is fast."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shmppo.config.train_config import TrainConfig


def main(default: TrainConfig | None = None) -> int:
    """Train a policy or resume a run, as the flags on the command line say.

    Args:
        default: configuration that the flags override. None: the default job.

    Returns:
        The exit code.
    """
    from shmppo.errors import run_command

    more = "if the run has started, continue from its last checkpoint with --resume"
    if any(word.partition("=")[0] == "--seeds" for word in sys.argv):
        more = "continue the runs with the same command"
    return run_command(lambda: _train(sys.argv[1:], default), f"interrupted; {more}")


def _train(arguments: list[str], default: TrainConfig | None) -> None:
    """Train a run, or one for each seed, or resume a run."""
    from shmppo.config.flags import option_value, parse_resume, parse_start
    from shmppo.config.train_config import compute_like
    from shmppo.utils.portable import pin_torch

    if option_value(arguments, "--resume") is None:
        script = None if default is None else f"python {sys.argv[0]}"
        config, start = parse_start(arguments, script=script, default=default)
        if start.seeds:
            from shmppo.tools.seeds import train_seeds

            return train_seeds(config, start.seeds, start.jobs, start.trust)
        from shmppo.runs.startup import check_early, early_fork_server, startup_line

        if config.portable:
            pin_torch()
        with early_fork_server(config):
            with startup_line(f"shmppo  {config.env_id}  importing torch ...", quiet=config.quiet):
                check_early(config, overwrite=start.overwrite)
                from shmppo.runs.launch import train
            return _print_summary(train(config, trust=start.trust, overwrite=start.overwrite))
    run_dir, changes = parse_resume(arguments)
    compute_like(run_dir)
    from shmppo.runs.startup import startup_line

    with startup_line(f"shmppo  {run_dir}  importing torch ...", quiet=changes["quiet"]):
        from shmppo.runs.launch import resume
    return _print_summary(resume(run_dir, **changes))


def _print_summary(summary: dict[str, Any]) -> None:
    """Print the summary of a run, except with --quiet."""
    if not summary["config"]["quiet"]:
        from shmppo.config.train_config import TrainConfig
        from shmppo.errors import print_text
        from shmppo.loggers.summary import summary_text

        print_text(summary_text(TrainConfig(**summary["config"]), summary, Path(summary["run_dir"])))
