"""The configuration of a run. It contains every number that a run depends on, and it is checked before a run starts.

Names of axes, used in the whole package: T steps per rollout, N environments, W workers, L sequence length, K epochs,
M minibatches, G gradient shards, R ranks, H hidden units, D observation size, A action size. All sizes except R are
those of one rank.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import math
import numbers
import os
import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from shmppo.config.checks import flag, integer, require, shown
from shmppo.config.extensions import ExtensionOptions, added
from shmppo.config.hints import field_hint
from shmppo.config.info_keys import InfoKey, parse_info_keys
from shmppo.config.option import check_bounds, fields_with, traits_of
from shmppo.config.options import NetworkOptions, ObjectiveOptions, OptimizerOptions, TaskOptions, UpdateOptions
from shmppo.config.removed import without_removed
from shmppo.config.run_options import EvaluationOptions, ProcessOptions, ReportOptions
from shmppo.errors import ConfigError, printable
from shmppo.utils.files import read_object, refuse_links, user_path
from shmppo.utils.machine import usable_cores
from shmppo.utils.partition import partition
from shmppo.utils.portable import pin_like

DEFAULT_ENV = "CartPole-v1"
DEFAULT_HIDE_OBS = (1, 3)  # the velocities, so that the default job needs memory
SHARD_STEPS = 256  # larger minibatches have one gradient shard per so many steps
SMALL_SHARD_STEPS, SMALL_SHARDS = 64, 16  # smaller ones have more, so that 16 cores have work, see `shards`
MAX_SHARDS = 64  # limits the memory of the shard gradients [G, P] and the time of their serial sum
BATCH_ROWS, MAX_BATCH_ROWS = 8, 64  # a worker with fewer environments computes rows that it does not need

EXTENSIONS: tuple[Any, ...] = tuple(module.OPTIONS for module in added("options") if hasattr(module, "OPTIONS"))
"""The option classes of extensions."""
if typing.TYPE_CHECKING:

    class ExtensionFields(ExtensionOptions):
        """Type checkers do not know these fields."""
else:
    ExtensionFields = type("ExtensionFields", (*EXTENSIONS, ExtensionOptions), {})


@dataclass(frozen=True)
class TrainConfig(
    ExtensionFields,
    ReportOptions,
    EvaluationOptions,
    ProcessOptions,
    OptimizerOptions,
    ObjectiveOptions,
    UpdateOptions,
    NetworkOptions,
    TaskOptions,
):
    """The configuration of one training run.

    The run's weights depend only on the configuration, on the installed versions of the libraries, and, where torch
    computes without --portable, on the type of the processor. The fields are those of the base classes, from the last
    base class to the first. Derived sizes are computed once per object.
    """

    if typing.TYPE_CHECKING:

        def __init__(self, **fields: Any) -> None: ...
    else:

        def __new__(cls, *_values, **fields):
            """Refuse unknown fields with a hint, before `__init__` would raise a TypeError."""
            check_names(fields)
            return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, value in typed_fields(self.fields()).items():
            object.__setattr__(self, name, value)
        _check(self)

    def fields(self) -> dict[str, Any]:
        """Return every field by name, without derived values."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    # A field keeps None, so that a copy by `dataclasses.replace` computes its default again. The properties below
    # return the default instead of None.

    @property
    def env_id(self) -> str:
        """The environment's name."""
        return DEFAULT_ENV if self.env is None else self.env

    @property
    def hidden_indices(self) -> tuple[int, ...]:
        """Observation indices that the policy does not see."""
        if self.hide_obs is None:
            return DEFAULT_HIDE_OBS if self.env is None else ()
        return self.hide_obs

    @cached_property
    def anneal_horizon(self) -> int:
        """Environment steps after which annealed values reach 0."""
        return self.total_steps if self.anneal_steps is None else self.anneal_steps

    @cached_property
    def learning_horizon(self) -> float:
        """Environment steps after which the learning rate is 0; inf if it stays positive."""
        return self.anneal_horizon if self.lr_schedule == "linear" else math.inf

    @property
    def computed_by(self) -> str:
        """What computes on the CPU: "torch" also if it computes only encoders or an extension, otherwise --kernel."""
        encoders = self.convolutions or self.has_own_encoder
        return "torch" if self.uses_torch() or encoders or self.device == "cpu:0" else self.kernel

    @cached_property
    def recurrent(self) -> bool:
        """Whether the policy has a recurrent state."""
        return self.core != "none"

    @cached_property
    def sequence_steps(self) -> int:
        """Maximum length of a sequence in the update, in steps: L, or 1 for a policy without recurrent state."""
        return self.seq_len if self.recurrent else 1

    @cached_property
    def has_idle_steps(self) -> bool:
        """Whether columns may be idle at a step, which the policy then does not learn from (`VectorEnv.active`)."""
        return self.idle_columns() > 0

    @cached_property
    def columns_per_env(self) -> int:
        """Columns per environment."""
        return max(1, self.idle_columns())

    @cached_property
    def rows(self) -> int:
        """N, columns of a rollout, of all environments."""
        return self.num_envs * self.columns_per_env

    @cached_property
    def rank_steps(self) -> int:
        """Environment steps of one rank per iteration."""
        return self.num_envs * self.rollout_steps

    @cached_property
    def batch_steps(self) -> int:
        """Environment steps of all ranks per iteration."""
        return self.ranks * self.rank_steps

    @cached_property
    def first_env(self) -> int:
        """Global index of this rank's first environment. Random number streams are keyed by global indices."""
        return self.rank * self.num_envs

    @cached_property
    def first_row(self) -> int:
        """Global index of this rank's first column."""
        return self.rank * self.rows

    @cached_property
    def iterations(self) -> int:
        """Iterations of the whole run: total_steps divided by batch_steps, rounded up."""
        return -(-self.total_steps // self.batch_steps)

    @cached_property
    def last_iteration(self) -> int:
        """Number of iterations after which this run ends: `iterations` or stop_at_iteration, whichever is smaller."""
        return min(self.iterations, self.stop_at_iteration or self.iterations)

    @cached_property
    def own_eval_episodes(self) -> range:
        """The episodes of an evaluation that this rank plays."""
        return partition(0 if self.eval_every is None else self.eval_episodes, self.ranks, self.rank)

    @cached_property
    def best_metric(self) -> str:
        """The metric of --best-by."""
        # Recorded episodes have other returns than the policy.
        average = "return_mean_100" if self.recording() is None else "eval/return"
        return average if self.best_by == "return" else self.best_by

    @cached_property
    def reported_info(self) -> list[InfoKey]:
        """The keys of `info` that the run reports."""
        return parse_info_keys(self.info_keys) + self.added_info()

    @cached_property
    def state_slots(self) -> int:
        """C, stored recurrent states per environment: one at t = 0 and at most one after each full sequence."""
        return -(-self.rollout_steps // self.sequence_steps)

    @cached_property
    def shards(self) -> int:
        """G, or its default if None. It does not depend on the number of workers.

        Small shards slow torch down, except in convolutions. A GPU computes whole minibatches.
        """
        if self.device != "cpu":
            return 1
        if self.grad_shards is not None:
            return self.grad_shards
        steps = self.rows * self.rollout_steps // self.minibatches
        by_size = steps // SHARD_STEPS
        if self.kernel != "torch" or self.convolutions:
            by_size = max(by_size, min(steps // SMALL_SHARD_STEPS, SMALL_SHARDS))
        by_sequences = self.min_sequences // self.minibatches
        return max(1, min(by_size, by_sequences, MAX_SHARDS))

    @cached_property
    def min_steps(self) -> int:
        """Minimum steps per environment in a rollout: T, or fewer if rollouts may be ended early."""
        return self.shortest_rollout(self.rollout_steps)

    @cached_property
    def min_sequences(self) -> int:
        """Minimum number of sequences in a rollout of all N environments. Each reset can add one."""
        steps = self.acting_steps(self.min_steps)
        return self.num_envs * -(-steps // self.sequence_steps)

    @cached_property
    def inference_rows(self) -> int:
        """B, rows of an inference batch. It does not depend on the number of workers."""
        quarter = -(-self.rows // (4 * BATCH_ROWS)) * BATCH_ROWS  # so that four workers need one batch each
        return min(quarter, MAX_BATCH_ROWS)

    @cached_property
    def num_workers(self) -> int:
        """W, or its default if None."""
        if self.workers is not None:
            return self.workers
        return min(usable_cores(), self.num_envs)

    @cached_property
    def columns_by_worker(self) -> list[range]:
        """The columns that each worker steps, or all of them without workers: those of whole environments."""
        parts = max(self.num_workers, 1)
        envs = [partition(self.num_envs, parts, w) for w in range(parts)]
        return [range(part.start * self.columns_per_env, part.stop * self.columns_per_env) for part in envs]

    @cached_property
    def workers_compute_gradients(self) -> bool:
        """Whether workers compute gradients. It may depend on W, because it does not change the weights."""
        if self.learning == "auto":
            return self.device == "cpu" and self.num_workers >= 2 and self.shards >= 2
        return self.learning == "sharded"

    def with_env_kwargs(self, env_kwargs: Mapping[str, Any]) -> TrainConfig:
        """Return a copy whose environment has further arguments, or others."""
        return dataclasses.replace(self, env_kwargs={**self.env_kwargs, **env_kwargs})

    def env_arguments(self, render_mode: str | None = None) -> dict[str, Any]:
        """Return the arguments of the environment's constructor: a deep copy, because the constructor may change them.

        render_mode: Gymnasium's render mode. None: the constructor does not get one.
        """
        return copy.deepcopy(dict(self.env_kwargs)) | ({} if render_mode is None else {"render_mode": render_mode})

    def with_absolute_paths(self) -> TrainConfig:
        """Return a copy that names files and directories by absolute paths."""
        absolute: dict[str, Any] = {
            field.name: str(user_path(path, flag(field.name)))
            for field in dataclasses.fields(self)
            if (traits := traits_of(field)).path and (path := getattr(self, field.name)) is not None
            if not path.startswith(traits.no_path)
        }
        return dataclasses.replace(self, **absolute)

    def to_json(self) -> dict[str, Any]:
        """Return every field as JSON values, from which `TrainConfig(**fields)` makes the configuration again.

        Defaults replace None in env, hide_obs, and anneal_steps.
        """
        resolved = {"env": self.env_id, "hide_obs": self.hidden_indices, "anneal_steps": self.anneal_horizon}
        return dataclasses.asdict(self) | resolved


ONLY_FOR_LEARNING: dict[str, Any] = dict.fromkeys(fields_with(TrainConfig, only_for_learning=True))
"""The options that a trained policy does not need, as it acts with them: None."""


def typed_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Convert fields to the types of `TrainConfig`, for example those from a file. They need not be all fields.

    Raises:
        ConfigError: if a field does not exist in this version, or if a value has the wrong type.
    """
    check_names(fields)
    defaults = default_fields()  # most fields have their default, which needs no check
    changed = {name: value for name, value in fields.items() if value is not defaults[name]}
    for name, value in changed.items():  # help texts and plots show them
        for text in value if isinstance(value, (list, tuple)) else (value,):
            clean = not isinstance(text, str) or printable(text, keep="\n\t") == text
            require(clean, f"{flag(name)} is {shown(text)}; remove its control characters")
    return {**fields, **{name: _typed(name, field_types()[name], value) for name, value in changed.items()}}


@functools.cache
def default_fields() -> dict[str, Any]:
    """Return the default of every field of `TrainConfig`."""
    return {field.name: field.default for field in dataclasses.fields(TrainConfig)}


@functools.cache
def field_types() -> dict[str, Any]:
    """Return the type of every field of `TrainConfig`."""
    return typing.get_type_hints(TrainConfig)


def check_names(names: Collection[str]) -> None:
    """Raise ConfigError if a name is not a field of `TrainConfig`."""
    known = field_types()
    for name in names:
        hint = "" if name in known else field_hint(name, known)
        end = "" if hint.startswith(";") else "; see python -m shmppo.train --help-all for all fields"
        require(name in known, f"there is no field {name}{hint}{end}")


def _typed(name: str, kind: Any, value: Any) -> Any:
    """Convert a value to its field's type: lists to tuples, numbers to Python's own, paths to text, "None" to None."""
    if isinstance(value, list):
        value = tuple(value)
    elif isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str) and value == "None" and type(None) in typing.get_args(kind):
        return None  # as on the command line; YAML has null
    value = tuple(map(_plain, value)) if isinstance(value, tuple) else _plain(value)
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if float in (kind, *typing.get_args(kind)) and (number or isinstance(value, str)):
        with contextlib.suppress(ValueError):  # YAML parses 1e-3 as text
            return float(value)
    if int in (kind, *typing.get_args(kind)) and isinstance(value, (float, str)):
        with contextlib.suppress(ValueError):
            value = integer(str(value))
    if _fits(kind, value):
        return value
    wanted = str(kind) if typing.get_origin(kind) else kind.__name__
    wanted = wanted.replace("typing.", "").replace("collections.abc.", "").replace("NoneType", "None")
    wanted = wanted.replace("tuple[", "list[").replace(", ...", "")  # YAML and JSON have no tuples
    is_name = callable(value) and str in (kind, *typing.get_args(kind))
    remedy = "; name it as 'module:name', or '__main__:name' for one of this script" if is_name else ""
    raise ConfigError(f"{flag(name)} is {shown(value)}; it must be {wanted}{remedy}")


def _plain(value: Any) -> Any:
    """Convert an integer to Python's own type."""
    return int(value) if isinstance(value, numbers.Integral) and not isinstance(value, bool) else value


def _fits(kind: Any, value: Any) -> bool:
    """Check whether a value has a field's type."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(part, value) for part in parts)
    if origin is typing.Literal:
        return isinstance(value, str) and value in parts
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(parts[0], element) for element in value)
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, origin or kind)


def _check(config: TrainConfig) -> None:
    """Check all options and their combinations.

    Raises:
        ConfigError: if the configuration cannot run. The message names flag, value, and remedy in one sentence.
    """
    check_bounds(config)
    for kind in reversed(type(config).__mro__):
        if check := vars(kind).get("check"):
            check(config)
    _check_combinations(config)
    _check_minibatches(config)


def _check_combinations(c: TrainConfig) -> None:
    require(
        not c.critic_warmup_steps or c.separate_critic == "all",
        "--critic-warmup-steps needs --separate-critic all, because otherwise the policy would change, too; add it, or "
        "leave out --critic-warmup-steps",
    )
    require(
        c.num_workers <= c.num_envs,
        f"--workers is {c.num_workers} but --num-envs is {c.num_envs}; "
        "each worker needs an environment: lower --workers or raise --num-envs",
    )
    require(
        not c.portable or c.device == "cpu",
        f"--portable needs --device cpu, but it is {c.device}; leave out --portable",
    )
    require(
        c.device == "cpu" or c.grad_shards is None,
        f"--grad-shards divides work among cores, but --device is {c.device}; leave it out, or use --device cpu",
    )
    if c.learning == "sharded":
        require(c.num_workers >= 1, f"--learning sharded needs workers, but --workers is {c.num_workers}; use central")
        require(
            c.device == "cpu",
            f"--learning sharded needs --device cpu, but it is {c.device}; use --learning central",
        )


def _check_minibatches(c: TrainConfig) -> None:
    require(
        c.minibatches <= c.min_sequences,
        f"--minibatches is {c.minibatches} but {c.num_envs} environments × {c.min_steps} steps may give only "
        f"{c.min_sequences} sequences of up to {c.sequence_steps} steps; lower --minibatches, or raise --num-envs or "
        "--rollout-steps",
    )
    require(
        c.minibatches * c.shards <= c.min_sequences,
        f"--minibatches {c.minibatches} × --grad-shards {c.shards} needs {c.minibatches * c.shards} sequences, but a "
        f"rollout may give only {c.min_sequences}; lower one of them",
    )


def stored_config(fields: Mapping[str, Any]) -> TrainConfig:
    """Make a configuration from the fields in a file of a run, also of an earlier version.

    Raises:
        ConfigError: if a field is invalid, or is not supported any longer.
    """
    return TrainConfig(**without_removed(fields))


def load_config(run_dir: Path) -> TrainConfig:
    """Load the configuration from the config.json of a run directory.

    Raises:
        ConfigError: if the file does not exist or is damaged.
    """
    refuse_links(run_dir)
    path = run_dir / "config.json"
    if not path.is_file():
        raise ConfigError(f"{path} does not exist; name the directory of a run, which contains config.json")
    content = read_object(path, "restore it or start a new run")
    try:
        return stored_config(content["config"])
    except (ConfigError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: {error}") from error


def compute_like(run_dir: Path) -> None:
    """Let NumPy and torch compute as they did in a run, if they are not imported yet."""
    with contextlib.suppress(ConfigError):  # a directory that holds no run is refused later
        portable = load_config(run_dir).portable
        pin_like(read_object(run_dir / "config.json", "").get("processor", ""), portable=portable)
