"""What a run starts from: random weights, the weights of another run (--init-from), or a checkpoint (--resume)."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from shmppo.config.checks import flag_with_value, require
from shmppo.config.extensions import added
from shmppo.config.train_config import ONLY_FOR_LEARNING, TrainConfig, stored_config
from shmppo.config.trust import Trusted
from shmppo.envs.inspection import space_differences
from shmppo.envs.spec import EnvSpec
from shmppo.errors import ConfigError
from shmppo.models.actor_critic import network_weights, parameter_shapes, weights_sha256
from shmppo.parallel.process_group import ProcessGroup
from shmppo.parallel.shared_buffers import Field
from shmppo.storage.checkpoint import BEST, NAME, check_learner, check_shapes, load_selected_checkpoint
from shmppo.storage.history import copy_history
from shmppo.storage.run_directory import CONFIG, create_run_directory, locked
from shmppo.utils.files import config_error_if_unwritable, read_object, write_json

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class InitialWeights:
    """The part of another run's checkpoint from which a new run starts."""

    path: Path
    """Directory of the other run, or its checkpoint file."""
    checkpoint: dict[str, Any]
    """Content of the checkpoint."""

    def record(self) -> dict[str, Any]:
        """Return what config.json, summary.json, and checkpoints record about the other run."""
        return origin(self.path, self.checkpoint)

    def check(self, config: TrainConfig, task: EnvSpec) -> None:
        """Check that a run can start from these weights.

        Raises:
            ConfigError: if the weights would be another policy: if a shape, the activation, or the distribution of
                actions differs, if the networks see other parts of the observation, if the windows of --core lmu
                differ, or if only one of the two runs normalizes observations or squashes actions.
        """
        where, before = f"--init-from {self.path}", stored_config(json.loads(self.checkpoint["config"]))
        options = ["actor_obs", "critic_obs", "normalize_obs", "squash_actions", "std"]  # the shapes may be the same
        options += ["activation"] if config.network is None and config.encoder_sizes else []
        options += ["seq_len"] if config.network is None and config.core == before.core == "lmu" else []
        options += ["log_std_init", "log_std_min"] if config.std == "state" else []
        for name in options:
            value = getattr(before, name)
            trained = flag_with_value(name, value)
            require(getattr(config, name) == value, f"{where} was trained with {trained}; add this flag")
        plain = dataclasses.replace(config, **ONLY_FOR_LEARNING)
        parameters = parameter_shapes(plain, task.observation, task.distribution)
        advice = "that run has another network or other spaces; use its options and an environment with its spaces"
        learner = dict(self.checkpoint["learner"])
        learner["model"] = network_weights(learner["model"])
        check_learner(learner, parameters, task.observation.normalized_size, where=where, advice=advice)
        stored = json.loads(self.checkpoint.get("spaces", "null"))  # earlier versions did not store them
        for difference in [] if stored is None else space_differences(task, stored):
            require(difference.of_bounds, f"{where}: {difference.text}; use an environment with the spaces of that run")
            log.warning("%s: %s; its weights fit the other bounds", where, difference.text)
        hidden = before.hidden_indices  # their weights and moments are not trained
        flags = flag_with_value("hide_obs", hidden)
        require({*hidden} <= {*config.hidden_indices}, f"{where} was trained with {flags}; hide them, too")


def load_initial_weights(config: TrainConfig, process_group: ProcessGroup) -> InitialWeights | None:
    """Load the weights that --init-from names. Return None without this option.

    Raises:
        ConfigError: on all ranks, if a rank finds no checkpoint or other weights than another rank.
    """
    if config.init_from is None:
        return None
    path = Path(config.init_from)
    return InitialWeights(path, load_on_all_ranks(path, "--init-from", process_group))


class StartExtension:
    """The base of START in the module `start` of an extension: what it needs before a run starts."""

    def __init__(self, config: TrainConfig, process_group: ProcessGroup, trust: Trusted, resumed: Path | None) -> None:
        """Load what the run needs, if it uses the feature. Raises ConfigError on all ranks if it cannot be loaded.

        Args:
            trust: modules of which other runs may name code (see `check_trust`).
            resumed: directory of the run that continues. None: a new run.
        """

    def complete(self, config: TrainConfig, task: EnvSpec) -> EnvSpec:
        """Return the description of the environment with what the processes of the run need (`EnvSpec.added`).

        Raises:
            ConfigError: if something does not fit the run. Its files and processes do not exist yet.
        """
        return task

    def save(self, run_dir: Path) -> None:
        """Write what a resume needs. Raises OSError if it cannot be written."""


def start_extensions(
    config: TrainConfig, process_group: ProcessGroup, trust: Trusted, resumed: Path | None = None
) -> list[StartExtension]:
    """Return what extensions have loaded. For the arguments and errors, see `StartExtension`."""
    return [module.START(config, process_group, trust, resumed) for module in added("start")]


