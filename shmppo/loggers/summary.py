"""The summary of a run: the dictionary that `train` returns, and the text that a command prints at its end."""

from __future__ import annotations

import importlib.util
import shlex
import textwrap
from pathlib import Path
from typing import Any

from shmppo.config.train_config import TrainConfig
from shmppo.config.trust import modules_of, trust_flags
from shmppo.loggers.status import count
from shmppo.loggers.text import clock, number
from shmppo.utils.commands import program, resume_command
from shmppo.utils.files import short_path
from shmppo.utils.phase_timer import PHASES

_EXACT = {True: "", False: " (not exact)", None: " (the check of the environment has not finished)"}


class RunSummary(dict[str, Any]):
    """The content of summary.json. It is a dictionary with a short text form."""

    def __repr__(self) -> str:
        mean = self["return_mean_100"]
        return (
            f"<RunSummary {short_path(Path(self['run_dir']))}: "
            f"return {'unknown' if mean is None else number(mean)}, {self['env_steps']:,} steps in "
            f"{clock(self['wall_seconds'])}>"
        )


def summary_text(config: TrainConfig, summary: dict[str, Any], run_dir: Path) -> str:
    """Format the summary of a run for printing.

    Args:
        config: configuration of the run.
        summary: content of summary.json.
        run_dir: directory of the run.
    """
    phases = summary["phase_seconds"]
    whole = sum(phases[phase] for phase in PHASES) or 1.0
    shares = ", ".join(f"{phase} {phases[phase] / whole:.0%}" for phase in PHASES if phases[phase] / whole >= 0.005)
    lines = [
        f"run            {short_path(run_dir)}",
        *_ranks_lines(config),
        *_stopped_lines(config, summary),
        f"return         {_return_text(summary)}",
        *_skipped_lines(summary),
        *_best_lines(summary, run_dir),
        f"steps          {summary['env_steps']:,} in {clock(summary['wall_seconds'])}: "
        f"{summary['steps_per_second']:,.0f} steps/s",
        f"time           {shares}",
        f"memory         peak of all processes {summary['peak_memory_bytes'] / 2**20:.0f} MiB, "
        f"of which {summary['shared_memory_bytes'] / 2**20:.1f} MiB shared",
        f"weights        sha256 {summary['weights_sha256'][:16]}...{_EXACT[summary['exact']]}",
    ]
    if summary["inexact_reasons"]:
        lines.append("not exact      " + "; ".join(summary["inexact_reasons"]))
    if summary["worker_restarts"]:
        lines.append(f"workers        {summary['worker_restarts']} restarted after a failure")
    if given_up := summary.get("evaluation_given_up"):
        lines.append(f"evaluation     {given_up}")
    lines = [wrapped for line in lines for wrapped in _wrap(line)]
    return "\n".join([*lines, "next", *(f"  {command}" for command in _next_commands(config, summary, run_dir))])


def _return_text(summary: dict[str, Any]) -> str:
    """Return the mean return, or what to do if no episode has ended."""
    if summary["return_mean_100"] is not None:
        return f"{number(summary['return_mean_100'])} (mean of the last {min(summary['episodes'], 100)} episodes)"
    if summary["failed_episodes"]:
        return "no episode has ended without a failure"
    return (
        "no episode has ended; if episodes never end, truncate them, for example with --wrappers "
        '"TimeLimit(max_episode_steps=500)"'
    )


def _skipped_lines(summary: dict[str, Any]) -> list[str]:
    """Count the episodes that --skip-bad-episodes has ended. Empty if there are none."""
    failed = summary["failed_episodes"]
    return [f"skipped        {count(failed, 'episode')} that failed, see run.log"] if failed else []


def _stopped_lines(config: TrainConfig, summary: dict[str, Any]) -> list[str]:
    """Say at which iteration a run was stopped. Empty if it has finished."""
    if summary["iterations"] >= config.iterations:
        return []
    return [f"stopped        after iteration {summary['iterations']:,} of {config.iterations:,}"]


def _next_commands(config: TrainConfig, summary: dict[str, Any], run_dir: Path) -> list[str]:
    """Return commands for the run: evaluate it, plot it if matplotlib is installed, and continue it."""
    argument = shlex.quote(short_path(run_dir))
    trust = trust_flags(modules_of(config.to_json()))
    commands = [f"{program('evaluate')} {argument}{trust}"]
    if importlib.util.find_spec("matplotlib") is not None:
        commands.append(f"{program('plot')} {argument}")
    more = ""
    if summary["iterations"] >= config.iterations:
        steps = 2 * summary["env_steps"]
        flags = ["--total-steps", *(["--anneal-steps"] if steps > config.learning_horizon else [])]
        more = "".join(f" {flag} {steps}" for flag in flags)
    return [*commands, f"{resume_command(run_dir)}{trust}{more}"]


def _best_lines(summary: dict[str, Any], run_dir: Path) -> list[str]:
    """Name the best checkpoint. Empty if there is none."""
    name, best = summary.get("best_checkpoint"), summary.get("best_return")
    if name is None or best is None:
        return []
    return [f"best saved     {number(best)} in {short_path(run_dir / name)}"]


def _ranks_lines(config: TrainConfig) -> list[str]:
    """Describe the work of one rank and of all ranks. Empty if there is only one rank."""
    if config.ranks == 1:
        return []
    return [
        f"ranks          {config.ranks}, each with {config.num_envs} environments and {config.rank_steps:,} steps per "
        f"iteration; in total {config.ranks * config.num_envs} and {config.batch_steps:,}"
    ]


def _wrap(line: str) -> list[str]:
    """Break a line at 80 columns; what follows is indented like the text. Paths stay whole."""
    return textwrap.wrap(
        line, 80, subsequent_indent=" " * 15, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
    )
