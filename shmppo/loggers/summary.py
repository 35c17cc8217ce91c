"""The text that a run prints at its end."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from shmppo.config.train_config import TrainConfig
from shmppo.utils.phase_timer import PHASES


def summary_text(config: TrainConfig, summary: dict[str, Any], run_dir: Path) -> str:
    """Format the summary of a run for printing.

    Args:
        config: configuration of the run.
        summary: content of summary.json.
        run_dir: directory of the run.
    """
    phases = summary["phase_seconds"]
    last = min(summary["episodes"], 100)
    whole = sum(phases[phase] for phase in PHASES) or 1.0
    shares = ", ".join(f"{phase} {phases[phase] / whole:.0%}" for phase in PHASES if phases[phase] / whole >= 0.005)
    mean = summary["return_mean_100"]
    returns = "no episode has ended" if mean is None else f"{mean:.1f} (mean of the last {last} episodes)"
    lines = [
        f"run            {run_dir}",
        *_ranks_lines(config),
        f"return         {returns}",
        f"steps          {summary['env_steps']:,} in {summary['wall_seconds']:.1f} s: "
        f"{summary['steps_per_second']:,.0f} steps/s",
        f"time           {shares}",
        f"memory         peak of all processes {summary['peak_memory_bytes'] / 2**20:.0f} MiB, "
        f"of which {summary['shared_memory_bytes'] / 2**20:.1f} MiB shared",
        f"weights        sha256 {summary['weights_sha256'][:16]}…{'' if summary['exact'] else ' (not exact)'}",
    ]
    if summary["inexact_reasons"]:
        lines.append("not exact      " + "; ".join(summary["inexact_reasons"]))
    if config.shards == 1 and config.num_workers > 1:
        steps = config.rank_steps // config.minibatches
        lines.append(
            f"note           a minibatch of {steps} steps is only one gradient shard, so the learner computes it alone"
        )
    if times := summary.get("step_times"):
        lines.append(
            f"slowest        environment {times['slowest_environment']} (worker {times['slowest_worker']}): "
            f"{times['slowest_mean_seconds'] * 1e3:.3g} ms per step, 99th percentile "
            f"{times['slowest_q99_seconds'] * 1e3:.3g} ms; all environments {times['mean_seconds'] * 1e3:.3g} ms"
        )
    if summary["worker_restarts"]:
        lines.append(f"workers        {summary['worker_restarts']} restarted after a failure")
    more = ""
    if not summary["stopped_early"]:
        steps = 2 * summary["env_steps"]
        flags = ["--total-steps", *(["--anneal-steps"] if steps > config.learning_horizon else [])]
        more = "".join(f" {flag} {steps}" for flag in flags)
    lines = [wrapped for line in lines for wrapped in _wrap(line)]
    # Commands stay in one line, so that they can be copied.
    lines.append(f"next           python -m shmppo.evaluate {run_dir}")
    lines.append(f"               python -m shmppo.plot {run_dir}")
    lines.append(f"resume         python -m shmppo.train --resume {run_dir}{more}")
    return "\n".join(lines)


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