def load_on_all_ranks(path: Path, option: str, process_group: ProcessGroup) -> dict[str, Any]:
    """Load a checkpoint file, or the newest checkpoint of a run, which must have the same weights on all ranks."""
    with process_group.config_errors_on_all_ranks():
        run_dir, which = (path.parent, path) if path.is_file() else (path, "last")
        state = load_selected_checkpoint(run_dir, which, option)
    hashes = process_group.gather_objects(weights_sha256(state["learner"]["model"].values()))
    require(len(set(hashes)) == 1, f"{option} {path} has other weights on some ranks; give all ranks the same files")
    return state


def origin(path: Path, checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Describe the checkpoint from which a run starts, so that it can be found again."""
    weights = weights_sha256(checkpoint["learner"]["model"].values())
    return {"path": str(path), "iteration": checkpoint["iteration"], "weights_sha256": weights}


@dataclass(frozen=True)
class Start:
    """What a run starts from. Without values: random weights."""

    weights: InitialWeights | None = None
    """Of --init-from. None: random weights, or those of the checkpoint."""
    checkpoint: dict[str, Any] | None = None
    """Content of the checkpoint to resume. None: a new run."""
    branched_from: Path | None = None
    """Directory of the resumed run, if it continues in a new directory, as a branch. None: it continues in its own."""
    extensions: Sequence[StartExtension] = ()
    """What extensions have loaded."""
    overwrite: bool = False
    """Whether a new run replaces one that its directory contains."""
    parent: Path = Path()
    """Working directory when a run without --run-dir was started. Later, code of an environment may call chdir."""

    def check(self, config: TrainConfig, task: EnvSpec, fields: Sequence[Field]) -> None:
        """Check that the run can start from this.

        Args:
            task: description of the environment.
            fields: the layout table of the shared buffers.

        Raises:
            ConfigError: if a shape or the size of a snapshot differs.
        """
        if self.checkpoint is not None:
            carry = {field.name: field.shape for field in fields if field.group == "carry_even"}
            held = {name: carry.pop(name) for name in [*carry] if name.startswith("held")}  # they follow from these
            stored = {name: array for name, array in self.checkpoint["carry"].items() if name not in held}
            check_shapes("carry", stored, carry)
            missing = {name: torch.zeros(*shape) for name, shape in held.items()}  # older checkpoints have none
            self.checkpoint["carry"] = missing | self.checkpoint["carry"]
            shapes = parameter_shapes(config, task.observation, task.distribution)
            learner = self.checkpoint["learner"]
            check_learner(learner, shapes, task.observation.normalized_size)
            check_shapes("statistic", {"return": learner["discounted_return"]}, {"return": (config.rows,)})
            size = next(field.shape[-1:] for field in fields if field.path == "optimizer.moments")
            for state in learner["optimizer"]["state"].values():
                check_shapes("optimizer moment", state, {"step": (), "exp_avg": size, "exp_avg_sq": size})
        elif self.weights is not None:
            self.weights.check(config, task)

    def open_directory(self, config: TrainConfig, stack: ExitStack) -> Path:
        """Return the directory of the run, locked. Create it if the run does not continue in its directory.

        If it does, config.json gets the options that the resume has changed.

        Args:
            stack: keeps the directory locked.

        Raises:
            ConfigError: if it cannot be created, is in use, or contains a run already.
        """
        if self.checkpoint is None:
            record = {"initial_weights": self.weights.record()} if self.weights is not None else {}
            return create_run_directory(config, stack, self.parent, record, overwrite=self.overwrite)
        if self.branched_from is None:
            run_dir = Path(str(config.run_dir))
            with config_error_if_unwritable(run_dir):
                stack.enter_context(locked(run_dir))
                with suppress(ConfigError):  # it is missing or damaged, and not needed to resume
                    described = read_object(run_dir / CONFIG, "") | {"config": config.to_json()}
                    write_json(run_dir / CONFIG, described)
            return run_dir
        record = {"branched_from": self.checkpoint["branched_from"]}
        run_dir = create_run_directory(config, stack, self.parent, record)
        # If the run cannot start, the copied best checkpoint must not prevent a second attempt in this directory.
        stack.callback(_remove_best_alone, run_dir)
        with config_error_if_unwritable(run_dir):
            copy_history(self.branched_from, run_dir, self.checkpoint)
        return run_dir


def _remove_best_alone(run_dir: Path) -> None:
    """Remove the copy of a best checkpoint from a directory that has no other one."""
    with suppress(OSError):
        if not (run_dir / NAME).exists():
            (run_dir / BEST).unlink(missing_ok=True)
