"""Evaluate the policy of a run over some episodes: `python -m shmppo.evaluate RUN_DIR`.

The normalization statistics of the checkpoint stay fixed.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any

import tyro

from shmppo.config.checks import require
from shmppo.config.command_line import parse
from shmppo.config.extensions import evaluation_flags
from shmppo.config.options import KeywordArguments
from shmppo.config.trust import Modules
from shmppo.errors import output_as_stderr, print_text, run_command
from shmppo.loggers.text import number
from shmppo.utils.commands import program

if TYPE_CHECKING:
    from shmppo.policies.evaluation import Evaluation


@dataclass(frozen=True)
class EvaluateFlags:
    """Evaluate the policy of a run. The normalizer of the checkpoint stays fixed."""

    run_dir: tyro.conf.Positional[tuple[Path, ...]]
    """Directory of the run, or of several runs, for a flag that compares them."""
    checkpoint: str = "last"
    """Checkpoint to evaluate: last, best (see --best-by of train), the number of an iteration, or the path of
    a checkpoint file."""
    episodes: int | None = None
    """Number of episodes. None: 20, or 50 with --memory."""
    seed: int = 1
    """Seed of the episodes."""
    env_kwargs: KeywordArguments = field(default_factory=dict)
    """Arguments of the environment's constructor that replace or extend those of the run, for example friction=0.5."""
    stochastic: bool = False
    """Sample actions from the policy, as in training. Otherwise the most likely actions are used."""
    max_steps: int = 100_000
    """Stop an episode after this number of steps. Its return counts these steps only."""
    video: Path | None = None
    """Record all episodes, one after the other, in this mp4 or gif file. The video runs at normal speed with at most 30
    frames per second (extra `video`). None: no video."""
    memory: bool = False
    """See whether the policy uses its memory: play the same episodes while the recurrent state is reset every 1, 2,
    4, … steps, held, or taken from another episode. The picture is RUN_DIR/memory.png (extra `plot`)."""
    json: bool = False
    """Print one JSON object with the results of all episodes instead of text."""
    trust: Modules = ()
    """A module or package that may be imported although only a run directory names it, for example that of its
    environment. Give the flag once per module."""


EvaluateConfig: Any = dataclasses.make_dataclass(
    "EvaluateConfig", [], bases=(evaluation_flags(), EvaluateFlags), frozen=True
)
"""The flags of `python -m shmppo.evaluate`, with those of extensions."""


def main() -> int:
    """Run the command and return its exit code."""
    return run_command(_evaluate)


def _evaluate() -> None:
    options = parse(
        EvaluateConfig, sys.argv[1:], program("evaluate"), example="runs/pendulum --video pendulum.mp4",
        text=EvaluateFlags.__doc__ or "",
    )  # fmt: skip
    from rich.console import Console

    from shmppo.policies.evaluation import evaluate
    from shmppo.tools.memory import report_memory_use

    arguments = {k: v for k, v in vars(options).items() if v is not None and k not in ("json", "memory", "run_dir")}
    with output_as_stderr(), Console(stderr=True, quiet=options.json).status("starting") as status:
        arguments["progress"] = lambda ended, steps: status.update(f"{ended} episodes, {steps:,} steps")
        text = report_memory_use(options, arguments) if options.memory else options.compare(arguments)
        if text is None:
            require(len(options.run_dir) == 1, "give one RUN_DIR")
            result = evaluate(options.run_dir[0], **arguments)
            text = json.dumps(as_json(result, options)) if options.json else as_text(result, options)
    print_text(text)


def as_text(result: Evaluation, options: Any) -> str:
    """Describe the result in sentences."""
    mean, std = number(fmean(result.returns)), number(pstdev(result.returns))
    text = (
        f"return {mean} ± {std} over {len(result.episodes)} episodes of {fmean(result.lengths):,.0f} steps on average; "
        f"checkpoint {options.checkpoint} (iteration {result.iteration:,}), seed {options.seed}"
    )
    if result.info:
        text += "\n" + ", ".join(f"{name} {number(mean)}" for name, mean in result.info_means.items())
    if result.options:
        text += f"\nreset options of --env-schedule: {json.dumps(result.options)}"
    if result.failed:
        text += f"\n{result.failed} further episodes have failed (--skip-bad-episodes of the run)"
    if result.stopped:
        text += (
            f"\n{result.stopped} of {len(result.episodes)} episodes were stopped after {options.max_steps:,} steps "
            "(--max-steps); their returns count these steps only"
        )
    return text


def as_json(result: Evaluation, options: Any) -> dict[str, object]:
    """Return the content of the JSON object."""
    return {
        "return_mean": fmean(result.returns),
        "return_std": pstdev(result.returns),
        "episodes": len(result.episodes),
        "iteration": result.iteration,
        "checkpoint": options.checkpoint,
        "seed": options.seed,
        "stochastic": options.stochastic,
        "returns": result.returns,
        "lengths": result.lengths,
        "stopped": result.stopped,
        "failed": result.failed,
        "options": result.options,
        **{f"{name}_mean": mean for name, mean in result.info_means.items()},
        **result.info,
    }


if __name__ == "__main__":
    sys.exit(main())
