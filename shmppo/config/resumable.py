"""Which options of a run `resume` may change: in its directory, those that do not change the weights; else more."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shmppo.config.checks import flag, flag_with_value, require
from shmppo.config.option import fields_with
from shmppo.config.train_config import TrainConfig, load_config, typed_fields
from shmppo.config.trust import trust_of
from shmppo.utils.commands import program
from shmppo.utils.files import short_path

RESUMABLE = fields_with(TrainConfig, resumable=True)
"""Fields of the configuration that `resume` may change (see `Traits`)."""
BRANCHABLE = (*RESUMABLE, *fields_with(TrainConfig, branchable=True))
"""Fields that it may change if the run continues as a branch, in a new directory."""


def resumed_config(
    stored: TrainConfig, changes: Mapping[str, Any], run_dir: Path, *, branch: bool = False
) -> TrainConfig:
    """Apply the changes of a resumed run to its configuration. `stop_at_iteration` is not kept from before.

    Args:
        stored: configuration of the checkpoint.
        changes: fields to change. A value equal to the stored one is no change.
        run_dir: directory of the run, for the error message.
        branch: whether the run continues in a new directory.

    Raises:
        ConfigError: if a change is not in RESUMABLE, or for a branch in BRANCHABLE, or if the configuration cannot run.
    """
    changed = {name: value for name, value in typed_fields(changes).items() if value != getattr(stored, name)}
    fixed = fields_with(TrainConfig, read_by_schedule=True) if stored.env_schedule else ()
    allowed = BRANCHABLE if branch else [name for name in RESUMABLE if name not in fixed]
    refused = [name for name in changed if name not in allowed]
    flags = [flag_with_value(name, value) for name, value in changed.items()]
    require(not refused, refusal(run_dir, refused, flags, branch={*refused} <= {*BRANCHABLE}))
    stop: dict[str, Any] = {"stop_at_iteration": changes.get("stop_at_iteration")}
    config = dataclasses.replace(stored, **stop | changed)
    recorded = config.recording() == stored.recording()  # otherwise, the environments would be others
    require(recorded, refusal(run_dir, ["objective"], flags))
    return config


def refusal(run_dir: Path, refused: Sequence[str], flags: Sequence[str], *, branch: bool = False) -> str:
    """Say that a resumed run cannot change options, and which command can.

    Args:
        run_dir: directory of the run.
        refused: the options.
        flags: all options to change with their values, for example "--learning-rate 0.01".
        branch: whether a branch could change them.
    """
    names, source = " and ".join(map(flag, refused)), short_path(run_dir)
    rest, command = f"{' '.join(flags)}{trust_of(run_dir)}", program("train")
    quoted, target = shlex.quote(source), shlex.quote(f"{source}-branch")
    if branch:
        return (
            f"{names} cannot change in the directory of a run; continue in a new one: {command} --resume {quoted} "
            f"--run-dir {target} {rest}"
        )
    return (
        f"{names} cannot change when a run is resumed; start a new run with its weights: {command} --init-from "
        f"{quoted} {rest}; or with new weights: {command} --config {quoted}/config.json --init-from None {rest}"
    )


def refuse_other_run(run_dir: Path, config: TrainConfig) -> None:
    """Raise ConfigError if the config.json of a directory has another configuration, apart from the rank.

    Fields that `resume` may change may differ, except those that name a file.
    """
    stored = load_config(run_dir)
    fields = json.loads(json.dumps(config.to_json()))  # as in config.json, with defaults in place of None
    own = TrainConfig(**fields | {"rank": stored.rank, "ranks": stored.ranks})
    files = fields_with(TrainConfig, resumable=True, path=True)
    others = [flag(name) for name in files if getattr(stored, name) != getattr(own, name)]
    different = " and ".join(different_fields(stored, own) + others)
    require(not different, f"{run_dir} has a run with another {different}; name another directory")


def different_fields(first: TrainConfig, second: TrainConfig) -> list[str]:
    """Return flags of the options that differ between two configurations of the same run, which must be none.

    RESUMABLE and derived fields and the run directory may differ, and --kernel auto is no difference.
    """
    ignored = {*RESUMABLE, *fields_with(TrainConfig, derived=True), "run_dir"}
    if "auto" in (first.kernel, second.kernel):
        ignored.add("kernel")
    one, other = first.fields(), second.fields()
    return [flag(name) for name in one if name not in ignored and one[name] != other[name]]
