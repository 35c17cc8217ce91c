"""What one run holds open, and everything of it that is not the path of the data: start, books, checkpoints, end."""

from __future__ import annotations

import json
import logging
import math
import os
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shmppo.config.train_config import TrainConfig
from shmppo.envs.spec import Task
from shmppo.errors import EnvError, TrainingError, WorkerError
from shmppo.loggers.console import ConsoleDisplay
from shmppo.loggers.metrics import EpisodeStatistics, MetricsFile
from shmppo.loggers.step_times import StepTimes, waiting_share
from shmppo.loggers.trackers import LoggerList
from shmppo.models.inference import ActingNetwork, is_row_independent
from shmppo.parallel.process_group import ProcessGroup
from shmppo.parallel.shared_buffers import PROGRESS, SharedBuffers
from shmppo.ppo.device_gradients import DeviceGradients
from shmppo.ppo.gradients import ShardGradients
from shmppo.ppo.kl_profile import write_profile
from shmppo.ppo.learner import ComputeShards, Learner
from shmppo.runs.checkpoint import save_checkpoint
from shmppo.runs.evaluator import Evaluator
from shmppo.runs.failure_dump import keep_failed_episode, keep_failed_minibatch
from shmppo.runs.run_directory import LOG, METRICS, SUMMARY
from shmppo.sampling.action_log import ActionLog
from shmppo.sampling.preemption import Preemption
from shmppo.sampling.worker_pool import InProcessPool, Pool, WorkerPool, split
from shmppo.utils import machine as machine
from shmppo.utils.files import warn_on_os_error, write_json
from shmppo.utils.phase_timer import PHASES, PhaseTimer, as_dict
from shmppo.utils.signals import StopRequest
from shmppo.utils.torch_utils import torch_threads

log = logging.getLogger(__name__)

RETRY_SECONDS = 60.0  # after a checkpoint that could not be written
MEMORY_EVERY = 100  # iterations between two samples of the memory in use; one costs about 5 ms a process


