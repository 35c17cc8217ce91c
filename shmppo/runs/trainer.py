"""Train and resume runs. `_train_iterations` is the training loop: it shows how the data flows."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
from collections.abc import Sequence
from contextlib import nullcontext
from logging import LogRecord
from pathlib import Path
from typing import Any, NamedTuple

from shmppo.config.train_config import TrainConfig, from_json, load_config
from shmppo.envs.factory import inspect_task
from shmppo.envs.spec import Task
from shmppo.errors import ConfigError
from shmppo.loggers.trackers import Callback, Logger, LoggerList, make_trackers
from shmppo.models.actor_critic import parameter_shapes
from shmppo.parallel.process_group import ProcessGroup
from shmppo.parallel.rendezvous import agree_on_config, connect
from shmppo.parallel.shared_buffers import SharedBuffers, allocate, run_fields
from shmppo.ppo.device_gradients import DeviceGradients, check_device
from shmppo.ppo.gae import explained_variance
from shmppo.ppo.gradients import ShardGradients
from shmppo.ppo.learner import GradientSource, Learner
from shmppo.ppo.minibatches import build_minibatches
from shmppo.runs.checkpoint import check_shapes, load_common_checkpoint
from shmppo.runs.preflight import check_resources
from shmppo.runs.run_directory import LOG, create_run_directory, default_name, directory_of, holds_run
from shmppo.runs.session import Session
from shmppo.runs.train_state import carry_shapes
from shmppo.runs.video import check_video
from shmppo.sampling.pool import Pool, partition
from shmppo.utils.files import make_parent_directory
from shmppo.utils.logs import buffer_records, log_to
from shmppo.utils.phase_timer import PhaseTimer
from shmppo.utils.torch_utils import torch_threads


def _train_iterations(session: Session, gradients: GradientSource) -> None:
    """Train until the last iteration or a request to stop: rollout → minibatches → update → metrics."""
    config, state, timer = session.config, session.state, session.timer
    learner, pool, process_group = session.learner, session.pool, session.process_group
    while state.iteration < config.last_iteration and not session.stopping:
        iteration = state.iteration
        timer.switch("publish")
        learner.publish_statistics()
        learner.publish()
        with session.preemption.watch(iteration) if session.preemption else nullcontext():
            rollout, times = pool.collect(learner.version, iteration, timer)
        state.reset_lost(pool.pop_lost(), learner)
        state.commit(rollout)
        timer.switch("advantage")
        advantages = learner.advantages(rollout)
        coefficients = learner.schedule.coefficients(iteration)
        minibatches = build_minibatches(
            config,
            rollout,
            session.buffers.minibatches,
            iteration=iteration,
            advantages=advantages,
            coefficients=coefficients,
            process_group=process_group,
        )
        timer.switch("other")
        statistics = learner.update(iteration, minibatches, gradients, timer)
        explained = explained_variance(rollout.value, advantages + rollout.value, rollout.valid_steps, process_group)
        learner.update_obs_normalizer(rollout)
        state.reset_lost(pool.pop_lost(), learner)
        row = state.finish_iteration(rollout, times, statistics, coefficients, explained, timer.reset(), process_group)
        session.outputs.metrics.write(row)
        session.after_iteration(row, times)


class PoolGradients:
    """Computes gradients: all in the learner (central learning), or also in the workers (sharded learning)."""

    def __init__(self, config: TrainConfig, task: Task, learner: Learner, buffers: SharedBuffers, pool: Pool) -> None:
        """Create the gradients of the learner's own shards.

        Args:
            config: of the run.
            task: description of the environment.
            learner: contains the network.
            buffers: the shared buffers.
            pool: computes the other shards, and refreshes stored states.
        """
        self._pool = pool
        self._sharded = config.sharded
        self._shards = partition(config.shards, config.num_workers, 0) if config.sharded else range(config.shards)
        source = ShardGradients if config.device == "cpu" else DeviceGradients
        self._gradients = source(config, task.distribution, learner.model, buffers)

    def compute(self, version: int, epoch: int, minibatch: int, timer: PhaseTimer) -> float:
        """See `GradientSource.compute`."""

        def own() -> None:
            self._gradients.compute(epoch, minibatch, self._shards)

        if self._sharded:
            return self._pool.compute_gradients(version, epoch, minibatch, own, timer)
        own()
        return 0.0

    def refresh_states(self, version: int, timer: PhaseTimer) -> float:
        """See `GradientSource.refresh_states`."""
        return self._pool.refresh_states(version, timer)


class Receivers(NamedTuple):
    """The receivers of metrics: the user's callback and loggers."""

    callback: Callback | None
    loggers: Sequence[Logger]

    def of_rank(self, config: TrainConfig) -> LoggerList:
        """Return the receivers of this rank: on rank 0 all of them and the configured trackers, on other ranks none.

        Raises:
            ConfigError: if a tracker is not installed.
        """
        if config.rank > 0:
            return LoggerList()
        return LoggerList(self.callback, [*self.loggers, *make_trackers(config)])


