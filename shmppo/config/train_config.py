"""The configuration of a run: every number that a run depends on, checked before anything starts.

Axes, used everywhere: T steps per rollout, N environments, W workers, L sequence length,
K epochs, M minibatches, G gradient shards, R ranks, H hidden size, D observation size, A action size.
All but R are those of one rank.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shmppo.config.options import (
    NetworkOptions,
    ObjectiveOptions,
    OptimizerOptions,
    ProcessOptions,
    RankOptions,
    ReportOptions,
    TaskOptions,
    UpdateOptions,
    flag,
    nearest,
    require,
)
from shmppo.errors import ConfigError
from shmppo.utils.machine import usable_cores

__all__ = ["ConfigError", "TrainConfig", "check", "from_json", "load_config", "usable_cores"]

DEFAULT_ENV = "CartPole-v1"
DEFAULT_HIDE_OBS = (1, 3)  # the velocities: what is left needs memory
SHARD_STEPS = 256  # a gradient shard of fewer steps is mostly fixed cost
MAX_SHARDS = 64  # bounds the gradient slab [G, P] and the serial sum over it
TILE = 8  # rows: a worker with fewer environments acts for rows that are not its own


@dataclass(frozen=True)
class TrainConfig(
    ReportOptions,
    RankOptions,
    ProcessOptions,
    OptimizerOptions,
    ObjectiveOptions,
    UpdateOptions,
    NetworkOptions,
    TaskOptions,
):
    """One training run. The run's weights are a pure function of this and the build of its libraries."""

    # The fields are those of the bases, the last base's first.

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

    @property
    def learning_horizon(self) -> float:
        """Environment steps after which a step size or clip range of 0 lets nothing more be learned, or infinity."""
        return self.anneal_horizon if self.lr_schedule == "linear" or self.anneal_clip else math.inf

    # --- derived sizes

    @property
    def recurrent(self) -> bool:
        return self.core != "none"

    @property
    def sequence_steps(self) -> int:
        """Longest row of the update, in steps: L, or 1 where nothing is carried from step to step."""
        return self.seq_len if self.recurrent else 1

    @property
    def rank_steps(self) -> int:
        """Environment steps of one rank per iteration, N·T."""
        return self.num_envs * self.rollout_steps

    @property
    def batch_steps(self) -> int:
        """Environment steps of all ranks per iteration, R·N·T."""
        return self.ranks * self.rank_steps

    @property
    def first_env(self) -> int:
        """Global index of this rank's environment 0: streams of random numbers are keyed by global indices."""
        return self.rank * self.num_envs

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
        return -(-self.rollout_steps // self.sequence_steps)

    @property
    def shards(self) -> int:
        """G, a function of the configuration alone, never of W."""
        if self.grad_shards is not None:
            return self.grad_shards
        by_size = self.rank_steps // self.minibatches // SHARD_STEPS
        by_rows = self.min_sequences // self.minibatches
        return max(1, min(by_size, by_rows, MAX_SHARDS))

    @property
    def min_steps(self) -> int:
        """Steps that every environment takes in a rollout: T, or fewer where rollouts may be ended early."""
        if self.preempt_fraction is None:
            return self.rollout_steps
        return max(1, math.ceil(self.preempt_min_fraction * self.rollout_steps))

    @property
    def min_env_sequences(self) -> int:
        """Rows of one environment in a rollout without a single reset; each reset adds some."""
        return -(-self.min_steps // self.sequence_steps)

    @property
    def min_sequences(self) -> int:
        """Rows of a rollout without a single reset."""
        return self.num_envs * self.min_env_sequences

    @property
    def inference_rows(self) -> int:
        """B, a function of the configuration alone."""
        return self.tile_rows or TILE

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


def from_json(fields: Mapping[str, Any]) -> TrainConfig:
    """The inverse of `TrainConfig.to_json` after a round trip through JSON.

    Raises ConfigError for what `typed_fields` refuses, and for a configuration that cannot run.
    """
    return TrainConfig(**typed_fields(fields))


def typed_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a file by name, as the types that they have here; they need not make a configuration by themselves.

    Raises ConfigError for fields that this version does not know, and for values of another type than the field's.
    """
    kinds = typing.get_type_hints(TrainConfig)
    for name in fields:
        require(
            name in kinds, f"there is no field {name}{nearest(name, kinds)}; the flags of train --help are the fields"
        )
    return {name: _typed(name, kinds[name], value) for name, value in fields.items()}


def _typed(name: str, kind: Any, value: Any) -> Any:
    """A value from a file as its field's type: lists become tuples, and numbers floats where the field is one."""
    if isinstance(value, list):
        value = tuple(value)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if float in (kind, *typing.get_args(kind)) and (number or isinstance(value, str)):
        with contextlib.suppress(ValueError):  # 1e-3 is text to YAML
            return float(value)
    wanted = str(kind) if typing.get_origin(kind) else kind.__name__
    wanted = wanted.replace("typing.", "").replace("NoneType", "None")
    require(_fits(kind, value), f"{flag(name)} is {value!r}; it must be {wanted}")
    return value


def _fits(kind: Any, value: Any) -> bool:
    """Whether a value is of a field's type."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(part, value) for part in parts)
    if origin is typing.Literal:
        return value in parts
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(parts[0], element) for element in value)
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, origin or kind)


def load_config(run_dir: Path) -> TrainConfig:
    """The configuration that a run directory was written with. Raises ConfigError if there is none."""
    path = run_dir / "config.json"
    if not path.is_file():
        raise ConfigError(f"{path} does not exist; name the directory of a run (it holds config.json)")
    try:
        return from_json(json.loads(path.read_text())["config"])
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is damaged ({error}); restore it or start a new run") from error


def check(config: TrainConfig) -> None:
    """Raises ConfigError, one sentence with the numbers in it, for what no run could be made of."""
    config.check_task()
    config.check_network()
    config.check_update()
    config.check_objective()
    config.check_optimizer()
    config.check_processes()
    config.check_ranks()
    config.check_report()
    require(
        config.recurrent or not (config.burn_in or config.refresh_states),
        "--burn-in and --refresh-states are for stored states, and --core none has none; leave them out",
    )
    require(
        config.env_backend == "gymnasium" or not (config.action_masks or config.step_times),
        "--action-masks and --step-times need --env-backend gymnasium; leave them out",
    )
    _check_workers(config)
    _check_minibatches(config)
    require(
        config.preempt_fraction is None or not (config.step_times or config.refresh_states),
        "--step-times and --refresh-states need whole rollouts, and --preempt-fraction ends some early; leave it out",
    )
    require(
        config.ranks == 1 or config.keep_checkpoints >= 2,
        f"--keep-checkpoints is {config.keep_checkpoints}, but {config.ranks} ranks may end between their writing of "
        "the same checkpoint; keep 2 or more",
    )


def _check_workers(c: TrainConfig) -> None:
    require(
        c.num_workers <= c.num_envs,
        f"--workers is {c.num_workers} but --num-envs is {c.num_envs}; "
        "each worker needs an environment: lower --workers or raise --num-envs",
    )
    if c.learning == "sharded":
        require(c.num_workers >= 1, f"--learning sharded needs workers, but --workers is {c.num_workers}; use central")
        require(
            c.device == "cpu" and c.learner_threads == 1,
            "--learning sharded computes gradients in one-thread CPU workers; "
            "with --device cuda or --learner-threads above 1 use --learning central",
        )


def _check_minibatches(c: TrainConfig) -> None:
    require(
        c.num_envs % c.block == 0,
        f"--num-envs {c.num_envs} is not a multiple of --env-block {c.block}; choose a block that divides it",
    )
    rows_of_block = c.block * c.min_env_sequences
    require(
        c.minibatches <= rows_of_block,
        f"--minibatches is {c.minibatches} but {c.block} environments × {c.min_steps} steps make at least "
        f"{rows_of_block} rows of up to {c.sequence_steps} steps; lower --minibatches, or raise --num-envs or "
        "--rollout-steps",
    )
    require(
        c.minibatches * c.shards <= c.min_sequences,
        f"--minibatches {c.minibatches} × --grad-shards {c.shards} need as many rows, but a rollout may have only "
        f"{c.min_sequences}; lower one of them",
    )
