"""The start of the train command: checks that need no torch, and its import here and in the fork server together."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.status import Status
from rich.text import Text

from shmppo.config.train_config import TrainConfig
from shmppo.envs.creation_errors import check_env_name
from shmppo.lockstep.fork_server import kill_fork_server, start_fork_server
from shmppo.storage.run_directory import refuse_existing_run
from shmppo.utils.files import user_path
from shmppo.utils.user_code import is_importing_main


def check_early(config: TrainConfig, *, overwrite: bool = False) -> None:
    """Check the values in which mistakes are most common, before seconds are spent on the import of torch.

    With torchrun, all ranks check them later and together, because a run that torchrun restarts has a run directory.

    Raises:
        ConfigError: if --run-dir contains a run, or if --env does not name an environment.
    """
    if is_importing_main() or "RANK" in os.environ:
        return
    if config.run_dir is not None and not overwrite:
        refuse_existing_run(user_path(config.run_dir, "--run-dir"))
    if config.env_backend in ("auto", "gymnasium"):  # other backends may make what is no environment of Gymnasium
        check_env_name(config.env_id)


@contextmanager
def early_fork_server(config: TrainConfig) -> Iterator[None]:
    """Start the fork server of a run now, and kill it at the end of the context.

    It takes seconds to import torch. Started early, it does so while this process imports torch, too.
    """
    if is_importing_main() or not config.num_workers:
        yield
        return
    start_fork_server()
    try:
        yield
    finally:
        kill_fork_server()


def startup_line(text: str, *, quiet: bool) -> Status:
    """Show a line on the terminal while the context is open. Other outputs do not get it."""
    return Console(quiet=quiet).status(Text(text))
