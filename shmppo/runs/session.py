"""The lifecycle of one run: start processes, open files, save checkpoints, and end everything.

The training loop is `shmppo.runs.loop.train_iterations`.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from shmppo.config.train_config import TrainConfig
from shmppo.config.trust import resume_command
from shmppo.envs.backends import backend_of
from shmppo.envs.inspection import shared_generators
from shmppo.envs.spec import EnvSpec
from shmppo.errors import EnvError, RankError, SaveError, ShmppoError, WorkerError
from shmppo.lockstep.feature import used_features
from shmppo.lockstep.learner import Learner
from shmppo.lockstep.pool import Command, Times
from shmppo.lockstep.worker_pool import WorkerPool
from shmppo.loggers.summary import RunSummary
from shmppo.loggers.trackers import LoggerList, Row
from shmppo.models.devices import DETERMINISTIC_WORKSPACES
from shmppo.models.native import uses_kernels
from shmppo.parallel.process_group import ProcessGroup
from shmppo.parallel.shared_buffers import SharedBuffers
from shmppo.runs.background_check import BackgroundCheck
from shmppo.runs.evaluation import Evaluations
from shmppo.runs.failed_episode import write_failed_episode
from shmppo.runs.outputs import Outputs
from shmppo.runs.start import Start
from shmppo.runs.train_state import TrainState
from shmppo.sampling.row_independence import is_row_independent
from shmppo.storage.checkpoint import BEST, CheckpointSchedule
from shmppo.storage.checkpoint_file import write_checkpoint
from shmppo.storage.history import receipt, recorded_tables
from shmppo.storage.run_directory import DIRECTORIES, EVALUATIONS, LOG, METRICS, TABLES, saving
from shmppo.utils import machine
from shmppo.utils.files import replaced_file, sync
from shmppo.utils.global_generators import NAMES
from shmppo.utils.phase_timer import as_dict
from shmppo.utils.portable import WORKSPACES
from shmppo.utils.signals import StopRequest
from shmppo.utils.torch_utils import set_numeric_modes
from shmppo.utils.user_code import describe_error

log = logging.getLogger(__name__)

MIXED_ROWS = (
    "an environment's actions depend on the other environments of its inference batch, on this processor and build of "
    "torch or because of --network or --encoder"
)
LearnerType = Callable[[TrainConfig, EnvSpec, SharedBuffers, ProcessGroup], Learner]


class Session:
    """The processes, files, and signal handlers of one run. Use it as a context manager, which ends them.

    Attributes:
        config: the resolved configuration.
        buffers: the shared buffers.
        process_group: the ranks.
        run_dir: directory of the run.
        stop: this rank's request to stop, made by a signal, the callback, or a logger.
        stopping: whether any rank has requested to stop, as agreed at the end of an iteration.
        state: counters and statistics.
        checkpoints: saves checkpoints, and knows when the next one is due.
        learner: the network, its optimizer, and the normalizers.
        pool: collects rollouts and carries out updates.
        features: the optional features of the run.
        evaluations: evaluates the weights while training.
        check: the check of the environment in the background.
        outputs: metrics, console, loggers, and evaluations.
    """

    def __init__(
        self,
        config: TrainConfig,
        task: EnvSpec,
        buffers: SharedBuffers,
        run_dir: Path,
        start: Start,
        loggers: LoggerList,
        process_group: ProcessGroup,
        make_learner: LearnerType,
    ) -> None:
        """Start the run, and save its first checkpoint.

        Args:
            run_dir: directory of this rank.
            start: what the run starts from.
            loggers: the callback and the loggers.
            make_learner: makes the learner.

        Raises:
            WorkerError, EnvError, RankError: if a worker, environment, or rank fails. Everything is ended then.
        """
        self.config, self.buffers, self.process_group = config, buffers, process_group
        self.run_dir, self._task = run_dir, task
        self.stop = StopRequest()
        self.stopping = False
        kinds = used_features(config)
        self.features = [kind(config, task, buffers, process_group, run_dir) for kind in kinds]
        self.evaluations = Evaluations(config, task, buffers, run_dir, process_group)
        self.state = TrainState(config, task, buffers, process_group, self.features)
        if start.checkpoint is not None:
            self.state.restore(start.checkpoint)  # before workers start, because they read the carry
        elif start.weights is not None:
            self.state.initial_weights = start.weights.record()
        task = self._task = self.evaluations.task = task.with_generators(self.state.generators)
        branched_at = (self.state.branched_from or {}).get("iteration")
        self.checkpoints = CheckpointSchedule(config, run_dir, self.state.iteration, branched_at)
        if self.state.condition is not None:  # only the last evaluation or the summary is missing
            self.stop.make(self.state.condition)
            self.stopping = True
        self.state.publish_options(ended=self.stopping or self.state.iteration == config.last_iteration)
        with ExitStack() as stack:  # ends what has started if a later step fails
            try:
                self._start(stack, task, start, loggers, make_learner)
            except BaseException as error:
                _hint_at_skipping(error, config, task)
                log.error("the run could not start: %r", error, exc_info=error)
                raise
            self._open = stack.pop_all()
        self.pool.take_times()
        process_group.allreduce_seconds = 0.0  # the start does not count

    def _start(
        self, stack: ExitStack, task: EnvSpec, start: Start, loggers: LoggerList, make_learner: LearnerType
    ) -> None:
        """Start the processes, open the files, and save a first checkpoint."""
        config, buffers, actions = self.config, self.buffers, self.state.actions
        stack.enter_context(self.stop.by_signals())
        check = self.check = BackgroundCheck(config, task, self.state)
        self.outputs = Outputs(config, self.run_dir, self.state.iteration, loggers, self.stop, buffers.control, check)
        stack.callback(self.outputs.close)
        # The workers start before the learner is created, to import modules and allocate memory at the same time.
        self.pool = WorkerPool(config, task, buffers, actions, self.state.mark_lost, self.run_dir / LOG)
        stack.callback(self.pool.close)
        self.learner = self.state.learner = make_learner(config, task, buffers, self.process_group)
        if start.checkpoint is not None:
            self.learner.load(start.checkpoint["learner"])
        elif start.weights is not None:
            self.learner.load_weights(start.weights.checkpoint["learner"])
        self._mark_inexact_options()
        if config.eval_videos:
            self.evaluations.check_video(self.learner, self.state.iteration)
        self._carry_out(lambda: self.pool.start(self.learner.model), lambda: None)
        server = self.pool.workers.server
        if server is not None and not server.is_row_independent():
            self.state.mark_inexact(MIXED_ROWS)
        for text in sorted(self.pool.workers.changed_values):
            self.state.mark_inexact(text)
        self.state.compare_code()
        stack.enter_context(self.stop.by_signals())  # again: an environment in this process may have set other handlers
        for feature in self.features:
            feature.start(self.learner.model)
        self.learner.features = self.features
        self._agree()
        self.save()  # so that the run can be resumed from now on
        self.outputs.start(self.pool.timer)

    def _mark_inexact_options(self) -> None:
        """Record which options make this run inexact, and whether the processor does."""
        set_numeric_modes()  # the code of a module of the user may have changed them
        config = self.config
        if config.device.startswith("cuda") and os.environ.get(WORKSPACES) not in DETERMINISTIC_WORKSPACES:
            needed = f"{WORKSPACES}={DETERMINISTIC_WORKSPACES[0]}"
            self.state.mark_inexact(f"CUDA was started without {needed}; set it before the program starts")
        networks = [(config, self.learner.model)]
        networks += [network for feature in self.features for network in feature.networks()]
        for own, model in networks:
            only_kernels = uses_kernels(own, model) and not model.has_torch_encoders
            if not (only_kernels or is_row_independent(model, own.inference_rows)):
                self.state.mark_inexact(MIXED_ROWS)
        for feature in self.features:
            if feature.inexact_reason is not None:
                self.state.mark_inexact(feature.inexact_reason)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: Any) -> None:
        with self._open:  # ends everything
            if error is None:
                return
            log.error("the run ended early: %r", error, exc_info=error)
            self.pool.close(grace=0.0)
            try:
                if isinstance(error, ShmppoError) and not isinstance(error, (RankError, SaveError)):
                    self._save_after_error(error)
                text = str(error) if isinstance(error, ShmppoError) else describe_error(error)
                reason = "signal" if isinstance(error, KeyboardInterrupt) else "error"
                self.outputs.write_summary(self._summary(self.state.inexact_reasons, reason, text))
            except SaveError as second:
                log.warning("%s", second)

    def _save_after_error(self, error: ShmppoError) -> None:
        """Save a checkpoint, if its content would be consistent, and the episode in which an environment failed."""
        state, buffers = self.state, self.buffers
        # With several ranks, only checkpoints that all ranks save at the same iteration are usable.
        _hint_at_skipping(error, self.config, self._task)
        if not state.updating and self.process_group.size == 1:
            self.save()
        error.add_hint(f"To continue from the last checkpoint: {resume_command(self.run_dir)}")
        if isinstance(error, EnvError):
            steps = self._steps_begun(error.env_index)
            with saving(self.run_dir):
                write_failed_episode(
                    self.run_dir, self.config, self._task, buffers.rollout, state.actions, steps, error
                )

    def _steps_begun(self, n: int) -> int:
        """Return the number of steps of the current, uncommitted rollout that environment n has begun."""
        config = self.config
        worker = next(w for w, columns in enumerate(config.columns_by_worker) if n in columns)
        steps = int(self.buffers.control.progress[worker, 0])
        return min(max(steps - self.state.actions.iteration * config.rollout_steps, 0), config.rollout_steps)

    def evaluate(self) -> Row:
        """Evaluate the current weights. For the result and the errors, see `Evaluations.evaluate`."""
        row = self.evaluations.evaluate(self.learner, self.pool.timer, self.execute, self.state.actions.iteration)
        if self.buffers.evaluation.unrepeated.any() and self.state.decisions.need_evaluations:
            self.state.mark_inexact("an episode of an evaluation had another result when it was repeated")
        return row

    def execute(self, command: Command) -> None:
        """Let environments carry out a command.

        If they draw from a global random generator for the first time, each environment gets its own ones, and all
        carry out the command again. So the results are those of a run that has known it from its start.

        For the errors, see `WorkerPool.execute`.
        """
        act = functools.partial(self.pool.execute, command)
        self._carry_out(act, again=act)
        if self.pool.workers.restarts:
            self.outputs.warn("a worker failed and was replaced; run.log has the reason")

    def _carry_out(self, act: Callable[[], None], again: Callable[[], None]) -> None:
        """Let environments act, see `execute`.

        Args:
            act: what lets them act.
            again: the same, after all of them have been made again and their episodes have been restored.
        """
        while self._draws_first(act):
            act = functools.partial(self._restart, again)

    def _restart(self, again: Callable[[], None]) -> None:
        """Make all environments again, each with its own generators, and let them act. again: see `_carry_out`."""
        self.buffers.control.drawn[:] = False
        self.pool.restart(self._task)
        again()

    def _draws_first(self, act: Callable[[], None]) -> bool:
        """Let environments act. Return whether they have drawn from generators for the first time and get their own.

        Then what the environments have raised does not count, because it may depend on the numbers of the process.
        """
        failure: ShmppoError | None = None
        try:
            act()
        except WorkerError:
            raise
        except ShmppoError as error:
            failure = error
        own = np.array(self.buffers.control.drawn.any(axis=0))
        drawn = {NAMES[k] for k in np.flatnonzero(self.process_group.gather(own).any(axis=0)).tolist()}
        new = drawn - {*self.state.generators}
        self.state.generators = tuple(sorted({*self.state.generators, *new}))
        owned = bool(drawn) and self._task.snapshot is None and backend_of(self._task).owns_generators
        if new and owned:
            log.info("the environment draws from %s: each environment gets its own ones", ", ".join(sorted(new)))
            self._task = self.evaluations.task = self._task.with_generators(new)
            return True
        if new:
            self.state.mark_inexact(shared_generators(self.config, new))
        elif drawn and owned:  # although each environment has its own ones
            names = ", ".join(sorted(drawn))
            others = "code other than that of the environments, such as --network or --encoder,"
            self.state.mark_inexact(f"{others} draws from {names}")
        if failure is not None:
            raise failure
        return False

    def after_iteration(self, row: Row, times: Times, evaluation: Row, run: object) -> None:
        """Log a finished iteration, save a checkpoint if one is due, and decide whether to stop.

        Args:
            row: its row of metrics.csv.
            evaluation: of its weights, see `evaluate`. Empty without an evaluation.
            times: how long it took.
            run: what the callback gets as its second argument.

        Raises:
            RankError: if the weights differ between ranks, or a rank has failed.
            SaveError: if a file cannot be written.
        """
        decisions = self.state.decisions
        decisions.take(row | evaluation)
        for text in self.state.episodes.misleading:
            self.outputs.warn(text)
        self.state.condition = decisions.reason_to_stop(row | evaluation)
        if self.outputs.log(row, evaluation, run):
            self.stop.make("callback")
        if self.state.condition is not None:
            self.stop.make(self.state.condition)
        due = self._agree()
        last = self.state.iteration == self.config.last_iteration or self.stopping
        # `finish` saves the last checkpoint after the last evaluation. If the run is killed before it, the resumed run
        # repeats the evaluation.
        if due and not last and self.checkpoints.saved_at != self.state.iteration:
            self.save()
        self.outputs.show(row, times.workers.tolist(), self.pool.workers.pids, last=last)

    def _agree(self) -> bool:
        """Decide with the other ranks whether to stop. Return whether a checkpoint is due on any rank."""
        iteration = self.state.iteration
        due = self.checkpoints.is_due(iteration) or self.state.decisions.better
        self.stopping, due = self.process_group.agree((self.stop.made, due), self.buffers.published.weights, iteration)
        return due

    def save(self, name: str | None = None) -> None:
        """Save a checkpoint, and with a name also as checkpoint-NAME.pt. Raises SaveError if it cannot be written.

        With several ranks, a checkpoint with a name is not the newest one, because only rank 0 saves it.
        """
        if name is not None and self.process_group.size > 1:
            with saving(self.run_dir), replaced_file(self.run_dir / f"checkpoint-{name}.pt") as temporary:
                write_checkpoint(temporary, self.state.to_checkpoint())
            return
        decisions = self.state.decisions
        best = decisions.better
        if best:
            decisions.save_best()
        content = self.state.to_checkpoint()
        with saving(self.run_dir):
            for part in (METRICS, EVALUATIONS, *TABLES, *DIRECTORIES):
                if (self.run_dir / part).exists():  # a checkpoint needs the rows and the files before it
                    sync(self.run_dir / part)
            self.checkpoints.save(content, best=best, name=name)

    def finish(self) -> RunSummary:
        """Save the last checkpoint and write the outputs of the end of a run. Return the content of summary.json."""
        config, state = self.config, self.state
        reasons = self.process_group.gather_objects(self.stop.reason or "finished")
        stop_reason = min(reasons, key=lambda reason: (reason == "finished", reason == "signal"))
        if stop_reason == "signal" and state.iteration == config.last_iteration:
            stop_reason = "finished"  # it came too late to stop anything
        # After a signal, the run ends without delay. A continued run has the same evaluations as one that never paused.
        evaluation: Row = {}
        missing = config.eval_every is not None and self.evaluations.evaluated_at != state.iteration
        if missing and stop_reason != "signal":
            evaluation = self.evaluate()
            self.outputs.log_row({"iteration": state.iteration, "env_steps": state.env_steps}, evaluation)
        # A pause must not add a candidate for the best checkpoint.
        if state.iteration == config.iterations or stop_reason not in ("finished", "signal"):
            state.decisions.compared = True
            if state.decisions.best_metric in evaluation:
                state.decisions.look_at(evaluation)
        self.outputs.poll_check()
        self.outputs.sample_memory(self.pool.workers.pids)
        if self.checkpoints.saved_at != state.iteration or state.decisions.better:
            self.save()
        inexact = [  # reasons of all ranks: a run is exact only if it is exact on each of them
            reason if rank == config.rank else f"rank {rank}: {reason}"
            for rank, reasons in enumerate(self.process_group.gather_objects(state.inexact_reasons))
            for reason in reasons
        ]
        summary = RunSummary(self._summary(inexact, stop_reason))
        self.outputs.finish(summary)
        return summary

    def _summary(self, inexact_reasons: list[str], stop_reason: str, error: str | None = None) -> dict[str, Any]:
        """Return the content of summary.json, as of the last finished iteration.

        Args:
            inexact_reasons: why the run is not exact.
            stop_reason: why the run has ended.
            error: the error that has ended the run. During an update, the weights then are those of no iteration.
        """
        config, state = self.config, self.state
        wall, steps = float(state.phase_seconds.sum()), state.env_steps
        check = self.check.verdict
        options = json.loads(json.dumps(config.to_json()))
        return {
            "run_dir": str(self.run_dir),
            "config": options,
            "weights_sha256": None if state.updating else self.learner.weights_sha256(),
            "receipt": None if error else receipt(options, recorded_tables(self.run_dir)),
            "exact": False if inexact_reasons else None if check == "not finished" else True,
            "inexact_reasons": list(inexact_reasons),
            "same_bits_on": machine.same_bits_on(state.fingerprint),
            "environment_check": check,
            "initial_weights": state.initial_weights,
            "branched_from": state.branched_from,
            "env_steps": steps,
            "iterations": state.iteration,
            "episodes": state.episodes.count,
            "failed_episodes": state.episodes.failed,
            "return_mean_100": state.episodes.return_mean if state.episodes.count else None,
            "info": {name: None if math.isnan(mean) else mean for name, mean in state.episodes.info_means.items()},
            "evaluation": self.outputs.evaluation,
            "best_by": state.decisions.best_metric,
            "best_value": best if math.isfinite(best := state.decisions.best_value) else None,
            "best_checkpoint": BEST if (self.run_dir / BEST).exists() else None,
            "workers": config.num_workers,
            "worker_restarts": self.pool.workers.restarts,
            "num_envs": config.num_envs,
            "ranks": config.ranks,
            "wall_seconds": wall,
            "steps_per_second": steps / wall if wall else 0.0,
            "phase_seconds": as_dict(state.phase_seconds),
            **{name: value for feature in self.features for name, value in feature.summary().items()},
            "peak_memory_bytes": self.outputs.peak_memory,
            "shared_memory_bytes": self.buffers.memory.numel(),
            "stop_reason": stop_reason,
            "error": error,
        }


def _hint_at_skipping(error: BaseException, config: TrainConfig, task: EnvSpec) -> None:
    """Add to the failure of an environment the hint that episodes with failures can be skipped."""
    if isinstance(error, EnvError) and backend_of(task).can_skip and not config.skip_bad_episodes:
        error.add_hint("To skip episodes whose reset or step fails, add --skip-bad-episodes.")
