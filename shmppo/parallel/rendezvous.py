"""The start of a run of several ranks: connect them, and check that their configurations agree."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from shmppo.config.checks import flag
from shmppo.config.option import fields_with
from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError, RankError
from shmppo.parallel.process_group import SINGLE_PROCESS, ProcessGroup
from shmppo.utils.machine import usable_cores, versions

_connections = itertools.count()  # number of the next connection of this process; it is the same on all ranks


@contextmanager
def connect(timeout: float) -> Iterator[ProcessGroup]:
    """Connect this process with the other ranks while the context is open.

    The environment variables RANK, WORLD_SIZE, MASTER_ADDR, and MASTER_PORT describe the ranks; torchrun sets them.
    Without WORLD_SIZE, or if it is 1, the group consists of this process alone.

    Args:
        timeout: of the connection and of each collective operation, in seconds.

    Yields:
        The group of all ranks.

    Raises:
        RankError: if some of the variables are missing, or the ranks cannot connect within the timeout.
    """
    group = _connect(timeout)
    try:
        yield group
    except BaseException as error:
        # The other ranks raise a ConfigError or RankError themselves, so they need no message.
        if not isinstance(error, (ConfigError, RankError)):
            group.report_failure(str(error).splitlines()[0] if str(error) else repr(error))
        raise
    finally:
        group.close()


def _connect(timeout: float) -> ProcessGroup:
    """Create the group of all ranks. For arguments and errors, see `connect`."""
    size = int(os.environ.get("WORLD_SIZE", 1))
    if size == 1:
        return SINGLE_PROCESS
    limit = timedelta(seconds=timeout)
    try:
        root_store, rank, size = next(rendezvous("env://", timeout=limit))
        # The store of torchrun still exists when torchrun restarts the ranks (--max-restarts). The prefix separates the
        # keys of the restarts.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = PrefixStore(f"shmppo/{attempt}/{next(_connections)}", root_store)
        # Import torch.distributed.nn before the group exists, because its functions bind the default group as a default
        # argument at import. Otherwise an optimizer imports the module later, and the module keeps this group and its
        # threads alive after `close`. Such threads sometimes abort the process when it exits.
        importlib.import_module("torch.distributed.nn")
        # Use gloo also with a GPU, because the gradients are in CPU memory.
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)
    except (RuntimeError, ValueError) as error:  # ValueError: a variable is missing
        rank, address, port = (os.environ.get(name) for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"))
        raise RankError(
            f"rank {rank} of {size} could not connect to the other ranks at {address}:{port} (timeout {timeout:g} s): "
            f"{str(error).splitlines()[0]}; start all ranks with torchrun and with the same address"
        ) from error
    return ProcessGroup(rank, size, PrefixStore("messages", store), timeout)


def agree_on_config(group: ProcessGroup, config: TrainConfig) -> TrainConfig:
    """Check that all ranks have the same configuration, and set the fields that belong to this rank.

    Args:
        config: the user's configuration of this rank. Only options with the trait `per_rank` may differ between ranks.

    Returns:
        The configuration with `rank`, `ranks`, and `workers` of this rank. Outputs are disabled except on rank 0.

    Raises:
        ConfigError: on all ranks, if a field or a library version differs. The message names the first one.
    """
    if group.size == 1:
        return dataclasses.replace(config, rank=0, ranks=1)
    # Versions first: ranks of other versions may have other fields.
    may_differ = fields_with(TrainConfig, per_rank=True)
    fields = {name: value for name, value in config.to_json().items() if name not in may_differ}
    mine = versions() | fields
    for rank, theirs in enumerate(group.gather_objects(mine)):
        for name, value in mine.items():
            if theirs.get(name) != value:
                label = flag(name) if hasattr(config, name) else name
                raise ConfigError(
                    f"rank {rank} has {label} {theirs.get(name)}, but rank {group.rank} has {label} {value}; "
                    "start all ranks with the same value"
                )
    workers = config.workers
    if workers is None:
        # Share the cores of the machine among its ranks. A rank with one core samples in the learner's process.
        cores = usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        workers = min(cores, config.num_envs) if cores > 1 else 0
    own = dataclasses.replace(config, rank=group.rank, ranks=group.size, workers=workers)
    if group.rank == 0:
        return own
    return dataclasses.replace(own, quiet=True, track=(), eval_videos=False)