def train(config: TrainConfig, *, callback: Callback | None = None, loggers: Sequence[Logger] = ()) -> dict[str, Any]:
    """See `shmppo.train`."""
    refuse_imported_script()
    if config.run_dir is not None:
        config = dataclasses.replace(config, run_dir=os.path.expanduser(config.run_dir))
    receivers = Receivers(callback, loggers)
    with connect(config.rank_timeout) as process_group:
        if any(process_group.gather_objects(_is_restart(config))):  # ranks on other machines may not see the directory
            return _resume(process_group, Path(str(config.run_dir)), receivers, {})
        config = agree_on_config(process_group, config)
        if process_group.size > 1:
            name = process_group.gather_objects(config.run_dir or default_name(config))[0]
            config = dataclasses.replace(config, run_dir=str(directory_of(Path(name), process_group.rank)))
        return _run(process_group, config, None, receivers)


def resume(
    run_dir: str | Path, *, callback: Callback | None = None, loggers: Sequence[Logger] = (), **changes: Any
) -> dict[str, Any]:
    """See `shmppo.resume`."""
    run_dir = Path(run_dir).expanduser()
    refuse_imported_script()
    try:
        config = load_config(directory_of(run_dir, int(os.environ.get("RANK", "0"))))
    except ConfigError:  # loading the checkpoint raises a better error later
        config = TrainConfig()
    with connect(changes.get("rank_timeout", config.rank_timeout)) as process_group:
        return _resume(process_group, run_dir, Receivers(callback, loggers), changes)


def _is_restart(config: TrainConfig) -> bool:
    """Whether torchrun has restarted this process (--max-restarts) after the run had saved a checkpoint."""
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    return restarted and config.run_dir is not None and holds_run(Path(config.run_dir))


def _resume(
    process_group: ProcessGroup, run_dir: Path, receivers: Receivers, changes: dict[str, Any]
) -> dict[str, Any]:
    """Load the checkpoint, check the changes of the configuration, and run. run_dir: directory of rank 0."""
    own = directory_of(run_dir.absolute(), process_group.rank)
    with buffer_records() as records:
        checkpoint = load_common_checkpoint(own, process_group)
    fields_before = json.loads(checkpoint["config"])
    fields = fields_before | {"stop_at_iteration": None} | changes | {"run_dir": str(own)}
    with process_group.config_errors_on_all_ranks():
        config = from_json(fields)
        make_parent_directory(own / LOG, "--resume")
        if config.optimizer != fields_before["optimizer"]:
            raise ConfigError(
                f"{run_dir} was started with --optimizer {fields_before['optimizer']}, and {config.optimizer} cannot "
                "use its state; resume with the same optimizer"
            )
        if config.ranks != process_group.size:
            raise ConfigError(
                f"{run_dir} was started with {config.ranks} ranks, not {process_group.size}; start as many again"
            )
        if checkpoint["iteration"] >= config.last_iteration:
            raise ConfigError(
                f"{run_dir} has finished {checkpoint['iteration']} iterations, {config.last_iteration} were asked for; "
                f"to train longer, raise --total-steps above {checkpoint['iteration'] * config.batch_steps}"
            )
        if "anneal_steps" not in changes and changes.get("total_steps", 0) > config.learning_horizon:
            raise ConfigError(
                f"{run_dir} was started with a learning rate or clip range that is 0 after {config.anneal_horizon} "
                f"steps; to learn from more steps, add --anneal-steps {config.total_steps}"
            )
    return _run(process_group, agree_on_config(process_group, config), checkpoint, receivers, records)


def _run(
    process_group: ProcessGroup,
    config: TrainConfig,
    checkpoint: dict[str, Any] | None,
    receivers: Receivers,
    records: Sequence[LogRecord] = (),
) -> dict[str, Any]:
    """Check the configuration and the machine, start a session, and train. Return the content of summary.json.

    Args:
        process_group: the ranks.
        config: of the run, resolved for this rank.
        checkpoint: content of the checkpoint to resume from. None: a new run.
        receivers: the user's callback and loggers.
        records: log records from before this call, for the log file.
    """
    with buffer_records() as check_records, process_group.config_errors_on_all_ranks():
        check_device(config.device)
        loggers = receivers.of_rank(config)
        if config.eval_videos:
            check_video(Path("videos.mp4"), "--eval-videos")
        task = inspect_task(config)
        snapshot_bytes = task.snapshot.bytes if task.snapshot is not None else 0
        fields = run_fields(config, task.observation, task.distribution, snapshot_bytes)
        check_resources(config, fields)
        if checkpoint is not None:
            check_shapes("carry", checkpoint["carry"], carry_shapes(fields))
            shapes = parameter_shapes(config, task.observation, task.distribution)
            check_shapes("parameter", checkpoint["learner"]["model"], shapes)
        run_dir = create_run_directory(config) if checkpoint is None else Path(str(config.run_dir))
    buffers = SharedBuffers(fields, allocate(fields))
    with (
        log_to(run_dir / LOG, [*records, *check_records]),
        torch_threads(config.learner_threads),
        Session(config, task, buffers, run_dir, checkpoint, loggers, process_group) as session,
    ):
        _train_iterations(session, PoolGradients(config, task, session.learner, buffers, session.pool))
        return session.finish()


def refuse_imported_script() -> None:
    """Raise ConfigError in a worker that is importing the main script.

    This happens if the script calls `train` or `resume` outside of `if __name__ == "__main__":`.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ConfigError(
            "train() was called again while a worker imported the main script; "
            'put the call under `if __name__ == "__main__":`'
        )
