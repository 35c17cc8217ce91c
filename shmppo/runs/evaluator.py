"""Evaluation during training (--eval-every), in a separate process. Training does not wait for it.

The learner writes the weights to a file, sends a message through a pipe, and receives the results after a later
iteration. If an evaluation is due while another one is in progress, it starts later, with the weights of that time. The
process also ends if the learner is killed.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import signal
import threading
import time
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path

import numpy as np
import torch

from shmppo.config.train_config import TrainConfig
from shmppo.loggers.metrics import EVALUATION_GLOSSARY
from shmppo.loggers.trackers import LoggerList, Row
from shmppo.parallel.fork_server import end_process, end_with_fork_server, started_process
from shmppo.policies.evaluation import MAX_STEPS, EpisodeResult, play_episodes
from shmppo.policies.policy import trained_from
from shmppo.ppo.learner import Learner
from shmppo.sampling.worker_process import start_context
from shmppo.storage.checkpoint_file import load_checkpoint, write_checkpoint
from shmppo.storage.run_directory import EVALUATIONS, LOG, MetricsFile, config_error_if_unwritable, saving
from shmppo.utils.logs import log_to
from shmppo.utils.signals import StopRequest

log = logging.getLogger(__name__)

WEIGHTS = "evaluation.pt"
FINISH_SECONDS = 60.0  # maximum time for which the end of a run waits for the evaluation in progress
POLL_SECONDS = 0.1  # between two looks for a signal meanwhile
NICENESS = 10  # lower priority than training


class Evaluator:
    """Starts the evaluator process, requests evaluations, and writes the results to eval.csv and the loggers."""

    def __init__(self, config: TrainConfig, run_dir: Path, loggers: LoggerList) -> None:
        """Start the process. loggers: receive each row of eval.csv.

        Raises:
            ConfigError: if eval.csv cannot be written.
        """
        self._config, self._run_dir, self._loggers = config, run_dir, loggers
        with config_error_if_unwritable(run_dir):
            self._table = MetricsFile(run_dir / EVALUATIONS, tuple(EVALUATION_GLOSSARY))
        self._due = self._busy = self._dead = False
        self._evaluated = 0  # iteration of the last evaluation that was requested
        context = start_context()
        self._pipe, evaluator_pipe = context.Pipe()
        self._process = started_process(
            lambda: context.Process(target=run_evaluator, args=(run_dir, evaluator_pipe), name="evaluator", daemon=True)
        )
        evaluator_pipe.close()

    @property
    def pids(self) -> list[int]:
        """Process id of the evaluator, as a list of one."""
        return [self._process.pid]

    def after(self, iteration: int, env_steps: int, learner: Learner) -> None:
        """Receive finished results, and request an evaluation if one is due and none is in progress.

        Args:
            iteration: number of finished iterations.
            env_steps: number of finished environment steps.
            learner: its current weights and statistics are evaluated.

        Raises:
            SaveError: if the results or the weights cannot be written.
        """
        self._due |= iteration % (self._config.eval_every or 1) == 0
        self._receive()
        if not self._due or self._busy:
            return
        if not self._process.is_alive():
            if not self._dead:
                log.warning("the evaluator process has died; there are no more evaluations")
            self._dead = True
            return
        state = learner.state()
        weights = {
            "config": json.dumps(self._config.to_json()),
            "iteration": iteration,
            "env_steps": env_steps,
            "learner": {
                "model": {name: tensor.clone() for name, tensor in state["model"].items()},
                "obs_moments": state["obs_moments"],
            },
        }
        with saving(self._run_dir):
            write_checkpoint(self._run_dir / WEIGHTS, weights)
        with suppress(OSError):  # the process has just died, which is noticed when the results are received
            self._pipe.send(iteration)
        self._due, self._busy, self._evaluated = False, True, iteration

    def _receive(self, timeout: float = 0.0) -> None:
        """Wait up to `timeout` seconds for the results of the evaluation in progress, and record them."""
        if not self._busy:
            return
        try:
            if not self._pipe.poll(timeout):
                return
            result = self._pipe.recv()
        except (EOFError, OSError):
            result = "the evaluator process has died"
            end_process(self._process)  # it may have closed the pipe and still run
        self._busy = False
        if isinstance(result, str):
            log.warning("an evaluation failed: %s", result)
            return
        self._table.write(result)
        self._loggers.log(result)

    def finish(self, stop: StopRequest) -> str | None:
        """Receive the results of the evaluation in progress, if there is one. Wait up to FINISH_SECONDS for them.

        Args:
            stop: this request ends the wait.

        Returns:
            One sentence if there are no results. None if there are, or if no evaluation is in progress.
        """
        self._receive()
        deadline = time.monotonic() + FINISH_SECONDS
        while self._busy and not stop.made and time.monotonic() < deadline:
            self._receive(POLL_SECONDS)
        if not self._busy:
            return None
        reason = "the run was asked to stop" if stop.made else f"it took longer than {FINISH_SECONDS:g} s"
        return f"the evaluation of iteration {self._evaluated} was given up, because {reason}"

    def close(self) -> None:
        """End the process. Safe to call after an error."""
        self._pipe.close()
        end_process(self._process)
        (self._run_dir / WEIGHTS).unlink(missing_ok=True)


def run_evaluator(run_dir: Path, pipe: Connection) -> None:
    """The main function of the evaluator process: evaluate the weights file at every message of the learner.

    Args:
        run_dir: directory of the run, which contains the weights file.
        pipe: receives requests, and sends rows of eval.csv or the text of an error.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_fork_server()
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    os.nice(NICENESS)
    torch.set_num_threads(1)
    with ExitStack() as stack:
        with suppress(OSError):  # the directory was removed, which ends the run
            stack.enter_context(log_to(run_dir / LOG))
        while True:
            try:
                pipe.recv()
                pipe.send(_evaluate(run_dir))
            except (EOFError, OSError):
                return


def _exit_with_parent() -> None:
    """Exit immediately when the learner has ended, even during an episode."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _evaluate(run_dir: Path) -> Row | str:
    """Evaluate the weights file. Return a row of eval.csv, or the text of an error."""
    began = time.monotonic()
    try:
        state = load_checkpoint(run_dir / WEIGHTS)
        trained = trained_from(state)
        results = play_episodes(trained, episodes=trained.config.eval_episodes, seed=trained.config.seed)
    except Exception as error:  # an error of the environment or the disk must not end the run
        return " ".join(f"{type(error).__name__}: {error}".split())
    stopped = sum(result.stopped for result in results)
    if stopped:
        log.warning(
            "iteration %d: %d of %d evaluated episodes were stopped after %d steps; their returns count these only",
            trained.iteration, stopped, len(results), MAX_STEPS,
        )  # fmt: skip
    return evaluation_row(trained.iteration, state["env_steps"], results, time.monotonic() - began)


def evaluation_row(iteration: int, env_steps: int, results: list[EpisodeResult], seconds: float) -> Row:
    """Make a row of eval.csv.

    Args:
        iteration: finished iterations when the weights were copied.
        env_steps: finished environment steps at that time.
        results: of the episodes, at least one.
        seconds: duration of the evaluation.
    """
    returns = [result.episode_return for result in results]
    return {
        "iteration": iteration,
        "env_steps": env_steps,
        "eval_return_mean": float(np.mean(returns)),
        "eval_return_std": float(np.std(returns)),
        "eval_return_min": min(returns),
        "eval_return_max": max(returns),
        "eval_length_mean": float(np.mean([result.length for result in results])),
        "eval_episodes": len(results),
        "eval_seconds": seconds,
    }
