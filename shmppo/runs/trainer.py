"""Training: `python -m shmppo.train`, or `--resume RUN_DIR`. One screen of `_run` shows the whole path of the data."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
from collections.abc import Sequence
from logging import LogRecord
from pathlib import Path
from typing import Any, NamedTuple

from shmppo.config.train_config import TrainConfig, from_json, load_config
from shmppo.envs.factory import inspect_task
from shmppo.errors import ConfigError
from shmppo.loggers.trackers import Callback, Logger, LoggerList, make_trackers
from shmppo.models.actor_critic import parameter_shapes
from shmppo.parallel.process_group import ProcessGroup, connected, own_configuration
from shmppo.parallel.shared_buffers import SharedBuffers, allocate
from shmppo.ppo.device_gradients import check_device
from shmppo.ppo.learner import arena_fields
from shmppo.runs.checkpoint import check_shapes, load_common_checkpoint
from shmppo.runs.preflight import check_resources
from shmppo.runs.run_directory import LOG, create_run_directory, default_name, directory_of, holds_run
from shmppo.runs.session import Session
from shmppo.runs.video import check_video
from shmppo.utils.files import make_parent_directory
from shmppo.utils.logs import log_to, remembered
from shmppo.utils.torch_utils import torch_threads


class Receivers(NamedTuple):
    """Who is told of a run."""

    callback: Callback | None
    loggers: Sequence[Logger]

    def watchers(self, config: TrainConfig) -> LoggerList:
        """Those of rank 0; the other ranks have none. Raises ConfigError for a tracker that is not installed."""
        if config.rank > 0:
            return LoggerList()
        return LoggerList(self.callback, [*self.loggers, *make_trackers(config)])


def train(config: TrainConfig, *, callback: Callback | None = None, loggers: Sequence[Logger] = ()) -> dict[str, Any]:
    """Train to the end of the configuration, or until SIGINT or SIGTERM; returns what summary.json holds.

    Args:
        callback: sees the row of each iteration; True ends the run after it, as the first SIGINT does.
        loggers: get the same rows (see `trackers.Logger`). Of several ranks, callback and loggers are those of rank 0.

    Raises:
        ConfigError: before anything is started, for what cannot run.
        WorkerError, EnvError, TrainingError, RankError: when the run cannot go on. Nothing is left running.
    """
    refuse_imported_script()
    if config.run_dir is not None:
        config = dataclasses.replace(config, run_dir=os.path.expanduser(config.run_dir))
    with connected(config.rank_timeout) as ranks:
        if any(ranks.gather_objects(_restarted(config))):
            return _resume(ranks, Path(str(config.run_dir)), Receivers(callback, loggers), {})
        config = own_configuration(ranks, config)
        if ranks.size > 1:
            name = ranks.gather_objects(config.run_dir or default_name(config))[0]
            config = dataclasses.replace(config, run_dir=str(directory_of(Path(name), ranks.rank)))
        return _run(ranks, config, None, Receivers(callback, loggers))


def resume(
    run_dir: str | Path, *, callback: Callback | None = None, loggers: Sequence[Logger] = (), **changes: Any
) -> dict[str, Any]:
    """Go on from a run's newest checkpoint, in its directory; returns what summary.json holds.

    Args:
        callback, loggers: as `train`.
        changes: fields of the configuration to go on with, such as total_steps or workers.

    Raises:
        ConfigError: if there is no usable checkpoint, or nothing is left to train.
        WorkerError, EnvError, TrainingError, RankError: as `train`.
    """
    run_dir = Path(run_dir).expanduser()
    refuse_imported_script()
    try:
        before = load_config(directory_of(run_dir, int(os.environ.get("RANK", "0"))))
    except ConfigError:  # what counts is the checkpoint, and whoever has none says so
        before = TrainConfig()
    with connected(changes.get("rank_timeout", before.rank_timeout)) as ranks:
        return _resume(ranks, run_dir, Receivers(callback, loggers), changes)


def _restarted(config: TrainConfig) -> bool:
    """Whether torchrun has started this process again (--max-restarts) for a run that has begun before."""
    again = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    return again and config.run_dir is not None and holds_run(Path(config.run_dir))


def _resume(ranks: ProcessGroup, run_dir: Path, watched: Receivers, changes: dict[str, Any]) -> dict[str, Any]:
    own = directory_of(run_dir.absolute(), ranks.rank)
    with remembered() as records:
        checkpoint = load_common_checkpoint(own, ranks)
    fields_before = json.loads(checkpoint["config"])
    fields = fields_before | {"stop_at_iteration": None} | changes | {"run_dir": str(own)}
    with ranks.refusing_together():
        config = from_json(fields)
        make_parent_directory(own / LOG, "--resume")
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
        if "anneal_steps" not in changes and changes.get("total_steps", 0) > config.learning_horizon:
            raise ConfigError(
                f"{run_dir} was begun with a step size or clip range that is 0 after {config.anneal_horizon} steps; to "
                f"learn from more, add --anneal-steps {config.total_steps}"
            )
    return _run(ranks, own_configuration(ranks, config), checkpoint, watched, records)


def _run(
    ranks: ProcessGroup,
    config: TrainConfig,
    checkpoint: dict[str, Any] | None,
    watched: Receivers,
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
            check_shapes(
                "parameter",
                checkpoint["learner"]["model"],
                parameter_shapes(config, task.observation, task.distribution),
            )
        run_dir = create_run_directory(config) if checkpoint is None else Path(str(config.run_dir))
    arena = SharedBuffers(fields, allocate(fields))
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
