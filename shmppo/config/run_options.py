"""The options that define where and how a run executes: processes, ranks, and reports.

The docstring after each field is also the help text of its flag. `options` defines what is trained.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Literal

import tyro

from shmppo.config.checks import at_least_1, at_most, duration, flag, positive, require, require_fields

MAX_THREADS = 4096


@dataclass(frozen=True)
class ProcessOptions:
    """Processes, device, and files. At a given iteration, only --device and --learner-threads change the weights."""

    workers: int | None = None
    """W, number of worker processes. 0: no workers, the learner samples in its own process. None: one per usable core,
    but at most N."""
    learning: Literal["auto", "central", "sharded"] = "auto"
    """Where gradients are computed. central: in the learner. sharded: in the learner and the workers. auto: sharded if
    both W and G are at least 2. Both give the same weights."""
    device: str = "cpu"
    """Device of the learner's gradients: cpu, cuda, or cuda:1. Sampling stays on the CPU. Other devices than cpu need
    central learning. Such a run has other weights and is not reproducible (exact: false)."""
    learner_threads: int = 1
    """Threads that compute the learner's gradients. Values above 1 need central learning. Such a run is reproducible,
    but its weights differ from those of a run with one thread."""
    run_dir: str | None = None
    """Directory for all files of the run. None: runs/<env>-s<seed>-<time>."""
    stop_at_iteration: int | None = None
    """Stop after this iteration. Annealing is not affected. None: stop after --total-steps."""
    worker_timeout: float = 60.0
    """Seconds without a step or an acknowledgement after which a worker counts as stalled."""
    max_restarts: int = 3
    """Number of times within an hour that each worker is replaced after a failure. One more failure ends the run."""
    checkpoint_every: int | None = None
    """Iterations between checkpoints. None: only --checkpoint-minutes counts."""
    checkpoint_minutes: float = 10.0
    """Minutes between checkpoints. The run also writes a checkpoint at its start, at its end, and after a stop
    signal."""
    keep_checkpoints: int = 2
    """Number of newest checkpoints to keep. The checkpoint with the best return is kept in addition."""
    keep_every: int | None = None
    """Iterations between checkpoints that are kept for good, as checkpoint-iteration-N.pt. None: no checkpoint is kept
    for good."""
    replay_limit: int = 1_000_000
    """Maximum number of steps of an episode that are recorded for a replay. Where a longer episode needs a replay, it
    is restarted, and the run is no longer reproducible (exact: false). Environments with get_state and set_state need
    no replay."""

    def check_processes(self) -> None:
        """Raise ConfigError if one of these options is invalid."""
        counts = (
            "learner_threads", "stop_at_iteration", "checkpoint_every", "keep_checkpoints", "keep_every",
            "replay_limit",
        )  # fmt: skip
        require_fields(self, counts, at_least_1, "be at least 1")
        require_fields(self, ("max_restarts", "workers"), lambda v: v >= 0, "be 0 or more")
        require_fields(self, ("checkpoint_minutes",), positive, "be positive and below 1e30")
        require_fields(self, ("worker_timeout",), duration, "be positive and at most 1e6 seconds")
        require_fields(self, ("learner_threads",), at_most(MAX_THREADS), f"be at most {MAX_THREADS}")
        require(self.device == "cpu" or self.device.startswith("cuda"), f"--device is {self.device}; use cpu or cuda")


NotAFlag = Annotated[int, tyro.conf.Fixed, tyro.conf.Suppress]
"""An integer field without a flag. Its value follows from how torchrun started the processes."""


@dataclass(frozen=True)
class RankOptions:
    """Several learners that average their gradients, started by torchrun. Batch sizes are those of one rank."""

    rank_timeout: float = 300.0
    """Seconds that a rank waits for the others. Then the run ends with an error that names the missing ranks. Writing a
    checkpoint and replacing a worker must take less time."""
    preempt_fraction: float | None = None
    """End the remaining rollouts early once this fraction of the ranks, or of a rank's workers, have finished theirs
    (DD-PPO: 0.6). This depends on timing, so the run is not reproducible (exact: false). None: wait for the slowest."""
    preempt_min_fraction: float = 0.25
    """Minimum length of a rollout that is ended early, as a fraction of --rollout-steps."""
    ranks: NotAFlag = 1
    """R, number of ranks that learn together."""
    rank: NotAFlag = 0
    """Index of this rank."""

    def check_ranks(self) -> None:
        """Raise ConfigError if one of these options is invalid."""
        require_fields(self, ("rank_timeout",), duration, "be positive and at most 1e6 seconds")
        require_fields(self, ("preempt_fraction", "preempt_min_fraction"), lambda v: 0 < v < 1, "lie between 0 and 1")
        require(0 <= self.rank < self.ranks, f"rank is {self.rank} of {self.ranks}; it must lie in 0 … ranks - 1")


@dataclass(frozen=True)
class ReportOptions:
    """What a run displays and records."""

    track: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Trackers that also receive every row of metrics.csv. Each needs an extra: pip install 'shmppo[tensorboard]'."""
    wandb_project: str = "shmppo"
    """Weights & Biases: project of the run."""
    wandb_group: str | None = None
    """Weights & Biases: group of the run, for example one group for all seeds. None: no group."""
    wandb_name: str | None = None
    """Weights & Biases: name of the run. None: the name of the run directory."""
    wandb_tags: tuple[str, ...] = ()
    """Weights & Biases: tags of the run."""
    eval_every: int | None = None
    """Iterations between evaluations. A separate process evaluates and writes eval.csv. None: no evaluations."""
    eval_episodes: int = 10
    """Episodes per evaluation. The policy takes its most likely actions."""
    eval_videos: bool = False
    """Record the first episode of each evaluation as videos/ITERATION.mp4 (extra `video`)."""
    quiet: bool = False
    """Print only errors."""
    kl_profile_every: int | None = None
    """Updates between KL profiles, which are written to kl.csv and kl/*.npz. The first update always has one. None: no
    profiles."""
    check_determinism: int = 500
    """Steps for which another process compares two instances of the environment during the first iterations. If they
    differ, the run is not reproducible (exact: false). 0: no check."""
    step_times: bool = False
    """Time every environment step to find stragglers. The run writes step_times.csv and adds a line to its summary."""

    def check_report(self) -> None:
        """Raise ConfigError if one of these options is invalid."""
        require_fields(self, ("kl_profile_every", "eval_every", "eval_episodes"), at_least_1, "be at least 1")
        require_fields(self, ("check_determinism",), lambda v: v >= 0, "be 0 or more")
        wandb = [field for field in fields(ReportOptions) if field.name.startswith("wandb_")]
        changed = [flag(field.name) for field in wandb if getattr(self, field.name) != field.default]
        needs = "need" if len(changed) > 1 else "needs"
        require(not changed or "wandb" in self.track, f"{', '.join(changed)} {needs} --track wandb; add it")
        require(
            self.eval_every is not None or not self.eval_videos,
            "--eval-videos records evaluations, but --eval-every is not set; add --eval-every",
        )
