"""Train and resume runs: check the configuration and the machine, start a session, and train."""

from __future__ import annotations

import dataclasses
import logging
import multiprocessing
import os
from collections.abc import Sequence
from contextlib import ExitStack
from logging import LogRecord
from pathlib import Path
from typing import Any

from shmppo.config.checks import require, shown
from shmppo.config.option import fields_with
from shmppo.config.resumable import refuse_other_run
from shmppo.config.train_config import TrainConfig
from shmppo.config.trust import Trusted, modules_of, resume_command
from shmppo.envs.inspection import inspect_evaluation, inspect_task
from shmppo.errors import ConfigError, memory_errors
from shmppo.lockstep.feature import used_features
from shmppo.lockstep.learner import Learner
from shmppo.lockstep.worker_processes import UNGUARDED_MAIN, WORKER_NAME
from shmppo.loggers.summary import RunSummary
from shmppo.loggers.trackers import Callback, Logger, LoggerList, make_trackers
from shmppo.models.actor_critic import build_meta_model
from shmppo.models.devices import check_device, log_untested_torch
from shmppo.models.native import resolve_kernel
from shmppo.parallel.process_group import ProcessGroup
from shmppo.parallel.rendezvous import agree_on_config, connect
from shmppo.parallel.shared_buffers import SharedBuffers
from shmppo.ppo.device_update import check_memory
from shmppo.ppo.layout import run_fields
from shmppo.runs.decisions import Decisions
from shmppo.runs.loop import train_iterations
from shmppo.runs.preflight import allocate_shared, only_run
from shmppo.runs.resume import ResumeRequest, prepare_resume
from shmppo.runs.session import LearnerType, Session
from shmppo.runs.start import Start, load_initial_weights, start_extensions
from shmppo.storage.run_directory import LOG, default_name, directory_of, holds_run
from shmppo.utils.files import config_error_if_unwritable, user_path
from shmppo.utils.logs import buffer_records, log_to
from shmppo.utils.portable import check_torch
from shmppo.utils.program import values_of_program
from shmppo.utils.torch_utils import numeric_modes, set_numeric_modes
from shmppo.utils.user_code import is_importing_main

RANK_TIMEOUT = 300.0
"""Seconds that a rank waits for the others before it ends with an error that names the missing ones. Writing a
checkpoint and replacing a worker take less time."""
Receivers = tuple[Callback | None, Sequence[Logger]]
"""The user's callback and loggers. Only rank 0 calls them, and the trackers of --track."""


def train(
    config: TrainConfig,
    *,
    callback: Callback | None = None,
    loggers: Sequence[Logger] = (),
    trust: Trusted = (),
    overwrite: bool = False,
    make_learner: LearnerType = Learner,
) -> RunSummary:
    """Train a new run, as `shmppo.train` describes.

    make_learner: makes the learner; with it `shmppo.verify` records an iteration.
    """
    require(isinstance(config, TrainConfig), f"train got {shown(config)}; pass a TrainConfig: TrainConfig(env=…)")
    refuse_imported_script()
    config = config.with_absolute_paths()
    if overwrite:
        require("RANK" not in os.environ, "--overwrite cannot be combined with torchrun; name another --run-dir")
        read = [getattr(config, name) for name in ("init_from", *fields_with(TrainConfig, copied=True))]
        require(config.run_dir not in read, f"--run-dir {config.run_dir} is read by the new run; name another one")
    trusted = [*modules_of(config.to_json()), *((trust,) if isinstance(trust, str) else trust)]
    receivers = (callback, loggers)
    with only_run(), connect(RANK_TIMEOUT) as process_group:
        restarted = config.run_dir is not None and _is_restart(Path(config.run_dir))
        if any(process_group.gather_objects(restarted)):  # ranks on other machines may not see the directory
            run_dir = Path(str(config.run_dir))
            with process_group.config_errors_on_all_ranks():
                refuse_other_run(directory_of(run_dir, process_group.rank), config)
            changes = {"stop_at_iteration": config.stop_at_iteration}  # a checkpoint does not keep it
            request = ResumeRequest(run_dir, changes, trust=trusted)
            return _resume(process_group, request, receivers, make_learner)
        config = agree_on_config(process_group, config)
        if process_group.size > 1:
            name = process_group.gather_objects(config.run_dir or default_name(config))[0]
            config = dataclasses.replace(config, run_dir=str(directory_of(Path(name).absolute(), process_group.rank)))
        with buffer_records() as records:
            extensions = start_extensions(config, process_group, trusted)
            parent = Path.cwd() if config.run_dir is None else Path()
            weights = load_initial_weights(config, process_group)
            start = Start(weights, extensions=extensions, overwrite=overwrite, parent=parent)
        return _run(process_group, config, start, receivers, make_learner, records)


