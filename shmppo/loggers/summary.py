"""The summary of a run: the dictionary that `train` returns, and the text that a command prints at its end."""

from __future__ import annotations

import importlib.util
import math
import shlex
import textwrap
from pathlib import Path
from typing import Any

from shmppo.config.checks import flag_with_value
from shmppo.config.info_keys import PREFIX
from shmppo.config.option import fields_with
from shmppo.config.train_config import TrainConfig
from shmppo.config.trust import resume_command, trust_of
from shmppo.loggers.metrics import ADDED_GLOSSARY
from shmppo.loggers.status import because, count, evaluation_text
from shmppo.loggers.text import clock, number
from shmppo.utils.commands import program
from shmppo.utils.files import short_path
from shmppo.utils.phase_timer import PHASES

MIN_EPISODES = 5
"""Episodes of an evaluation from which on its return is compared with that of training."""
ENDLESS = 1000
"""Steps of an environment from which on an episode that has not ended may be endless."""
MUCH_WAIT = 0.25
"""Share of the time from which on the phase `wait` is explained."""
WAIT = "for the slowest process; if other programs use the cores, fewer --workers are faster"


class RunSummary(dict[str, Any]):
    """The content of summary.json. It is a dictionary with a short text form.

    Attributes:
        interrupted: whether this process has received a signal, even one that came too late to stop the run.
    """

    interrupted = False

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
    phases, evaluation, exact = summary["phase_seconds"], summary["evaluation"], summary["exact"]
    failed, restarts, best_file = summary["failed_episodes"], summary["worker_restarts"], summary["best_checkpoint"]
    info = {name.removeprefix(PREFIX): mean for name, mean in summary["info"].items()}
    missing = [name for name, mean in info.items() if mean is None]
    episodes = count(min(summary["episodes"], 100), "episode") if summary["episodes"] else ""
    whole = sum(phases[phase] for phase in PHASES) or 1.0
    commands = _next_commands(config, summary, run_dir)
    early = f"after iteration {summary['iterations']:,} of {config.iterations:,}{because(summary['stop_reason'])}"
    texts = {
        "run": short_path(run_dir),
        "return": _return_text(config, summary),
        "info": ", ".join(f"{name} {number(mean)}" for name, mean in info.items() if mean is not None),
        "missing": f"{', '.join(missing)}: not in the info of the last {episodes}" if missing and episodes else "",
        "evaluation": evaluation_text(evaluation) if "eval/return" in evaluation else "",
        "hint": _hint_at_sampling(config, summary),
        "steps": f"{summary['env_steps']:,} in {clock(summary['wall_seconds'])}: "
        f"{summary['steps_per_second']:,.0f} steps/s",
        **{name.replace("_", " "): f"{summary[name]:,}" for name in ADDED_GLOSSARY if name in summary},
        "time": ", ".join(f"{name} {phases[name] / whole:.0%}" for name in PHASES if phases[name] / whole >= 0.005),
        "wait": WAIT if phases["wait"] / whole >= MUCH_WAIT else "",
        "kernel": "torch, which is slower; see --kernel" if config.kernel == "torch" else "",
        "memory": f"peak of all processes {summary['peak_memory_bytes'] / 2**20:.0f} MiB, "
        f"of which {summary['shared_memory_bytes'] / 2**20:.1f} MiB shared",
        "weights": f"sha256 {summary['weights_sha256'][:16]}...",
        "not exact": "; ".join(summary["inexact_reasons"]),
        "exact": "not checked yet; check-env finishes the check of the environment" if exact is None else "",
        "ranks": f"{config.ranks}, in total {config.ranks * config.num_envs} environments" if config.ranks > 1 else "",
        "stopped": early if summary["iterations"] < config.iterations else "",
        "skipped": f"{count(failed, 'episode')} that failed, see run.log" if failed else "",
        "best saved": f"{summary['best_by']} {number(best)} in {short_path(run_dir / best_file)}"
        if best_file and (best := summary["best_value"]) is not None
        else "",
        "workers": f"{restarts} restarted after a failure" if restarts else "",
    }
    lines = [wrapped for name, text in texts.items() if text for wrapped in _wrap(f"{name:<15}{text}")]
    return "\n".join([*lines, "next", *(f"  {command}" for command in commands)])


