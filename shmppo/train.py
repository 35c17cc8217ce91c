"""Training: `python -m shmppo.train`, or `--resume RUN_DIR`. One screen of `_run` shows the whole path of the data."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from logging import LogRecord
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple

from shmppo.checkpoint import check_shapes, load_common_checkpoint
from shmppo.config import ConfigError, TrainConfig, from_json, load_config
from shmppo.device_gradients import check_device
from shmppo.envs import EnvironmentFault, inspect_task
from shmppo.inference import torch_threads
from shmppo.layout import Arena, allocate
from shmppo.learner import TrainingFault, arena_fields, parameter_shapes
from shmppo.logs import log_to, remembered
from shmppo.ranks import RankFault, Ranks, connected, own_configuration
from shmppo.report import summary_text
from shmppo.resources import check_resources
from shmppo.run_directory import LOG, create_run_directory, default_name, directory_of, holds_run, make_room
from shmppo.session import Session
from shmppo.trackers import Callback, Logger, Watchers, make_trackers
from shmppo.video import check_video
from shmppo.worker_process import WorkerFault


class Watched(NamedTuple):
    """Who is told of a run."""

    callback: Callback | None
    loggers: Sequence[Logger]

    def watchers(self, config: TrainConfig) -> Watchers:
        """Those of rank 0; the other ranks have none. Raises ConfigError for a tracker that is not installed."""
        if config.rank > 0:
            return Watchers()
        return Watchers(self.callback, [*self.loggers, *make_trackers(config)])


def train(config: TrainConfig, *, callback: Callback | None = None, loggers: Sequence[Logger] = ()) -> dict[str, Any]:
    """Train to the end of the configuration, or until SIGINT or SIGTERM; returns what summary.json holds.

    Args:
        callback: sees the row of each iteration; True ends the run after it, as the first SIGINT does.
        loggers: get the same rows (see `trackers.Logger`). Of several ranks, callback and loggers are those of rank 0.

    Raises:
        ConfigError: before anything is started, for what cannot run.
        WorkerFault, EnvironmentFault, TrainingFault, RankFault: when the run cannot go on. Nothing is left running.
    """
    refuse_imported_script()
    if config.run_dir is not None:
        config = dataclasses.replace(config, run_dir=os.path.expanduser(config.run_dir))
    with connected(config.rank_timeout) as ranks:
        if any(ranks.gather_objects(_restarted(config))):
            return _resume(ranks, Path(str(config.run_dir)), Watched(callback, loggers), {})
        config = own_configuration(ranks, config)
        if ranks.size > 1:
            name = ranks.gather_objects(config.run_dir or default_name(config))[0]
            config = dataclasses.replace(config, run_dir=str(directory_of(Path(name), ranks.rank)))
        return _run(ranks, config, None, Watched(callback, loggers))


def resume(
    run_dir: str | Path, *, callback: Callback | None = None, loggers: Sequence[Logger] = (), **changes: Any
) -> dict[str, Any]:
    """Go on from a run's newest checkpoint, in its directory; returns what summary.json holds.

    Args:
        callback, loggers: as `train`.
        changes: fields of the configuration to go on with, such as total_steps or workers.

    Raises:
        ConfigError: if there is no usable checkpoint, or nothing is left to train.
        WorkerFault, EnvironmentFault, TrainingFault, RankFault: as `train`.
    """
    run_dir = Path(run_dir).expanduser()
    refuse_imported_script()
    try:
        before = load_config(directory_of(run_dir, int(os.environ.get("RANK", "0"))))
    except ConfigError:  # what counts is the checkpoint, and whoever has none says so
        before = TrainConfig()
    with connected(changes.get("rank_timeout", before.rank_timeout)) as ranks:
        return _resume(ranks, run_dir, Watched(callback, loggers), changes)


def _restarted(config: TrainConfig) -> bool:
    """Whether torchrun has started this process again (--max-restarts) for a run that has begun before."""
    again = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    return again and config.run_dir is not None and holds_run(Path(config.run_dir))


def _resume(ranks: Ranks, run_dir: Path, watched: Watched, changes: dict[str, Any]) -> dict[str, Any]:
    own = directory_of(run_dir.absolute(), ranks.rank)
    with remembered() as records:
        checkpoint = load_common_checkpoint(own, ranks)
    fields_before = json.loads(checkpoint["config"])
    fields = fields_before | {"stop_at_iteration": None} | changes | {"run_dir": str(own)}
    with ranks.refusing_together():
        config = from_json(fields)
        make_room(own / LOG, "--resume")
        if config.optimizer != fields_before["optimizer"]:
            raise ConfigError(
                f"{run_dir} was begun with --optimizer {fields_before['optimizer']}, whose state {config.optimizer} "
                "cannot use; go on with the same one"
            )
        if config.ranks != ranks.size:
            raise ConfigError(f"{run_dir} was begun with {config.ranks} ranks, not {ranks.size}; start as many again")
        if checkpoint["iteration"] >= config.last_iteration:
            raise ConfigError(
                f"{run_dir} has finished {checkpoint['iteration']} iterations, {config.last_iteration} were asked for; "
                f"to go on, raise --total-steps above {checkpoint['iteration'] * config.batch_steps}"
            )
        if "anneal_steps" not in changes and changes.get("total_steps", 0) > config.learns_until:
            raise ConfigError(
                f"{run_dir} was begun with a step size or clip range that is 0 after {config.anneal_horizon} steps; to "
                f"learn from more, add --anneal-steps {config.total_steps}"
            )
    return _run(ranks, own_configuration(ranks, config), checkpoint, watched, records)


def _run(
    ranks: Ranks,
    config: TrainConfig,
    checkpoint: dict[str, Any] | None,
    watched: Watched,
    records: Sequence[LogRecord] = (),
) -> dict[str, Any]:
    """The whole path of the data: publish → collect → commit → update → report.

    records: of before, for the run's log.
    """
    with remembered() as more, ranks.refusing_together():
        check_device(config.device)
        watchers = watched.watchers(config)
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
        log_to(run_dir / LOG, [*records, *more]),
        torch_threads(config.learner_threads),
        Session(config, task, arena, run_dir, checkpoint, watchers, ranks) as session,
    ):
        learner, pool, timer = session.learner, session.pool, session.timer
        while session.iteration < config.last_iteration and not session.stopping:
            timer.switch("publish")
            learner.publish_statistics()
            learner.publish()
            with session.preemption.watching(session.iteration):
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


@dataclass(frozen=True)
class ResumeConfig:
    """Going on from a checkpoint: the stored configuration, with what is given here in its place."""

    resume: Path
    """Directory of the run to go on with."""
    total_steps: int | None = None
    """Environment steps of the whole run, those already done included."""
    anneal_steps: int | None = None
    """Horizon of the annealing, in environment steps from the run's start."""
    workers: int | None = None
    """Rollout processes."""
    learning: Literal["auto", "central", "sharded"] | None = None
    """Who computes gradients."""
    stop_at_iteration: int | None = None
    """Stop after this iteration."""
    checkpoint_every: int | None = None
    """Iterations between checkpoints."""
    rank_timeout: float | None = None
    """Seconds that a rank waits for the others."""
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

    def command() -> None:
        summary = _from_command_line(sys.argv[1:], default)
        if not summary["config"]["quiet"]:
            print(summary_text(from_json(summary["config"]), summary, Path(summary["run_dir"])))

    return exit_code(command, "left at once; if the run has begun, go on from the last checkpoint with --resume")


def exit_code(command: Callable[[], object], interrupted: str) -> int:
    """Run a command that trains; an error as one line, and the exit code that belongs to it.

    interrupted: what is said at a signal that ends it at once.
    """
    try:
        command()
    except ConfigError as error:
        if os.environ.get("LOCAL_RANK", "0") == "0":  # it is the same on all ranks
            print(f"error: {error}", file=sys.stderr)
        return 2
    except (WorkerFault, EnvironmentFault, TrainingFault, RankFault) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        return 130
    return 0


class _CallableModule(ModuleType):
    """`shmppo.train` names both this module and the function in it; where the module was imported first, it is both."""

    __call__ = staticmethod(train)


sys.modules[__name__].__class__ = _CallableModule

if __name__ == "__main__":
    sys.exit(main())
