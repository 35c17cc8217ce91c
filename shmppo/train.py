"""Training: `python -m shmppo.train`. One screen of `train` shows the whole path of the data."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

from shmppo.checkpoint import NAME as CHECKPOINT
from shmppo.checkpoint import save_checkpoint
from shmppo.config import ConfigError, TrainConfig
from shmppo.envs import EnvironmentFault, Task, inspect_task
from shmppo.gradients import ShardGradients
from shmppo.inference import ActingNetwork, content_free
from shmppo.layout import Arena, Sizes, allocate, check_shared_memory, shared_fields
from shmppo.learner import ComputeShards, Learner, TrainingFault, parameter_count
from shmppo.logs import log_to
from shmppo.machine import proportional_memory
from shmppo.pool import InProcess, Pool, WorkerFault, WorkerPool, split
from shmppo.report import Display, EpisodeStatistics, MetricsFile, summary_text
from shmppo.run_directory import LOG, METRICS, SUMMARY, create_run_directory, write_json
from shmppo.timers import PHASES, PhaseTimer, as_dict

log = logging.getLogger("shmppo.train")

MEMORY_EVERY = 100  # iterations between two samples of the memory in use; one costs about 5 ms a process


def train(config: TrainConfig) -> dict[str, Any]:
    """Train to the end of the configuration, or until SIGINT or SIGTERM; returns what summary.json holds.

    Raises:
        ConfigError: before anything is started, for what cannot run.
        WorkerFault, EnvironmentFault, TrainingFault: when the run cannot go on. Nothing is left running.
    """
    task = inspect_task(config)
    parameters, state = parameter_count(config, task)
    fields = shared_fields(config, Sizes(task.observation_size, task.distribution.action_size, state, parameters))
    check_shared_memory(fields)
    run_dir = create_run_directory(config)
    arena = Arena(fields, allocate(fields))
    with (
        log_to(run_dir / LOG),
        learner_threads(config.learner_threads),
        Session(config, task, arena, run_dir) as session,
    ):
        learner, pool, timer = session.learner, session.pool, session.timer
        while session.iteration < config.last_iteration and not session.stop_requested:
            timer.switch("publish")
            learner.publish_statistics()
            learner.publish()
            pool.collect(learner.version, session.iteration, timer)
            statistics = learner.update(session.iteration, session.compute, timer)
            session.finish_iteration(statistics)
        return session.finish()


class Session:
    """What one run holds open: processes, files, display, signal handlers. A context manager that ends them."""

    def __init__(self, config: TrainConfig, task: Task, arena: Arena, run_dir: Path) -> None:
        self.config = config
        self.run_dir = run_dir
        self.iteration = 0
        self.stop_requested = False
        self.timer = PhaseTimer()
        self._arena = arena
        self._seconds = np.zeros(len(PHASES))
        self._handshake = 0.0
        self._episodes = EpisodeStatistics()
        self._peak_memory = 0
        with ExitStack() as stack:  # undone here if a step fails, else on exit
            stack.enter_context(self._signals())
            workers = None
            if config.num_workers:
                # Workers start while the learner is built: both import and allocate for a while.
                workers = WorkerPool(config, task, arena, run_dir / LOG)
                stack.callback(workers.close)
            self.learner = Learner(config, task, arena)
            if workers is None:
                inside = InProcess(config, task, self.learner.model, arena)
                stack.callback(inside.close)
            self.pool: Pool = workers or inside
            self.compute = self._gradient_source(task)
            self.inexact_reasons = self._inexact_reasons(task)
            self.pool.wait_ready()
            self._metrics = stack.enter_context(closing(MetricsFile(run_dir / METRICS)))
            self._display = stack.enter_context(closing(Display(config, run_dir)))
            self._open = stack.pop_all()
        self.timer.reset()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            log.error("the run ended early: %r", error)
            self.pool.close(grace=0.0)
        self._open.close()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """First SIGINT or SIGTERM: stop after this iteration. Second: leave at once."""

        def stop(number: int, frame: FrameType | None) -> None:
            if self.stop_requested:
                raise KeyboardInterrupt
            self.stop_requested = True
            log.info("signal %d: stopping after this iteration", number)

        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread may install handlers; the caller stops such a run
            return
        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _gradient_source(self, task: Task) -> ComputeShards:
        """Where gradients come from: this process, shard after shard, or it and the workers, each a part of them."""
        config = self.config
        gradients = ShardGradients(config, task.distribution, self.learner.model, self._arena)
        shards = split(config.shards, config.num_workers, 0) if config.sharded else range(config.shards)

        def compute(version: int, epoch: int, minibatch: int) -> None:
            def own() -> None:
                for shard in shards:
                    gradients.compute(epoch, minibatch, shard)

            if config.sharded:
                self.pool.gradients(version, epoch, minibatch, own, self.timer)
            else:
                self.timer.switch("gradient")
                own()

        return compute

    def _inexact_reasons(self, task: Task) -> list[str]:
        """Why this run is not a pure function of its configuration and seed; empty if it is."""
        network = ActingNetwork(
            self.learner.model,
            task.distribution,
            tiles=1,
            rows=self.config.tile,
            observation_size=task.observation_size,
        )
        network.load()
        if content_free(network):
            return []
        return ["inference: a row's result depends on its tile's other rows on this processor and build"]

    def finish_iteration(self, statistics: dict[str, float]) -> None:
        """Book the iteration: commit the carry, write its row, draw."""
        config, read = self.config, self._arena.array
        self.iteration += 1
        ended = read("terminated") | read("truncated")
        self._episodes.add(read("ended_return")[ended].tolist(), read("ended_length")[ended].tolist())
        if self.iteration == 1 or self.iteration % MEMORY_EVERY == 0:
            self._sample_memory()
        seconds = self.timer.reset()
        self._seconds += seconds
        self._handshake += self.pool.handshake_seconds
        row = {
            "iteration": self.iteration,
            "env_steps": self.iteration * config.batch_steps,
            "wall_seconds": self._seconds.sum(),
            "steps_per_second": config.batch_steps / seconds.sum(),
            "episodes": self._episodes.count,
            "return_mean_100": self._episodes.return_mean,
            "length_mean_100": self._episodes.length_mean,
            "handshake_seconds": self.pool.handshake_seconds,
            **statistics,
            **{f"{phase}_seconds": s for phase, s in zip(PHASES, seconds, strict=True)},
        }
        self.pool.handshake_seconds = 0.0
        self._metrics.write(row)
        self._display.show(row, last=self.iteration == config.last_iteration or self.stop_requested)

    def _sample_memory(self) -> None:
        self._peak_memory = max(self._peak_memory, proportional_memory([os.getpid(), *self.pool.pids]))

    def finish(self) -> dict[str, Any]:
        """Save the checkpoint and the summary; returns the summary."""
        config = self.config
        self._sample_memory()
        state = {
            "config": json.dumps(config.to_json()),
            "iteration": self.iteration,
            "learner": self.learner.state(),
        }
        save_checkpoint(self.run_dir / CHECKPOINT, state)
        wall = float(self._seconds.sum())
        steps = self.iteration * config.batch_steps
        summary = {
            "run_dir": str(self.run_dir),
            "weights_sha256": self.learner.weights_sha256(),
            "exact": not self.inexact_reasons,
            "inexact_reasons": self.inexact_reasons,
            "env_steps": steps,
            "iterations": self.iteration,
            "episodes": self._episodes.count,
            "return_mean_100": self._episodes.return_mean if self._episodes.count else None,
            "workers": config.num_workers,
            "num_envs": config.num_envs,
            "wall_seconds": wall,
            "steps_per_second": steps / wall if wall else 0.0,
            "phase_seconds": as_dict(self._seconds),
            "handshake_seconds": self._handshake,
            "peak_memory_bytes": self._peak_memory,
            "shared_memory_bytes": self._arena.memory.numel(),
            "stopped_early": self.iteration < config.iterations,
        }
        write_json(self.run_dir / SUMMARY, summary)
        return summary


@contextmanager
def learner_threads(count: int) -> Iterator[None]:
    """Let torch use `count` threads in this process, for as long as the context is open."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def main() -> int:
    """The command line; returns the exit code."""
    import tyro

    try:
        config = tyro.cli(TrainConfig, prog="python -m shmppo.train", description=__doc__)
        summary = train(config)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (WorkerFault, EnvironmentFault, TrainingFault) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("left at the second signal; this iteration is lost", file=sys.stderr)
        return 130
    if not config.quiet:
        print(summary_text(config, summary, Path(summary["run_dir"])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
