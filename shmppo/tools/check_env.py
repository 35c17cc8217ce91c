"""Check an environment without training: Gymnasium's API, and whether it is a function of its seed and its actions."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from shmppo.config.train_config import TrainConfig
from shmppo.envs.determinism_check import CheckNote, CheckProcesses, Finding
from shmppo.envs.inspection import inspect_task
from shmppo.envs.spec import EnvSpec
from shmppo.spaces.stored import space_from_json
from shmppo.utils.logs import buffer_records

MAX_SPACE_TEXT = 300
"""Characters of a space that are shown."""


def check_environment(fields: Mapping[str, Any], steps: int) -> tuple[str, bool]:
    """Inspect an environment as a run does, and compare two instances of it.

    Args:
        fields: of `TrainConfig`: those of the task.
        steps: number of steps to compare.

    Returns:
        The result in lines of name and value, and whether all steps were checked and gave the same bits.

    Raises:
        ConfigError: if the environment cannot be made or breaks Gymnasium's API, or if an option is invalid.
    """
    config = TrainConfig(**fields, workers=0, minibatches=1)  # 8 minibatches need more than one environment
    with buffer_records() as records:
        task = inspect_task(config)
    warnings = [record.getMessage().partition("\n")[0] for record in records if record.levelno >= logging.WARNING]
    finding, note = Finding(0, task.inexact_reason), CheckNote(config)
    if task.inexact_reason is None:
        with closing(CheckProcesses(config, task, steps, background=False)) as processes:
            finding = processes.wait()
    note.remember(finding)
    return _text(config, task, finding, warnings), finding.difference is None and finding.problem is None


def _space_text(task: EnvSpec, name: str) -> str:
    text = " ".join(str(space_from_json(task.stored[name])).split())
    return text if len(text) <= MAX_SPACE_TEXT else f"{text[:MAX_SPACE_TEXT]} …"


def _text(config: TrainConfig, task: EnvSpec, finding: Finding, warnings: Sequence[str]) -> str:
    """Describe the environment, the finding, and what the inspection warns of."""
    if finding.difference is not None:
        verdict = f"no: {finding.difference}"
    elif finding.problem is not None:
        verdict = f"not known: {finding.problem} (after {finding.steps:,} steps that gave the same bits)"
    else:
        verdict = f"yes: {finding.steps:,} steps gave the same bits in two processes"
    restored = "a snapshot" if task.snapshot is not None else "a replay of its actions"
    lines = {
        "environment": config.env_id,
        "observations": _space_text(task, "observation_space"),
        "read as": ", ".join(f"{leaf.field} {leaf.kind} {list(leaf.env_shape)}" for leaf in task.observation.leaves),
        "actions": _space_text(task, "action_space"),
        **{name: ", ".join(values) for name, values in task.derived.items()},
        "stepped by": task.backend,
        "restored by": restored if task.seeding == "episode" else "a new episode",
        "valid": "yes: reset and step follow the API",
        "reproducible": verdict,
    }
    rows = [*lines.items(), *(("warning", text) for text in warnings)]
    return "\n".join(f"{name:<15}{value}" for name, value in rows if value)
