"""The learner's device (--device): which one it is, a copy of the network on it, and deterministic algorithms."""

from __future__ import annotations

import copy
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError
from shmppo.models.actor_critic import ActorCritic
from shmppo.models.user_module import UserModule, user_modules
from shmppo.utils.portable import WORKSPACES

log = logging.getLogger(__name__)

DETERMINISTIC_WORKSPACES = (":4096:8", ":16:8")
"""Values of WORKSPACES with which cuBLAS is deterministic."""
UNTESTED_TORCH = "2.14"
"""The first release of torch with which the tests have not run. The extra `test` of pyproject.toml excludes it."""
_warned: dict[Any, Any] = {}
"""Warnings that were shown, as Python's registries list them."""


def own_device(config: TrainConfig) -> torch.device:
    """Return the device of this rank: with --device cuda, local rank r has GPU r modulo their number."""
    if config.device != "cuda" or not torch.cuda.is_available():
        return torch.device(config.device)
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())


def log_untested_torch() -> None:
    """Log one line if torch is newer than the releases with which the tests have run."""
    if torch.__version__ >= UNTESTED_TORCH:
        log.info("torch %s is newer than the releases with which shmppo was tested", torch.__version__)


def check_device(config: TrainConfig) -> None:
    """Make the device the current one, with deterministic algorithms. Raises ConfigError if torch cannot use it."""
    if config.device == "cpu":
        return
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        os.environ.setdefault(WORKSPACES, DETERMINISTIC_WORKSPACES[0])
    try:
        device = own_device(config)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA raises an AssertionError
        reason = str(error).splitlines()[0]
        raise ConfigError(f"--device {config.device} cannot be used here ({reason}); use --device cpu") from error
    local = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    used = torch.cuda.device_count() if config.device == "cuda" else 1
    if device.type == "cuda" and local > used:
        log.warning("%d ranks share %d GPUs; start as many ranks as GPUs, with --device cuda", local, used)


def copy_to(model: ActorCritic, device: torch.device) -> ActorCritic:
    """Return a copy of a network on a device. `UserModule.copies` gets the copies of the user's modules."""
    others: dict[int, Any] = {id(module.copies): [] for module in user_modules(model)}
    copied = copy.deepcopy(model, others).to(device)
    for own, on_device in zip(user_modules(model), user_modules(copied), strict=True):
        own.copies.append(on_device)
    return copied


@contextmanager
def deterministic_algorithms(modules: Sequence[UserModule]) -> Iterator[None]:
    """Let torch use deterministic algorithms without TF32.

    Operations without a deterministic form are recorded in `modules`, those of the user. Without modules, they raise a
    RuntimeError.
    """
    modes: Any = torch.utils.deterministic
    before, filled = torch.get_deterministic_debug_mode(), modes.fill_uninitialized_memory
    of_cudnn = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
    with warnings.catch_warnings(record=True) as caught, of_cudnn:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
        torch.set_deterministic_debug_mode("warn" if modules else "error")
        modes.fill_uninitialized_memory = False
        try:
            yield
        finally:
            torch.set_deterministic_debug_mode(before)
            modes.fill_uninitialized_memory = filled
    for warning in caught:
        text = str(warning.message)
        if "deterministic" not in text:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno, registry=_warned
            )
        for module in modules if "deterministic" in text else ():
            module.operations.add(text.split()[0])
