"""The options that define where and how a run executes: processes, ranks, and reports.

The docstring after each field is also the help text of its flag. `options` defines what is trained.
"""

# ruff: noqa: RUF009 (option returns a dataclasses.field, which is what a dataclass needs)

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from shmppo.config.checks import flag, require, store_as_json
from shmppo.config.option import AT_LEAST_1, NOT_NEGATIVE, SECONDS, neutral_option, option
from shmppo.config.options import KeywordArguments

NotAFlag = Annotated[int, tyro.conf.Fixed, tyro.conf.Suppress]
"""An integer field without a flag. Its value follows from how torchrun started the processes."""


@dataclass(frozen=True)
class ProcessOptions:
    """Processes, device, and files. Of these options, only --device, --act-on, --kernel, and --portable change what an
    iteration computes."""

    workers: int | None = option(None, NOT_NEGATIVE, common=True, resumable=True, per_rank=True, set_by_search=True)
    """W, number of worker processes. 0: no workers, the learner samples in its own process. None: one per usable core,
    but at most N."""
    learning: Literal["auto", "central", "sharded"] = option("auto", resumable=True, per_rank=True, set_by_search=True)
    """Where gradients are computed. central: in the learner. sharded: in the learner and the workers. auto: sharded if
    both W and G are at least 2. Both give the same weights."""
    device: str = option("cpu", resumable=True)
    """Device of the update: cpu, cuda, or cuda:1. With cuda, local rank r has GPU r. The weights depend on the type of
    GPU. cpu:0 is for tests: as on a GPU, but on the CPU."""
    act_on: Literal["workers", "device"] = option("workers", resumable=True)
    """Who computes the actions of training: the workers, or the learner on --device, for convolutions."""
    kernel: Literal["auto", "native", "torch"] = "auto"
    """What computes the network. native: the compiled kernels. torch: torch's own modules. auto: the kernels, but torch
    for --network and without a C compiler. The weights depend on it. Torch always computes convolutions and encoders of
    your own."""
    convolutions: Annotated[bool, tyro.conf.Fixed, tyro.conf.Suppress] = option(False, derived=True, inherited=False)
    """Whether the network has layers of type Conv2d. The run sets it at its start."""
    portable: bool = False
    """Let torch compute the same bits on each x86-64 processor with AVX2, more slowly. The kernels always do. In
    Python, call shmppo.portable() before torch is imported."""
    run_dir: str | None = option(
        None, common=True, per_rank=True, inherited=False, set_by_search=True, changes_curve=False, path=True
    )
    """Directory for all files of the run. None: runs/<env>-s<seed>-<time>."""
    stop_at_iteration: int | None = neutral_option(None, AT_LEAST_1, inherited=False, set_by_search=True)
    """Stop after this iteration. Annealing is not affected. None: stop after --total-steps."""
    worker_timeout: float = neutral_option(60.0, SECONDS)
    """Seconds after which a call of an environment in a worker fails if it has given no result. A worker that makes no
    progress for 1.25 times as long is replaced. A start or an evaluation has at least 120 seconds."""
    checkpoint_every: int | None = neutral_option(None, AT_LEAST_1, set_by_search=True)
    """Iterations between checkpoints, of which the last two and the best one are kept. A run also writes one at its
    start, every ten minutes, at its end, after a stop signal, and with each new best value of --best-by. None: only at
    these times."""
    keep_every: int | None = neutral_option(None, AT_LEAST_1)
    """Iterations between checkpoints that are kept for good, as checkpoint-iteration-N.pt. None: none is kept."""

    ranks: NotAFlag = option(1, per_rank=True, inherited=False)
    """R, number of ranks: learners that torchrun starts, and that average their gradients."""
    rank: NotAFlag = option(0, per_rank=True, inherited=False)
    """Index of this rank."""

    def check(self) -> None:
        """Raise ConfigError if one of these options is invalid."""
        require(self.run_dir != "", "--run-dir is empty; name a directory, or leave it out")
        known = re.fullmatch("cpu(:0)?|cuda(:[0-9]+)?", self.device)
        require(known is not None, f"--device is {self.device}; use cpu or cuda")
        acts = self.act_on == "workers" or self.device != "cpu"
        require(acts, "--act-on device needs a GPU; add --device cuda, or use --act-on workers")


@dataclass(frozen=True)
class EvaluationOptions:
    """Evaluations during training, and what is decided from metrics."""

    eval_every: int | None = neutral_option(None, AT_LEAST_1, common=True, read_by_schedule=True)
    """Iterations between evaluations: all workers play whole episodes with the most likely actions of the current
    weights, and eval.csv gets a row. The weights at the end are evaluated, too. None: no evaluations."""
    eval_episodes: int = neutral_option(10, AT_LEAST_1, read_by_schedule=True)
    """Episodes per evaluation, over all ranks. They have the same seeds in every evaluation."""
    eval_env_kwargs: KeywordArguments = option({}, resumable=True, read_by_schedule=True)
    """Arguments of the environment's constructor in evaluations. They are added to --env-kwargs, or replace them."""
    eval_videos: bool = neutral_option(False, one_column=True, per_rank=True)
    """Record the first episode of each evaluation as videos/ITERATION.mp4 (extra `video`)."""
    best_by: str = neutral_option("return", common=True)
    """The metric that decides about checkpoint-best.pt: the largest value wins, and among equal values the one with the
    larger return, then the latest. return (of the last 100 training episodes), or a column of metrics.csv or eval.csv
    such as eval/return or info/is_success, except hashes and what depends on the clock. Metrics of training are
    compared in up to 20 iterations, evenly spaced over --total-steps, and at the end of the run; those of evaluations
    after each one."""
    stop_when: tuple[str, ...] = neutral_option((), common=True, unfit_for_search="would end trials before their rungs")
    """Stop when one of these conditions holds: METRIC>=VALUE or METRIC<=VALUE, for example
    "eval/info/is_success>=0.9", or METRIC:N, which holds if N values in a row are not above the highest one before, for
    example eval/return:5."""

    def check(self) -> None:
        """Raise ConfigError if one of these options is invalid."""
        store_as_json(self, "eval_env_kwargs")
        for name in ("eval_env_kwargs", "eval_videos"):
            require(
                self.eval_every is not None or not getattr(self, name),
                f"{flag(name)} concerns evaluations during training; add --eval-every, or leave it out",
            )


@dataclass(frozen=True)
class ReportOptions:
    """What a run displays and records."""

    track: tuple[Literal["tensorboard", "wandb"], ...] = neutral_option((), common=True, per_rank=True)
    """Trackers that also receive every row of metrics.csv. Each needs an extra: pip install 'shmppo[tensorboard]'."""
    quiet: bool = neutral_option(False, per_rank=True, inherited=False, set_by_search=True)
    """Print only errors."""
    check_determinism: int = neutral_option(500, NOT_NEGATIVE)
    """Steps for which two instances of the environment are compared in the background. If they differ, the run is not
    reproducible (exact: false). 0: no check."""
