"""Training: `python -m shmppo.train`, or `--resume RUN_DIR`. One screen of `_run` shows the whole path of the data."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch

from shmppo.checkpoint import check_shapes, load_newest_checkpoint
from shmppo.config import ConfigError, TrainConfig, from_json
from shmppo.envs import EnvironmentFault, inspect_task
from shmppo.layout import Arena, allocate
from shmppo.learner import TrainingFault, arena_fields, parameter_shapes
from shmppo.logs import log_to
from shmppo.pool import WorkerFault
from shmppo.report import summary_text
from shmppo.resources import check_resources
from shmppo.run_directory import LOG, create_run_directory
from shmppo.session import Session
from shmppo.trackers import Callback, Logger, Watchers, make_trackers
from shmppo.video import check_video


def train(config: TrainConfig, *, callback: Callback | None = None, loggers: Sequence[Logger] = ()) -> dict[str, Any]:
    """Train to the end of the configuration, or until SIGINT or SIGTERM; returns what summary.json holds.

    Args:
        callback: sees the row of each iteration; True ends the run after it, as the first SIGINT does.
        loggers: get the same rows (see `trackers.Logger`).

    Raises:
        ConfigError: before anything is started, for what cannot run.
        WorkerFault, EnvironmentFault, TrainingFault: when the run cannot go on. Nothing is left running.
    """
    return _run(config, None, callback, loggers)


def resume(
    run_dir: str | Path, *, callback: Callback | None = None, loggers: Sequence[Logger] = (), **changes: Any
) -> dict[str, Any]:
    """Go on from a run's newest checkpoint, in its directory; returns what summary.json holds.

    Args:
        callback, loggers: as `train`.
        changes: fields of the configuration to go on with, such as total_steps or workers.

    Raises:
        ConfigError: if there is no usable checkpoint, or nothing is left to train.
        WorkerFault, EnvironmentFault, TrainingFault: as `train`.
    """
    run_dir = Path(run_dir)
    checkpoint = load_newest_checkpoint(run_dir)
    fields = json.loads(checkpoint["config"])
    fields |= {"stop_at_iteration": None} | changes | {"run_dir": str(run_dir.absolute())}
    config = from_json(fields)
    if checkpoint["iteration"] >= config.last_iteration:
        raise ConfigError(
            f"{run_dir} has finished {checkpoint['iteration']} iterations, {config.last_iteration} were asked for; "
            f"to go on, raise --total-steps above {checkpoint['iteration'] * config.batch_steps}"
        )
    return _run(config, checkpoint, callback, loggers)


def _run(
    config: TrainConfig, checkpoint: dict[str, Any] | None, callback: Callback | None, loggers: Sequence[Logger]
) -> dict[str, Any]:
    """The whole path of the data: publish → collect → commit → update → report."""
    refuse_imported_script()
    watchers = Watchers(callback, [*loggers, *make_trackers(config)])
    if config.eval_videos:
        check_video(Path("videos.mp4"), "--eval-videos")
    task = inspect_task(config)
    fields = arena_fields(config, task)
    check_resources(config, fields)
    if checkpoint is not None:
        expected = {field.name: field.shape[1:] for field in fields if field.carried}
        check_shapes("carry", checkpoint["carry"], expected)
        check_shapes("parameter", checkpoint["learner"]["model"], parameter_shapes(config, task))
    run_dir = create_run_directory(config) if checkpoint is None else Path(str(config.run_dir))
    arena = Arena(fields, allocate(fields))
    with (
        log_to(run_dir / LOG),
        learner_threads(config.learner_threads),
        Session(config, task, arena, run_dir, checkpoint, watchers) as session,
    ):
        learner, pool, timer = session.learner, session.pool, session.timer
        while session.iteration < config.last_iteration and not session.stop_requested:
            timer.switch("publish")
            learner.publish_statistics()
            learner.publish()
            pool.collect(learner.version, session.iteration, timer)
            session.commit_rollout()
            statistics = learner.update(session.iteration, session.compute, timer)
            session.finish_iteration(statistics)
        return session.finish()


def refuse_imported_script() -> None:
    """Raises ConfigError in a worker that is only importing the main script, which trains outside the guard."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ConfigError(
            "train() was called again while a worker imported the main script; "
            'put the call under `if __name__ == "__main__":`'
        )


@contextmanager
def learner_threads(count: int) -> Iterator[None]:
    """Let torch use `count` threads in this process, for as long as the context is open."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class ResumeConfig:
    """Going on from a checkpoint: the stored configuration, with what is given here in its place."""

    resume: Path
    """Directory of the run to go on with."""
    total_steps: int | None = None
    """Environment steps of the whole run, those already done included."""
    workers: int | None = None
    """Rollout processes."""
    learning: Literal["auto", "central", "sharded"] | None = None
    """Who computes gradients."""
    stop_at_iteration: int | None = None
    """Stop after this iteration."""
    checkpoint_every: int | None = None
    """Iterations between checkpoints."""
    quiet: bool = False
    """Print nothing but errors. Not given: as the run was begun."""


def _from_command_line(arguments: list[str], default: TrainConfig | None) -> dict[str, Any]:
    """Train or resume as the command line says; returns the summary."""
    import tyro

    from shmppo.command_line import option_value, parse_config

    prog = "python -m shmppo.train"
    if option_value(arguments, "--resume") is None:
        description = "Train recurrent PPO. Without flags: the default job."
        return train(parse_config(arguments, prog=prog, description=description, default=default))
    options = tyro.cli(ResumeConfig, args=arguments, prog=prog)
    changes = {
        k: v for k, v in dataclasses.asdict(options).items() if v is not None and v is not False and k != "resume"
    }
    return resume(options.resume, **changes)


def main(default: TrainConfig | None = None) -> int:
    """The command line, with `default` in place of the default job; returns the exit code."""
    try:
        summary = _from_command_line(sys.argv[1:], default)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (WorkerFault, EnvironmentFault, TrainingFault) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("left at the second signal; go on from the last checkpoint with --resume", file=sys.stderr)
        return 130
    if not summary["config"]["quiet"]:
        print(summary_text(from_json(summary["config"]), summary, Path(summary["run_dir"])))
    return 0


class _CallableModule(ModuleType):
    """`shmppo.train` names both this module and the function in it; where the module was imported first, it is both."""

    __call__ = staticmethod(train)


sys.modules[__name__].__class__ = _CallableModule

if __name__ == "__main__":
    sys.exit(main())
