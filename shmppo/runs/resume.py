"""Prepare to resume a run: select its checkpoint, choose the directory, and apply the changes to its configuration."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from shmppo.config.checks import require
from shmppo.config.option import fields_with
from shmppo.config.resumable import different_fields, resumed_config
from shmppo.config.train_config import TrainConfig, load_config, stored_config
from shmppo.config.trust import Trusted, check_trust
from shmppo.parallel.process_group import ProcessGroup
from shmppo.ppo.loss import Loss
from shmppo.ppo.schedule import SET_BY, Schedule
from shmppo.runs.start import Start, origin, start_extensions
from shmppo.storage.checkpoint import is_file_name, load_resumable_checkpoint, load_selected_checkpoint, saved_iteration
from shmppo.storage.history import check_metrics
from shmppo.storage.run_directory import branch_name, directory_of, has_finished
from shmppo.utils.files import refuse_links

log = logging.getLogger(__name__)


class ResumeRequest(NamedTuple):
    """What to resume. For the fields, see `shmppo.resume`."""

    run_dir: Path
    changes: Mapping[str, Any]
    checkpoint: str | int | Path = "last"
    new_run_dir: Path | None = None
    trust: Trusted = ()


def prepare_resume(process_group: ProcessGroup, request: ResumeRequest) -> tuple[TrainConfig, Start]:
    """Load the checkpoint, and apply the changes to its configuration.

    Returns:
        The configuration, with the directory of this rank as `run_dir`, and what the run starts from.

    Raises:
        ConfigError: on all ranks, if there is no such checkpoint, if a change is refused, or if the run is not trusted.
    """
    own = directory_of(request.run_dir.absolute(), process_group.rank)
    with process_group.config_errors_on_all_ranks():
        refuse_links(request.run_dir)
    checkpoint = _load(process_group, own, request.checkpoint)
    iteration = checkpoint["iteration"]
    require(
        "carry" in checkpoint,
        f"{request.run_dir} is an exported policy, which cannot be resumed; start a new run with --init-from",
    )
    finished = all(process_group.gather_objects(has_finished(own, iteration)))
    # An older checkpoint continues in a new directory, so that the rows of later iterations are not lost.
    is_older = any(process_group.gather_objects(request.checkpoint != "last" and iteration != saved_iteration(own)))
    branches = is_older or request.new_run_dir is not None
    with process_group.config_errors_on_all_ranks():
        before = stored_config(json.loads(checkpoint["config"]))
        check_trust(before.to_json(), request.run_dir, request.trust)
        if is_file_name(request.checkpoint):
            _check_origin(before, own, request.checkpoint)
        check_metrics(own, iteration)
        config = resumed_config(before, request.changes, request.run_dir, branch=branches)
        require(
            config.ranks == process_group.size,
            f"{request.run_dir} was started with {config.ranks} ranks, not {process_group.size}; start as many again",
        )
        condition = checkpoint.get("condition")
        require(
            not finished or condition not in config.stop_when,
            f"{request.run_dir} has ended, because {condition} holds; to train longer, give another --stop-when",
        )
        if finished or iteration != config.last_iteration:  # an unfinished run may lack only its evaluation or summary
            _check_length(request, config, iteration)
    results = fields_with(TrainConfig, read_by_schedule=True, changes_curve=True)  # they change those of evaluations
    evaluations_differ = any(getattr(config, name) != getattr(before, name) for name in results)
    if config.best_by != before.best_by or (evaluations_differ and config.best_metric.startswith("eval/")):
        checkpoint |= {"best_value": -math.inf, "best_return": -math.inf}
    if evaluations_differ:
        kept = {name: value for name, value in checkpoint.get("progress", {}).items() if not name.startswith("eval/")}
        checkpoint["progress"] = kept
    target = own
    if branches:
        _begin_branch(checkpoint, own, before, config, request.changes)
        name = request.new_run_dir or process_group.gather_objects(branch_name(request.run_dir, iteration))[0]
        target = directory_of(Path(name).absolute(), process_group.rank)
    else:
        _mark_if_inexact(checkpoint, before, config)
    config = dataclasses.replace(config, run_dir=str(target)).with_absolute_paths()
    extensions = start_extensions(config, process_group, request.trust, own)
    return config, Start(checkpoint=checkpoint, branched_from=own if branches else None, extensions=extensions)


def _load(process_group: ProcessGroup, own: Path, which: str | int | Path) -> dict[str, Any]:
    """Load the selected checkpoint of this rank. It must have the same iteration on all ranks.

    Args:
        process_group: the ranks.
        own: directory of this rank.
        which: see `load_selected_checkpoint`.
    """
    if which == "last":
        return load_resumable_checkpoint(own, process_group)
    require(
        process_group.size == 1 or not is_file_name(which),
        f"--checkpoint {which} is one file, but each of the {process_group.size} ranks needs its own; name last, best, "
        "or an iteration",
    )
    with process_group.config_errors_on_all_ranks():
        checkpoint = load_selected_checkpoint(own, which)
    iterations = process_group.gather_objects(checkpoint["iteration"])
    require(
        len(set(iterations)) == 1,
        f"--checkpoint {which} is of the iterations {iterations} on the ranks; name an iteration that all of them have",
    )
    return checkpoint


def _check_origin(config: TrainConfig, own: Path, which: str | int | Path) -> None:
    """Raise ConfigError if a checkpoint file belongs to another run than the directory."""
    other = different_fields(config, load_config(own))
    require(
        not other,
        f"--checkpoint {which} belongs to another run than {own}: they differ in {', '.join(other)}; name a checkpoint "
        "of this run",
    )


def _check_length(request: ResumeRequest, config: TrainConfig, iteration: int) -> None:
    """Raise ConfigError if there is nothing left to train."""
    all_steps = f"raise --total-steps above {iteration * config.batch_steps}"
    more = all_steps if iteration >= config.iterations else "raise --stop-at-iteration or leave it out"
    require(
        iteration < config.last_iteration,
        f"{request.run_dir} has finished {iteration} iterations, {config.last_iteration} were asked for; to train "
        f"longer, {more}",
    )
    longer = "total_steps" in request.changes and "anneal_steps" not in request.changes
    require(
        not longer or config.total_steps <= config.learning_horizon,
        f"{request.run_dir} was started with a learning rate that is 0 after {config.anneal_horizon} "
        f"steps; to learn from more steps, add --anneal-steps {config.total_steps}",
    )


def _begin_branch(
    checkpoint: dict[str, Any], own: Path, before: TrainConfig, config: TrainConfig, given: Collection[str]
) -> None:
    """Record in the checkpoint where a branch begins, and replace the values of the train state that options set.

    Args:
        own: directory of the run.
        before: its configuration.
        config: configuration of the branch.
        given: the options that are given, even if they have the same values as before.
    """
    names = fields_with(TrainConfig, changes_curve=True, per_rank=False)
    changes = {name: getattr(config, name) for name in names if getattr(config, name) != getattr(before, name)}
    parent = {"branched_from": checkpoint.get("branched_from")}
    checkpoint["branched_from"] = origin(own, checkpoint) | {"changes": changes} | parent
    new = Schedule(config).state()
    checkpoint["learner"]["schedule"] |= {name: new[name] for name in new if SET_BY[name] in given}


def _mark_if_inexact(checkpoint: dict[str, Any], before: TrainConfig, config: TrainConfig) -> None:
    """Add a reason to the checkpoint if the changes alter the schedule of finished iterations.

    A new run with this configuration would then have other weights.
    """
    old, new, loss = Schedule(before), Schedule(config), Loss(config)
    finished = range(checkpoint["iteration"])
    if all(
        old.learning_rate(i) == new.learning_rate(i) and loss.coefficients(old, i) == loss.coefficients(new, i)
        for i in finished
    ):
        return
    reason = (
        f"resumed at iteration {checkpoint['iteration']} with --anneal-steps {config.anneal_horizon}, but the "
        f"iterations before it had {before.anneal_horizon}"
    )
    log.warning("not exact: %s", reason)
    checkpoint["inexact_reasons"] = [*checkpoint["inexact_reasons"], reason]