def resume(
    run_dir: str | Path,
    *,
    checkpoint: str | int | Path = "last",
    new_run_dir: str | Path | None = None,
    callback: Callback | None = None,
    loggers: Sequence[Logger] = (),
    trust: Trusted = (),
    make_learner: LearnerType = Learner,
    **changes: Any,
) -> RunSummary:
    """Continue a run, as `shmppo.resume` describes. make_learner: as for `train`."""
    run_dir = user_path(run_dir, "--resume")
    refuse_imported_script()
    target = user_path(new_run_dir, "--run-dir") if new_run_dir is not None else None
    with only_run(), connect(RANK_TIMEOUT) as process_group:
        if target is not None and any(process_group.gather_objects(_is_restart(target))):
            request = ResumeRequest(target, changes, trust=trust)
        else:
            request = ResumeRequest(run_dir, changes, checkpoint, target, trust)
        return _resume(process_group, request, (callback, loggers), make_learner)


def _is_restart(run_dir: Path) -> bool:
    """Whether torchrun has restarted this process (--max-restarts) after the run had saved a checkpoint."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) > 0 and holds_run(run_dir)


def _resume(
    process_group: ProcessGroup, request: ResumeRequest, receivers: Receivers, make_learner: LearnerType
) -> RunSummary:
    """Load the checkpoint, check the changes of the configuration, and run."""
    with buffer_records() as records:
        config, start = prepare_resume(process_group, request)
    return _run(process_group, agree_on_config(process_group, config), start, receivers, make_learner, records)


def _run(
    process_group: ProcessGroup,
    config: TrainConfig,
    start: Start,
    receivers: Receivers,
    make_learner: LearnerType,
    records: Sequence[LogRecord],
) -> RunSummary:
    """Check the configuration and the machine, start a session, and train. Return the content of summary.json.

    Args:
        start: what the run starts from.
        make_learner: makes the learner.
        records: log records from before this call, for the log file.
    """
    with ExitStack() as stack:
        stack.enter_context(numeric_modes())
        with buffer_records() as check_records, process_group.config_errors_on_all_ranks():
            log_untested_torch()
            check_device(config)
            if config.portable:
                check_torch()
            callback, own = receivers if config.rank == 0 else (None, ())
            loggers = LoggerList(callback, [*own, *make_trackers(config)])
            with values_of_program(modules_of(config.to_json())) as program:
                task = dataclasses.replace(inspect_task(config), program=program)
            config = dataclasses.replace(config, **task.derived)
            inspect_evaluation(config, task)
            Decisions(config)  # only to check its options
            for feature in used_features(config):
                feature.check(config)
            if config.recording() is not None:
                task = dataclasses.replace(task, snapshot=None)
            model = build_meta_model(config, task.observation, task.distribution)
            # A run of an older version, which did not record convolutions, keeps its number of gradient shards.
            convolutions = model.convolutional if start.checkpoint is None else config.convolutions
            config = dataclasses.replace(config, kernel=resolve_kernel(config, model), convolutions=convolutions)
            for extension in start.extensions:
                task = extension.complete(config, task)
            fields = run_fields(config, task)
            start.check(config, task, fields)
            buffers = SharedBuffers(fields, allocate_shared(fields))
            check_memory(config, task, buffers)
            run_dir = start.open_directory(config, stack)
            with config_error_if_unwritable(run_dir):
                for extension in start.extensions:
                    extension.save(run_dir)
        with config_error_if_unwritable(run_dir):
            stack.enter_context(log_to(run_dir / LOG, [*records, *check_records]))
        set_numeric_modes()  # the code of an environment may have changed them
        stack.enter_context(memory_errors(f", and continue with {resume_command(run_dir)}"))
        session = stack.enter_context(
            Session(config, task, buffers, run_dir, start, loggers, process_group, make_learner)
        )
        for record in check_records:
            if record.levelno >= logging.WARNING:
                session.outputs.note(record.getMessage().partition("\n")[0])
        train_iterations(session)
        summary = session.finish()
    summary.interrupted = session.stop.signal is not None  # a signal may come while the processes end
    return summary


def refuse_imported_script() -> None:
    """End a worker that is importing the main script. In another process that imports it, raise ConfigError.

    This happens if the script calls `train` or `resume` outside of `if __name__ == "__main__":`. The learner reports it
    when the worker has ended.
    """
    if is_importing_main():
        if multiprocessing.current_process().name.startswith(WORKER_NAME):
            os._exit(UNGUARDED_MAIN)
        raise ConfigError(
            "train() was called again while a worker imported the main script; "
            'put the call under `if __name__ == "__main__":`'
        )