class Session:
    """Processes, files, display and signal handlers of one run. A context manager that ends them."""

    def __init__(
        self,
        config: TrainConfig,
        task: Task,
        arena: SharedBuffers,
        run_dir: Path,
        checkpoint: dict[str, Any] | None,
        watchers: LoggerList,
        ranks: ProcessGroup,
    ) -> None:
        """checkpoint: where to go on from, or None for the start of a run."""
        self.config = config
        self.run_dir = run_dir
        self.iteration = 0
        self.stop = StopRequest()  # of this rank
        self.stopping = False  # agreed by all ranks
        self.timer = PhaseTimer()
        self.inexact_reasons: list[str] = []
        samplers = max(config.num_workers, 1)
        self._columns = [split(config.num_envs, samplers, w) for w in range(samplers)]  # of each worker, or of us
        self._ranks = ranks
        self._arena = arena
        self._actions = ActionLog(config.num_envs, task.distribution.action_size, self._kept_steps(task))
        self._seconds = np.zeros(len(PHASES))
        self._handshake = 0.0
        self._env_steps = 0
        self._episodes = EpisodeStatistics()
        self._step_times = StepTimes(config.num_envs) if config.step_times else None
        self._bad_episodes = self._memory = self._peak_memory = 0
        self._evaluations: Evaluator | None = None
        self._fingerprint = machine.versions() | {"processor": machine.processor()}
        self._save_due, self._saved_at = 0.0, -1
        self._best_return = -math.inf
        self._drifts: list[float] = []  # of the stored states, by each refresh of this iteration
        self._updating = False  # the learner's state lies between two iterations' states
        if checkpoint is not None:
            self._restore(checkpoint)  # before workers start: they read the carry
        self._open = self._opened(task, checkpoint, watchers)
        self.timer.reset()

    def _opened(self, task: Task, checkpoint: dict[str, Any] | None, watchers: LoggerList) -> ExitStack:
        """Start and open everything: signal handlers, processes, files, display. Returns what closes it all."""
        config = self.config
        with ExitStack() as stack:  # undone here if a step fails, else on exit
            stack.enter_context(self.stop.by_signals())
            workers = None
            if config.num_workers:
                # Workers start while the learner is built: both import and allocate for a while.
                workers = WorkerPool(config, task, self._arena, self._actions, self.run_dir / LOG)
                stack.callback(workers.close)
            self.learner = Learner(config, task, self._arena, self._ranks)
            if checkpoint is not None:
                self.learner.load(checkpoint["learner"])
            if workers is None:
                inside = InProcessPool(config, task, self.learner.model, self._arena, self._actions)
                stack.callback(inside.close)
            self.pool: Pool = workers or inside
            self.compute = self._gradient_source(task)
            self._check_inference(task)
            self.preemption = Preemption(config, self._arena, self._ranks, [own.start for own in self._columns])
            if config.preempt_fraction is not None:
                self._inexact("--preempt-fraction ends rollouts by the clock")
            self.pool.wait_ready()
            self._give_up_lost()
            self._metrics = stack.enter_context(closing(MetricsFile(self.run_dir / METRICS, self.iteration)))
            self._display = stack.enter_context(closing(ConsoleDisplay(config, self.run_dir)))
            self._agree()
            self.save()  # so that there is always one to go on from
            self._watchers = stack.enter_context(closing(watchers))
            watchers.start(self.run_dir, config, self.iteration)
            if config.eval_every is not None:
                self._evaluations = Evaluator(config, self.run_dir, self.iteration, watchers)
                stack.callback(self._evaluations.close)
            return stack.pop_all()

    def _kept_steps(self, task: Task) -> int:
        """Steps of an episode whose actions are worth keeping."""
        if task.seeding == "never":
            self._inexact("the environment raises on reset(seed=…), so its episodes begin at random")
        if self.config.env_backend == "envpool":
            self._inexact("--env-backend envpool cannot play an episode again")
        replayed = task.seeding == "episode" and task.snapshot is None
        return self.config.replay_limit if replayed else 0

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        try:
            if error is not None:
                log.error("the run ended early: %r", error)
                self.pool.close(grace=0.0)
                if isinstance(error, (WorkerError, EnvError, TrainingError)):
                    self._keep_evidence(error)
        finally:
            self._open.close()

    def _keep_evidence(self, error: WorkerError | EnvError | TrainingError) -> None:
        """Save what the run can go on from, and what shows the cause."""
        if not self._updating and self._ranks.size == 1:  # several ranks save at the same iteration or not at all
            self._give_up_lost()
            self.save()
        with warn_on_os_error():
            if isinstance(error, TrainingError):
                keep_failed_minibatch(
                    self.run_dir,
                    self._arena,
                    self.learner.model,
                    epoch=error.epoch,
                    minibatch=error.minibatch,
                    message=str(error),
                )
            elif error.env_index is not None:
                keep_failed_episode(
                    self.run_dir,
                    self.config,
                    self._arena,
                    self._actions,
                    env_index=error.env_index,
                    begun=self._begun(error.env_index),
                    message=str(error),
                )

    def _begun(self, n: int) -> int:
        """Steps of the rollout in the arena that environment n has begun and that are not committed."""
        config = self.config
        worker = next(w for w, columns in enumerate(self._columns) if n in columns)
        steps = int(self._arena.array("progress")[worker, PROGRESS.index("steps")])
        return min(max(steps - self._actions.iteration * config.rollout_steps, 0), config.rollout_steps)

    def _gradient_source(self, task: Task) -> ComputeShards:
        """Where gradients come from: this process, shard after shard, or it and the workers, each a part of them."""
        config = self.config
        shards = split(config.shards, config.num_workers, 0) if config.sharded else range(config.shards)
        source = ShardGradients if config.device == "cpu" else DeviceGradients
        gradients = source(config, task.distribution, self.learner.model, self._arena)
        if config.device != "cpu":
            self._inexact(f"--device {config.device} has an order of sums of its own")

        def compute(version: int, epoch: int, minibatch: int) -> None:
            if config.refresh_states and epoch and not minibatch:
                self.pool.refresh(version, self.timer)
                changes, numbers = self._arena.array("state_drift").sum(axis=0)
                self._drifts.append(math.sqrt(changes / max(numbers, 1.0)))

            def own() -> None:
                gradients.compute(epoch, minibatch, shards)

            if config.sharded:
                self.pool.gradients(version, epoch, minibatch, own, self.timer)
            else:
                self.timer.switch("gradient")
                own()

        return compute

    def _check_inference(self, task: Task) -> None:
        """Say so if a row of an inference tile depends on its other rows: then worker counts would change results."""
        network = ActingNetwork(self.learner.model, task.distribution, tiles=1, rows=self.config.inference_rows)
        network.load()
        with torch_threads(1):
            free = is_row_independent(network)
        if not free:
            self._inexact("inference: a row's result depends on its tile's other rows on this processor and build")

    def _inexact(self, reason: str) -> None:
        """From here on, and for good, this run is not a pure function of its configuration and seed."""
        if reason not in self.inexact_reasons:
            log.warning("not exact: %s", reason)
            self.inexact_reasons.append(reason)

    def _give_up_lost(self) -> None:
        """Book the environments whose episode a replay did not bring back, so that it was restarted."""
        for n in self.pool.lost:
            self.learner.discounted_return[n] = 0.0
            self._inexact(f"environment {n}: its episode could not be replayed and was restarted")
        self.pool.lost.clear()

    def commit_rollout(self) -> None:
        """The rollout is whole: its carry is the one to go on from, its actions are what a replay needs."""
        read = self._arena.array
        self._give_up_lost()
        carry = (self.iteration + 1) % 2
        self._updating = True
        self._actions.commit(
            read("actions"), read("terminated") | read("truncated"), read("carry_episode")[carry], read("taken")
        )

    def finish_iteration(self, statistics: dict[str, float]) -> None:
        """Book the iteration: write its row, draw, save a checkpoint if one is due."""
        config, read = self.config, self._arena.array
        self.iteration += 1
        self._updating = False
        self._give_up_lost()
        self._bad_episodes += self._episodes.add_rollout(self._arena, config.first_env, self._ranks)
        taken = self.learner.steps_taken
        self._env_steps += taken
        if self._step_times is not None:
            self._step_times.add(read("step_seconds"))
        if self.iteration == 1 or self.iteration % MEMORY_EVERY == 0:
            self._sample_memory()
        seconds = self.timer.reset()
        self._seconds += seconds
        self._handshake += self.pool.sync_seconds
        row = {
            "iteration": self.iteration,
            "env_steps": self._env_steps,
            "wall_seconds": self._seconds.sum(),
            "steps_per_second": taken / seconds.sum(),
            "episodes": self._episodes.count,
            "failed_episodes": self._bad_episodes,
            "return_mean_100": self._episodes.return_mean,
            "length_mean_100": self._episodes.length_mean,
            "sync_seconds": self.pool.sync_seconds,
            "collect_seconds": self.pool.collect_seconds,
            "allreduce_seconds": self._ranks.seconds,
            "straggler_wait": waiting_share(self.pool.worker_seconds),
            "preempted_steps": config.batch_steps - taken,
            "slowest_worker": int(self.pool.worker_seconds.argmax()),
            "state_drift": sum(self._drifts) / max(len(self._drifts), 1),
            **statistics,
            **{f"{phase}_seconds": s for phase, s in zip(PHASES, seconds, strict=True)},
        }
        self.pool.sync_seconds = self._ranks.seconds = 0.0
        self._drifts.clear()
        self._metrics.write(row)
        if self.learner.kl_profile is not None:
            with warn_on_os_error():
                write_profile(self.run_dir, self.iteration, self.learner.kl_profile)
        self._watchers.log(row)
        if self._watchers.asks_to_stop(row):
            self.stop.make()
        if self._evaluations is not None:
            self._evaluations.after(self.iteration, self._env_steps, self.learner)
        if self._agree():
            self.save()
        last = self.iteration == config.last_iteration or self.stopping
        self._display.show(row, self.pool.worker_seconds.tolist(), self._memory, last=last)

    def _agree(self) -> bool:
        """Find out with the other ranks whether to stop; returns whether a checkpoint is due, on any of them."""
        every = self.config.checkpoint_every
        due = time.monotonic() >= self._save_due or (every is not None and self.iteration % every == 0)
        self.stopping, due = self._ranks.agree((self.stop.made, due), self._arena.tensor("weights"), self.iteration)
        return due

    def _sample_memory(self) -> None:
        evaluators = self._evaluations.pids if self._evaluations is not None else []
        self._memory = machine.proportional_memory([os.getpid(), *self.pool.pids, *evaluators])
        self._peak_memory = max(self._peak_memory, self._memory)

    def finish(self) -> dict[str, Any]:
        """Save the checkpoint and the summary; returns the summary."""
        config = self.config
        self._sample_memory()
        if self._saved_at != self.iteration:  # another save would push out one that a rank may yet need
            self.save()
        inexact = [  # a run is as exact as each of its ranks
            reason if rank == config.rank else f"rank {rank}: {reason}"
            for rank, reasons in enumerate(self._ranks.gather_objects(self.inexact_reasons))
            for reason in reasons
        ]
        wall, steps = float(self._seconds.sum()), self._env_steps
        summary = {
            "run_dir": str(self.run_dir),
            "config": json.loads(json.dumps(config.to_json())),
            "weights_sha256": self.learner.weights_sha256(),
            "exact": not inexact,
            "inexact_reasons": inexact,
            "env_steps": steps,
            "iterations": self.iteration,
            "episodes": self._episodes.count,
            "return_mean_100": self._episodes.return_mean if self._episodes.count else None,
            "workers": config.num_workers,
            "worker_restarts": self.pool.restarts,
            "num_envs": config.num_envs,
            "ranks": config.ranks,
            "wall_seconds": wall,
            "steps_per_second": steps / wall if wall else 0.0,
            "phase_seconds": as_dict(self._seconds),
            "sync_seconds": self._handshake,
            "peak_memory_bytes": self._peak_memory,
            "shared_memory_bytes": self._arena.memory.numel(),
            "stopped_early": self.iteration < config.iterations,
        }
        if self._step_times is not None:
            summary["step_times"] = self._write_step_times(self._step_times)
        with warn_on_os_error():
            write_json(self.run_dir / SUMMARY, summary)
        if self._evaluations is not None:
            self._evaluations.finish(patient=not self.stop.made)
        self._watchers.finish(summary)
        return summary

    def _write_step_times(self, times: StepTimes) -> dict[str, float]:
        """Write step_times.csv; returns the part of the summary that names the slowest environment."""
        worker_of = [w for w, columns in enumerate(self._columns) for _ in columns]
        with warn_on_os_error():
            times.write(self.run_dir, worker_of)
        return times.summary(worker_of)

    def save(self) -> None:
        """Write a checkpoint: everything that the next iteration depends on. A full disk costs a warning only."""
        carry = self.iteration % 2
        best = self._episodes.return_mean > self._best_return
        highest = self._episodes.return_mean if best else self._best_return
        state = {
            "config": json.dumps(self.config.to_json()),
            "fingerprint": self._fingerprint,
            "inexact_reasons": self.inexact_reasons,
            "iteration": self.iteration,
            "env_steps": self._env_steps,
            "learner": self.learner.state(),
            "carry": {name: self._arena.tensor(name)[carry].clone() for name in self._arena.carry_names},
            "actions": {name: torch.from_numpy(array) for name, array in self._actions.state().items()},
            "episodes": self._episodes.state(),
            "seconds": torch.from_numpy(self._seconds.copy()),
            "sync_seconds": self._handshake,
            "best_return": highest,
            "failed_episodes": self._bad_episodes,
        }
        try:
            save_checkpoint(self.run_dir, state, keep=self.config.keep_checkpoints, best=best)
        except OSError as error:
            log.warning("no checkpoint was written, the one before is kept: %s", error)
            self._save_due = time.monotonic() + min(RETRY_SECONDS, 60 * self.config.checkpoint_minutes)
        else:
            self._best_return, self._saved_at = highest, self.iteration
            self._save_due = time.monotonic() + 60 * self.config.checkpoint_minutes

    def _restore(self, state: dict[str, Any]) -> None:
        """Take over a checkpoint, all but the learner's part."""
        self.iteration = state["iteration"]
        self._env_steps = state["env_steps"]
        log.info("resumed at iteration %d", self.iteration)
        self.inexact_reasons = list(state["inexact_reasons"])
        for name, value in self._fingerprint.items():
            before = state["fingerprint"].get(name)
            if before != value:
                self._inexact(f"resumed with {name} {value}, begun with {before}")
        for name, tensor in state["carry"].items():
            self._arena.tensor(name)[self.iteration % 2] = tensor
        self._actions.load({name: tensor.numpy() for name, tensor in state["actions"].items()}, self.iteration)
        self._episodes.load(state["episodes"])
        self._seconds = state["seconds"].numpy().copy()
        self._handshake = state["sync_seconds"]
        self._best_return = state["best_return"]
        self._bad_episodes = state["failed_episodes"]