def _hint_at_sampling(config: TrainConfig, summary: dict[str, Any]) -> str:
    """Explain an evaluation whose return is lower than that of training by more than half, and by two standard errors.

    Half of what: of the larger absolute value of the two.
    """
    row, training = summary["evaluation"], summary["return_mean_100"]
    comparable = not config.eval_env_kwargs and config.columns_per_env == 1 and config.recording() is None
    enough = row.get("eval/episodes", 0) >= MIN_EPISODES and row["iteration"] == summary["iterations"]
    if training is None or not comparable or not enough:
        return ""
    error = row["eval/return_std"] / math.sqrt(row["eval/episodes"])
    limit = max(0.5 * max(abs(training), abs(row["eval/return"])), 2 * error)
    if not training - row["eval/return"] > limit:  # also if one of them is NaN
        return ""
    return (
        "evaluations return far less than training: they take the most likely actions, but this policy may need "
        "sampled ones; see evaluate --stochastic"
    )


def _return_text(config: TrainConfig, summary: dict[str, Any]) -> str:
    """Return the mean return, or what to do if no episode has ended."""
    if summary["return_mean_100"] is not None:
        return f"{number(summary['return_mean_100'])} (mean of the last {min(summary['episodes'], 100)} episodes)"
    if summary["failed_episodes"]:
        return "no episode has ended without a failure"
    steps = summary["env_steps"] // (config.ranks * config.num_envs)
    advice = 'if episodes never end, truncate them, for example with --wrappers "TimeLimit(max_episode_steps=500)"'
    return f"no episode has ended in {steps:,} steps per environment; {advice if steps >= ENDLESS else 'train longer'}"


def _next_commands(config: TrainConfig, summary: dict[str, Any], run_dir: Path) -> list[str]:
    """Return commands for the run: evaluate, plot if matplotlib is installed, finish its check, and continue it."""
    argument = shlex.quote(short_path(run_dir))
    best = " --checkpoint best" if config.best_by != "return" and summary["best_checkpoint"] else ""
    kwargs = {"env_kwargs": config.eval_env_kwargs} if config.eval_env_kwargs else {}
    changes = "".join(f" {flag_with_value(*one)}" for one in {**config.evaluate_flags(), **kwargs}.items())
    commands = [f"{program('evaluate')} {argument}{best}{trust_of(run_dir)}{changes}"]
    if importlib.util.find_spec("matplotlib") is not None:
        commands.append(f"{program('plot')} {argument}")
    if summary["exact"] is None:
        default, names = TrainConfig(env=config.env_id), fields_with(TrainConfig, makes_env=True)
        flags = [flag_with_value(n, getattr(config, n)) for n in names if getattr(config, n) != getattr(default, n)]
        commands.append(" ".join([program("check-env"), shlex.quote(config.env_id), *flags]))
    steps = 2 * summary["env_steps"]
    more = f" --total-steps {steps}"
    if steps > config.learning_horizon:  # a branch, because the same run would become inexact
        more = f" --run-dir {shlex.quote(f'{short_path(run_dir)}-longer')}{more} --anneal-steps {steps}"
    more = more if summary["iterations"] >= config.iterations else ""
    return [*commands, f"{resume_command(run_dir)}{more}"]


def _wrap(line: str) -> list[str]:
    """Break a line at 80 columns; what follows is indented like the text. Paths stay whole."""
    return textwrap.wrap(line, 80, subsequent_indent=" " * 15, break_long_words=False, break_on_hyphens=False)
