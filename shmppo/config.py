"""The configuration of a run: every number that a run depends on, checked before anything starts.

Axes, used everywhere: T steps per rollout, N environments, W workers, L sequence length,
K epochs, M minibatches, G gradient shards, H hidden size, D observation size, A action size.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

DEFAULT_ENV = "CartPole-v1"
DEFAULT_HIDE_OBS = (1, 3)  # the velocities: what is left needs memory
SHARD_STEPS = 256  # a gradient shard of fewer steps is mostly fixed cost
MAX_SHARDS = 64  # bounds the gradient slab [G, P] and the serial sum over it
MIN_TILE, MAX_TILE = 8, 32


class ConfigError(Exception):
    """A configuration that cannot run; the message says what, where, and what to do.

    Not a ValueError: the command line's parser turns those into messages of its own.
    """


@dataclass(frozen=True)
class TrainConfig:
    """One training run. The run's weights are a pure function of this and the build of its libraries.

    The fields under "where it runs" change no bit of the weights; all others may.
    """

    # --- task
    env: str | None = None
    """Gymnasium id. None: the default job, CartPole-v1 with its velocities (indices 1 and 3) hidden."""
    hide_obs: tuple[int, ...] | None = None
    """Observation indices set to 0, so that the policy needs memory. None: none (but see --env)."""
    num_envs: int = 16
    """N, environments stepped side by side."""
    seed: int = 1
    """Seed of everything random: weights, environments, actions, minibatches."""
    total_steps: int = 200_000
    """Environment steps to train for, over all environments; rounded up to whole iterations."""

    # --- network
    core: Literal["lstm", "gru", "none"] = "lstm"
    """Recurrent core; none is a feed-forward policy."""
    hidden_size: int = 64
    """H, units of each recurrent layer (unused with --core none)."""
    num_layers: int = 1
    """Recurrent layers (unused with --core none)."""
    encoder_sizes: tuple[int, ...] = (64,)
    """Units of the tanh layers before the core."""
    separate_critic: bool = False
    """Give the critic an encoder and a core of its own instead of sharing the actor's."""
    log_std_init: float = 0.0
    """Initial log standard deviation of Box actions (state-independent, learned)."""

    # --- rollout and update
    rollout_steps: int = 128
    """T, steps per environment and iteration."""
    seq_len: int = 32
    """L, longest sequence for backpropagation through time, in steps."""
    epochs: int = 4
    """K, passes over each rollout."""
    minibatches: int = 8
    """M, optimiser steps per epoch."""
    learning_rate: float = 1e-3
    """Adam's step size at the start."""
    anneal_lr: bool = True
    """Lower the learning rate linearly to 0 over --anneal-steps."""
    anneal_clip: bool = False
    """Lower the clip range linearly to 0 over --anneal-steps."""
    anneal_steps: int | None = None
    """Horizon of the annealing, in environment steps. None: --total-steps."""
    adam_eps: float = 1e-5
    """Adam's epsilon."""
    gamma: float = 0.99
    """Discount per step."""
    gae_lambda: float = 0.95
    """λ of generalised advantage estimation (arXiv 1506.02438)."""
    clip: float = 0.2
    """ε of PPO-Clip: the ratio's range is 1 ± ε (arXiv 1707.06347)."""
    value_clip: bool = False
    """Clip the value's change to ± --clip as well."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float = 0.5
    """Gradients are scaled down to this L2 norm."""
    target_kl: float | None = None
    """End an update before the first step whose minibatch shows a larger KL (k3 estimate). None: never."""
    advantage_norm: Literal["minibatch", "global", "none"] = "minibatch"
    """Over what advantages are brought to mean 0 and standard deviation 1."""
    normalize_obs: bool = True
    """Normalise observations by running mean and standard deviation, clipped to ± 10."""
    normalize_reward: bool = True
    """Divide rewards by the running standard deviation of the discounted return, clipped to ± 10."""
    env_block: int | None = None
    """Environments per shuffling block: each block fills its share of each minibatch. None: all N in one."""
    grad_shards: int | None = None
    """G, parts of a minibatch whose gradients are computed apart. None: one per 256 steps."""
    tile_rows: int | None = None
    """B, rows of an inference batch; environment n is always row n mod B. None: 8 to 32, by N."""

    # --- where it runs
    workers: int | None = None
    """W, rollout processes. 0: none, the learner samples by itself. None: one per core, at most N."""
    learning: Literal["auto", "central", "sharded"] = "auto"
    """Who computes gradients: the learner, or it and the workers. auto: sharded if W and G are 2 or more."""
    device: str = "cpu"
    """Device of the learner's update: cpu or cuda."""
    learner_threads: int = 1
    """Threads of the learner's gradient (central learning only). Other than 1: another run, exact for itself."""
    run_dir: str | None = None
    """Where everything of this run is written. None: runs/<env>-<seed>-<time>."""
    stop_at_iteration: int | None = None
    """Stop after this iteration; annealing still aims at its own horizon."""
    worker_timeout: float = 60.0
    """Seconds without a step or an answer after which a worker counts as stalled."""
    max_restarts: int = 3
    """Times that each worker is replaced within an hour when it fails; then the run ends."""
    checkpoint_every: int | None = None
    """Iterations between checkpoints. None: by --checkpoint-minutes alone."""
    checkpoint_minutes: float = 10.0
    """Minutes between checkpoints; one is also written at the end and when the run is told to stop."""
    quiet: bool = False
    """Print nothing but errors."""

    def __post_init__(self) -> None:
        check(self)

    # --- what None stands for: properties, so that `dataclasses.replace` never freezes a default into a choice
    @property
    def env_id(self) -> str:
        return DEFAULT_ENV if self.env is None else self.env

    @property
    def hidden_indices(self) -> tuple[int, ...]:
        """Observation indices that the policy never sees."""
        if self.hide_obs is None:
            return DEFAULT_HIDE_OBS if self.env is None else ()
        return self.hide_obs

    @property
    def anneal_horizon(self) -> int:
        """Environment steps over which annealed numbers fall to 0."""
        return self.total_steps if self.anneal_steps is None else self.anneal_steps

    # --- derived sizes

    @property
    def recurrent(self) -> bool:
        return self.core != "none"

    @property
    def row_steps(self) -> int:
        """Longest row of the update, in steps: L, or 1 where nothing is carried from step to step."""
        return self.seq_len if self.recurrent else 1

    @property
    def batch_steps(self) -> int:
        """Environment steps per iteration, N·T."""
        return self.num_envs * self.rollout_steps

    @property
    def iterations(self) -> int:
        """Iterations of the whole run: total_steps rounded up."""
        return -(-self.total_steps // self.batch_steps)

    @property
    def last_iteration(self) -> int:
        """Iterations after which this run ends, the earlier of both limits."""
        return min(self.iterations, self.stop_at_iteration or self.iterations)

    @property
    def state_slots(self) -> int:
        """C, most rows of one column that start from a stored state: t = 0, and one after each full row."""
        return -(-self.rollout_steps // self.row_steps)

    @property
    def shards(self) -> int:
        """G, a function of the configuration alone, never of W."""
        if self.grad_shards is not None:
            return self.grad_shards
        by_size = self.batch_steps // self.minibatches // SHARD_STEPS
        by_rows = self.least_rows // self.minibatches
        return max(1, min(by_size, by_rows, MAX_SHARDS))

    @property
    def least_rows(self) -> int:
        """Rows of a rollout without a single reset; each reset adds some."""
        return self.num_envs * self.state_slots

    @property
    def tile(self) -> int:
        """B, a function of the configuration alone. Larger with N, so that few calls serve many environments."""
        if self.tile_rows is not None:
            return self.tile_rows
        rows = MIN_TILE
        while rows < MAX_TILE and rows * 2 <= self.num_envs // 4:
            rows *= 2
        return rows

    @property
    def block(self) -> int:
        return self.env_block or self.num_envs

    @property
    def num_workers(self) -> int:
        """W, resolved."""
        if self.workers is not None:
            return self.workers
        return min(usable_cores(), self.num_envs)

    @property
    def sharded(self) -> bool:
        """Whether workers compute gradients; bit-neutral, so it may follow the worker count."""
        if self.learning == "auto":
            plain = self.device == "cpu" and self.learner_threads == 1
            return plain and self.num_workers >= 2 and self.shards >= 2
        return self.learning == "sharded"

    def to_json(self) -> dict[str, Any]:
        """Every field, with what decides the weights spelled out instead of None."""
        resolved = {"env": self.env_id, "hide_obs": self.hidden_indices, "anneal_steps": self.anneal_horizon}
        return dataclasses.asdict(self) | resolved


def usable_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def from_json(fields: Mapping[str, Any]) -> TrainConfig:
    """The inverse of `TrainConfig.to_json` after a round trip through JSON.

    Raises ConfigError for fields that this version does not know.
    """
    known = {f.name for f in dataclasses.fields(TrainConfig)}
    unknown = sorted(set(fields) - known)
    if unknown:
        raise ConfigError(f"configuration: unknown fields {', '.join(unknown)}; this version cannot read it")
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
    return TrainConfig(**values)


def load_config(run_dir: Path) -> TrainConfig:
    """The configuration that a run directory was written with. Raises ConfigError if there is none."""
    path = run_dir / "config.json"
    if not path.is_file():
        raise ConfigError(f"{path} does not exist; name the directory of a run (it holds config.json)")
    try:
        return from_json(json.loads(path.read_text())["config"])
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is damaged ({error}); restore it or start a new run") from error


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


def check(config: TrainConfig) -> None:
    """Raises ConfigError, one sentence with the numbers in it, for what no run could be made of."""
    c = config
    for name in ("num_envs", "total_steps", "hidden_size", "num_layers", "rollout_steps", "seq_len", "epochs",
                 "minibatches", "learner_threads"):  # fmt: skip
        value = getattr(c, name)
        _require(value >= 1, f"{_flag(name)} is {value}; it must be at least 1")
    _require(c.max_restarts >= 0, f"--max-restarts is {c.max_restarts}; it must be 0 or more")
    for name in ("anneal_steps", "stop_at_iteration", "checkpoint_every", "env_block", "grad_shards", "tile_rows"):
        value = getattr(c, name)
        _require(value is None or value >= 1, f"{_flag(name)} is {value}; it must be at least 1")
    for name in ("gamma", "gae_lambda"):
        value = getattr(c, name)
        _require(0 <= value <= 1, f"{_flag(name)} is {value}; it must lie in 0 … 1")
    for name in ("learning_rate", "clip", "max_grad_norm", "adam_eps", "worker_timeout", "checkpoint_minutes"):
        value = getattr(c, name)
        _require(0 < value < float("inf"), f"{_flag(name)} is {value}; it must be positive and finite")
    for name in ("entropy_coef", "value_coef"):
        value = getattr(c, name)
        _require(0 <= value < float("inf"), f"{_flag(name)} is {value}; it must be finite and not negative")
    _require(abs(c.log_std_init) <= 20, f"--log-std-init is {c.log_std_init}; it must lie in -20 … 20")
    _require(c.target_kl is None or c.target_kl > 0, f"--target-kl is {c.target_kl}; it must be positive")
    _require(0 <= c.seed < 2**63, f"--seed is {c.seed}; it must lie in 0 … 2^63 - 1")
    sizes = c.encoder_sizes
    _require(all(size >= 1 for size in sizes), f"--encoder-sizes is {sizes}; each must be at least 1")
    _check_processes(c)
    _check_minibatches(c)


def _check_processes(c: TrainConfig) -> None:
    _require(c.workers is None or c.workers >= 0, f"--workers is {c.workers}; it must be 0 or more")
    _require(
        c.num_workers <= c.num_envs,
        f"--workers is {c.num_workers} but --num-envs is {c.num_envs}; "
        "each worker needs an environment: lower --workers or raise --num-envs",
    )
    _require(c.device == "cpu" or c.device.startswith("cuda"), f"--device is {c.device}; use cpu or cuda")
    if c.learning == "sharded":
        _require(c.num_workers >= 1, f"--learning sharded needs workers, but --workers is {c.num_workers}; use central")
        _require(
            c.device == "cpu" and c.learner_threads == 1,
            "--learning sharded computes gradients in one-thread CPU workers; "
            "with --device cuda or --learner-threads above 1 use --learning central",
        )


def _check_minibatches(c: TrainConfig) -> None:
    _require(
        c.num_envs % c.block == 0,
        f"--num-envs {c.num_envs} is not a multiple of --env-block {c.block}; choose a block that divides it",
    )
    rows_of_block = c.block * c.state_slots
    _require(
        c.minibatches <= rows_of_block,
        f"--minibatches is {c.minibatches} but {c.block} environments × {c.rollout_steps} steps make at least "
        f"{rows_of_block} rows of up to {c.row_steps} steps; lower --minibatches, or raise --num-envs or "
        "--rollout-steps",
    )
    _require(
        c.minibatches * c.shards <= c.least_rows,
        f"--minibatches {c.minibatches} × --grad-shards {c.shards} need as many rows, but a rollout may have only "
        f"{c.least_rows}; lower one of them",
    )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
