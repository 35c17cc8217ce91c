"""Evaluation while training: `--eval-every`, in a process of its own that training never waits for.

The learner writes the weights into a file, says so over a pipe, and takes the results when they are there; as long as
one evaluation lasts, no other is begun. The process ends with the learner, however that ends.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import signal
import threading
import time
from multiprocessing.connection import Connection, wait
from pathlib import Path

import numpy as np
import torch

from shmppo.config.train_config import TrainConfig
from shmppo.loggers.metrics import EVALUATION_GLOSSARY, MetricsFile
from shmppo.loggers.trackers import LoggerList, Row
from shmppo.ppo.learner import Learner
from shmppo.runs.evaluation import EpisodeResult, play
from shmppo.runs.policy import trained_from
from shmppo.runs.run_directory import EVALUATIONS, LOG
from shmppo.runs.video import VideoRecorder
from shmppo.sampling.worker_process import start_context
from shmppo.utils.logs import log_to

log = logging.getLogger(__name__)

WEIGHTS = "evaluation.pt"
LAST_SECONDS = 60.0  # what the end of a run waits for the evaluation in progress
NICENESS = 10  # training goes first


class Evaluator:
    """The learner's side: asks for evaluations, and writes their rows to eval.csv and the watchers."""

    def __init__(self, config: TrainConfig, run_dir: Path, iteration: int, watchers: LoggerList) -> None:
        """iteration: the one that the run goes on from; rows beyond it are cut from eval.csv."""
        self._config = config
        self._run_dir = run_dir
        self._watchers = watchers
        self._table = MetricsFile(run_dir / EVALUATIONS, iteration, tuple(EVALUATION_GLOSSARY))
        self._due = self._busy = self._dead = False
        context = start_context()
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=run_evaluator, args=(run_dir, theirs), name="evaluator", daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pids(self) -> list[int]:
        return [self._process.pid]

    def after(self, iteration: int, env_steps: int, learner: Learner) -> None:
        """Take what has been evaluated, and ask for this iteration's evaluation if one is due and none is going on.

        env_steps: taken until here, of all ranks.
        """
        self._due |= iteration % (self._config.eval_every or 1) == 0
        self._take()
        if not self._due or self._busy:
            return
        if not self._process.is_alive():
            if not self._dead:
                log.warning("the process that evaluates has died; nothing more is evaluated")
            self._dead = True
            return
        state = learner.state()
        content = {
            "config": json.dumps(self._config.to_json()),
            "iteration": iteration,
            "env_steps": env_steps,
            "learner": {
                "model": {name: tensor.clone() for name, tensor in state["model"].items()},
                "obs_moments": state["obs_moments"],
            },
        }
        try:
            torch.save(content, self._run_dir / WEIGHTS)
            self._pipe.send(iteration)
        except (OSError, RuntimeError) as error:
            log.warning("iteration %d is not evaluated: %s", iteration, error)
        else:
            self._due, self._busy = False, True

    def _take(self, timeout: float = 0.0) -> None:
        """Book the results of the evaluation in progress if they come within `timeout` seconds."""
        if not self._busy:
            return
        try:
            if not self._pipe.poll(timeout):
                return
            answer = self._pipe.recv()
        except (EOFError, OSError):
            answer = "the process that evaluates has died"
            self._process.join()
        self._busy = False
        if isinstance(answer, str):
            log.warning("an evaluation failed: %s", answer)
            return
        self._table.write(answer)
        self._watchers.log(answer)

    def finish(self, *, patient: bool) -> None:
        """At the end of the run, take the evaluation in progress; not for long, and not at all unless `patient`."""
        self._take(LAST_SECONDS if patient else 0.0)

    def close(self) -> None:
        """End the process; safe to call after a fault."""
        self._pipe.close()  # it ends by itself when idle
        self._process.kill()
        self._process.join()
        self._table.close()
        (self._run_dir / WEIGHTS).unlink(missing_ok=True)


def run_evaluator(run_dir: Path, pipe: Connection) -> None:
    """The process: evaluates the weights file whenever the pipe names an iteration, until the learner is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.nice(NICENESS)
    torch.set_num_threads(1)
    with log_to(run_dir / LOG):
        while True:
            try:
                pipe.recv()
                pipe.send(_answer(run_dir))
            except (EOFError, OSError):
                return


def _end_with_parent() -> None:
    """Leave at once when the learner is gone, even in the middle of an episode."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _answer(run_dir: Path) -> Row | str:
    """The row of eval.csv for the weights file, or what went wrong."""
    began = time.monotonic()
    try:
        state = torch.load(run_dir / WEIGHTS, weights_only=True)
        trained = trained_from(state)
        config, film = trained.config, None
        if config.eval_videos:
            film = VideoRecorder(run_dir / "videos" / f"{trained.iteration}.mp4")
        try:
            played = play(trained, episodes=config.eval_episodes, seed=config.seed, film=film, filmed=1)
        finally:
            if film is not None:
                film.close()
    except Exception as error:  # the environment's, the film's, the disk's: none of them may end the run
        return " ".join(f"{type(error).__name__}: {error}".split())
    return evaluation_row(trained.iteration, state["env_steps"], played, time.monotonic() - began)


def evaluation_row(iteration: int, env_steps: int, played: list[EpisodeResult], seconds: float) -> Row:
    """A row of eval.csv."""
    totals = [one.total for one in played]
    return {
        "iteration": iteration,
        "env_steps": env_steps,
        "eval_return_mean": float(np.mean(totals)),
        "eval_return_std": float(np.std(totals)),
        "eval_return_min": min(totals),
        "eval_return_max": max(totals),
        "eval_length_mean": float(np.mean([one.length for one in played])),
        "eval_episodes": len(played),
        "eval_seconds": seconds,
    }
