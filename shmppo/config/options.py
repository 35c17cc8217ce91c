"""The options that define what is trained: task, networks, rollout, objective, and optimizer.

The docstring after each field is also the help text of its flag. `run_options` defines where and how a run executes.
"""

# ruff: noqa: RUF009 (option returns a dataclasses.field, which is what a dataclass needs)

from __future__ import annotations

import ast
import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.constructors import PrimitiveConstructorSpec

from shmppo.config.checks import flag_with_value, require, store_as_json
from shmppo.config.extensions import values_type
from shmppo.config.info_keys import parse_info_keys
from shmppo.config.option import (
    AT_LEAST_1,
    COEFFICIENT,
    FRACTION,
    LAYERS,
    LOG_STD,
    MAX_UNITS,
    POSITIVE_FLOAT32,
    POSITIVE_NUMBER,
    SEED,
    UNITS,
    option,
)


def _keyword_arguments(pairs: list[str]) -> Mapping[str, Any]:
    """Parse the texts `key=value` into a mapping. A value is JSON, a literal of Python such as False, or plain text."""
    arguments: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        correct = bool(equals) and key.isidentifier()
        require(correct, f"{pair} is not of the form KEY=VALUE; write it like frame_skip=4")
        arguments[key] = text
        for parse in (ast.literal_eval, json.loads):
            with contextlib.suppress(ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
                value = parse(text)
                if value is None or isinstance(value, (bool, int, float, str, list, dict)):
                    arguments[key] = value
    return arguments


KeywordArguments = Annotated[
    Mapping[str, Any],
    PrimitiveConstructorSpec(
        nargs="*",
        metavar="KEY=VALUE …",
        instance_from_str=_keyword_arguments,
        is_instance=lambda value: isinstance(value, Mapping),
        str_from_instance=lambda mapping: [f"{key}={json.dumps(value)}" for key, value in mapping.items()],
    ),
]
"""A mapping that the command line reads as key=value pairs. Each value is JSON, a literal of Python, or plain text."""

if TYPE_CHECKING:  # type checkers do not know the values of extensions
    Objective = str
    EnvBackend = str
else:
    Objective = values_type("objective", "clip", "penalty")
    EnvBackend = values_type("env_backend", "auto", "gymnasium")
ENCODERS = ("auto", "mlp", "nature", "a3c", "impala")
"""Values of --encoder, apart from those that name a module of the user."""
ATTENTION_HEADS = 4
"""Number of attention heads of --core gtrxl."""


@dataclass(frozen=True)
class TaskOptions:
    """The task to learn, and how long to train."""

    env: str | None = option(None, common=True, makes_env=True)
    """The environment: a Gymnasium id, `module:Id` to import the module first, or `module:factory` to call a function.
    None: CartPole-v1 with its velocities (indices 1 and 3) hidden, which is the default job."""
    env_kwargs: KeywordArguments = option({}, common=True, makes_env=True)
    """Arguments of the environment's constructor, for example frame_skip=4. They are added to those of --preset,
    --config, or --init-from; if --env names another environment, they replace them. Without values, the flag removes
    all."""
    wrappers: tuple[str, ...] = option((), one_column=True, gymnasium=True, makes_env=True)
    """Wrappers around the environment, innermost first: names in gymnasium.wrappers or `module:Wrapper`. Add arguments
    in parentheses, for example "TimeLimit(max_episode_steps=200)"."""
    env_schedule: str | None = option(None, gymnasium=True, code=True, makes_env=True)
    """`module:function` of a curriculum. function(iteration), function(iteration, metrics), or function(iteration,
    metrics, options) returns the options of `reset` for all episodes that begin in that iteration
    (docs/guides/fine-tuning.md). None: no options."""
    env_backend: EnvBackend = option("auto", makes_env=True)
    """How the environments are stepped. gymnasium: one after the other. auto: the fastest way with the same results."""
    hide_obs: tuple[int, ...] | None = None
    """Observation indices to set to 0, so that the policy needs memory. None: no index, except without --env, where
    they are 1 and 3."""
    prev_action: bool = option(False, one_column=True, gymnasium=True)
    """Add the previous action to the observation, as the environment received it. It is zero at an episode's start."""
    prev_reward: bool = option(False, one_column=True, gymnasium=True)
    """Add the previous reward to the observation. It is zero at an episode's start."""
    skip_bad_episodes: bool = option(False, resumable=True, one_column=True, gymnasium=True)
    """If an environment raises or returns numbers that are not finite, end the episode at its last valid step, make the
    environment again, and continue. The metric failed_episodes counts these episodes."""
    info_keys: tuple[str, ...] = option((), common=True, changes_curve=False)
    """Numbers in `info` that become metrics, as KEY or KEY:HOW, where HOW says which of an episode's values counts:
    last (the default), sum, mean, or max. Slashes separate nested keys. `is_success` and `success` are always used."""
    num_envs: int = option(16, AT_LEAST_1, common=True)
    """N, number of environments."""
    seed: int = option(1, SEED, common=True, searchable=False, changes_curve=False)
    """Seed of all random numbers: initial weights, environments, actions, and minibatches."""
    total_steps: int = option(200_000, AT_LEAST_1, common=True, resumable=True, searchable=False)
    """Environment steps to train for, summed over all environments and rounded up to whole iterations."""

    def check(self) -> None:
        """Raise ConfigError if one of these options is invalid."""
        store_as_json(self, "env_kwargs")
        parse_info_keys(self.info_keys)


@dataclass(frozen=True)
class NetworkOptions:
    """The networks of the actor and the critic."""

    core: Literal["lstm", "gru", "lmu", "lru", "gtrxl", "none"] = option("lstm", common=True)
    """Recurrent core. lmu: a linear memory of the last --seq-len steps. lru: linear memories that decay and rotate.
    gtrxl: a gated Transformer-XL, which attends to the last --attention-window steps. none: a feed-forward policy."""
    hidden_size: int = option(64, AT_LEAST_1, UNITS, common=True)
    """H, units of each recurrent layer. Unused with --core none."""
    num_layers: int = option(1, AT_LEAST_1, LAYERS)
    """Number of recurrent layers. Unused with --core none."""
    attention_window: int = option(64, AT_LEAST_1)
    """K, number of earlier steps to which each layer of --core gtrxl attends."""
    encoder_sizes: tuple[int, ...] = (64,)
    """Units of the linear layers before the core. They read all parts of the observation together, except those that
    --encoder processes with convolutions or a module of your own."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Activation after each layer of --encoder-sizes."""
    encoder: str = option("auto", code=True)
    """Encoder of images. mlp: the layers of --encoder-sizes. nature, a3c, impala: convolutional networks, of which a3c
    is the smallest. auto: nature for images of at least 36 pixels per side, mlp for smaller ones. `module:factory`: an
    encoder of your own, also for other parts (docs/tutorials/your-network.md)."""
    network: str | None = option(None, code=True)
    """`module:factory` of a custom network that replaces encoders and core (docs/tutorials/your-network.md).
    Add --core none if it has no recurrent state. None: the network that the other options describe."""
    init_from: str | None = option(None, common=True, path=True)
    """Directory of a run, or a checkpoint file, whose weights and normalizers the new run starts from. On the command
    line, its options are the defaults of all flags, unless --config or --preset is given. Optimizer, counters, and
    random numbers start anew. None: random initial weights."""
    separate_critic: Literal["none", "core", "all"] = "none"
    """Layers that the critic has of its own. none: only its head. core: also its core. all: also its encoder."""
    actor_obs: tuple[str, ...] | None = None
    """Parts of a Dict observation that the actor sees, by key, such as `camera` or `arm/joints`. The trained policy
    needs only these. If the critic sees other parts, add --separate-critic all. None: all parts."""
    critic_obs: tuple[str, ...] | None = None
    """Parts of a Dict observation that the critic sees, as for --actor-obs. None: all parts."""
    distribution: Literal["gaussian", "beta"] = "gaussian"
    """Distribution of Box actions. gaussian: clipped to the bounds, or squashed by --squash-actions. beta: between the
    bounds, which each dimension must have (Chou et al. 2017); --log-std-init has no effect."""
    log_std_init: float = option(0.0, LOG_STD)
    """Initial log standard deviation of Box actions."""
    std: Literal["parameter", "state"] = "parameter"
    """Standard deviation of Box actions. parameter: the same in all states. state: an output of the policy head, whose
    logarithm is limited to -5 (or --log-std-min) … 2."""
    action_masks: bool = option(False, gymnasium=True, makes_env=True)
    """Choose only actions that info["action_mask"] allows, for Discrete and MultiDiscrete actions. The mask is an array
    of 0 and 1, or one array per dimension."""
    squash_actions: bool = False
    """Squash Box actions into their bounds with tanh instead of clipping them, in each dimension with two bounds."""
    log_std_min: float | None = option(None, branchable=True)
    """Minimum of the log standard deviation. With --std parameter, smaller values are raised to it after each optimizer
    step. None: no minimum, or -5 with --std state."""

    @property
    def has_own_encoder(self) -> bool:
        """Whether --encoder names a module of the user."""
        return ":" in self.encoder

    @property
    def own_module(self) -> str | None:
        """The flag that names a module of the user, with its value. None: there is none."""
        name = "network" if self.network is not None else "encoder" if self.has_own_encoder else None
        return name and flag_with_value(name, getattr(self, name))

    def check(self) -> None:
        """Raise ConfigError if one of these options is invalid."""
        minimum = self.log_std_min
        require(
            minimum is None or -20 <= minimum <= self.log_std_init,
            f"--log-std-min is {minimum}; it must lie in -20 … --log-std-init {self.log_std_init}",
        )
        require(
            self.core != "gtrxl" or self.hidden_size % ATTENTION_HEADS == 0,
            f"--hidden-size is {self.hidden_size}; --core gtrxl needs a multiple of {ATTENTION_HEADS}, its number of "
            "attention heads",
        )
        if self.distribution == "beta":
            for name, default in (("squash_actions", False), ("std", "parameter"), ("log_std_min", None)):
                value = getattr(self, name)
                changed = f"{flag_with_value(name, value)} changes a Gaussian distribution"
                require(value == default, f"{changed}, but --distribution is beta; leave one of them out")
        require(
            self.encoder in ENCODERS or self.has_own_encoder,
            f"--encoder {self.encoder} does not exist; use {', '.join(ENCODERS)}, or module:factory",
        )
        require(
            not self.has_own_encoder or self.network is None,
            f"--network replaces the encoders, so --encoder {self.encoder} has no effect; leave one of them out",
        )
        sizes = self.encoder_sizes
        require(
            all(1 <= size <= MAX_UNITS for size in sizes),
            f"--encoder-sizes is {sizes}; each must be at least 1 and at most {MAX_UNITS}",
        )
        require(
            self.separate_critic != "core" or (self.core != "none" and self.network is None),
            "--separate-critic core needs a recurrent core of --core; use none or all with --core none or --network",
        )


@dataclass(frozen=True)
class UpdateOptions:
    """The rollout, and how it is divided for the update."""

    rollout_steps: int = option(128, AT_LEAST_1, common=True)
    """T, steps per environment and iteration."""
    seq_len: int = option(32, AT_LEAST_1)
    """L, maximum length of a sequence for backpropagation through time, in steps."""
    epochs: int = option(4, AT_LEAST_1, branchable=True)
    """K, passes over each rollout."""
    minibatches: int = option(8, AT_LEAST_1, branchable=True)
    """M, minibatches per epoch. Each minibatch is one optimizer step."""
    gamma: float = option(0.99, FRACTION, common=True, branchable=True)
    """γ, discount factor per step."""
    gae_lambda: float = option(0.95, FRACTION, branchable=True)
    """λ of generalized advantage estimation (arXiv 1506.02438)."""
    truncation_is_termination: bool = option(False, branchable=True)
    """Do not bootstrap from the final observation of a truncated episode: for environments that report a natural end as
    a truncation."""
    advantage_norm: Literal["minibatch", "global", "none"] = option("minibatch", branchable=True)
    """Normalize advantages to mean 0 and standard deviation 1. minibatch: over each minibatch. global: over the
    rollouts of all ranks."""
    normalize_obs: bool = option(True, branchable=True)
    """Normalize vector observations by their running mean and standard deviation, and clip them to ± 10."""
    clip_reward: float | None = option(None, POSITIVE_NUMBER, branchable=True)
    """Clip each reward to ± this value for training, before normalization. Reported returns are not clipped. None: no
    clipping."""
    normalize_reward: bool = option(True, branchable=True)
    """Divide rewards by the running standard deviation of the discounted return, and clip them to ± 10."""
    grad_shards: int | None = option(None, AT_LEAST_1, branchable=True)
    """G, parts of a minibatch whose gradients are computed separately and then added. The weights depend on it.
    None: one part per 64 steps, up to 16 parts; above 4,096 steps, and where torch computes a network without layers of
    type Conv2d, one part per 256 steps. A GPU computes whole minibatches."""


@dataclass(frozen=True)
class ObjectiveOptions:
    """The objective that the update maximizes."""

    objective: Objective = option("clip", branchable=True)
    """clip: PPO-Clip. penalty: PPO-Penalty, which does not clip the ratio but subtracts β times the KL divergence
    (arXiv 1707.06347); β begins at 1, and is halved or doubled after each update to keep the KL near --desired-kl."""
    ratio: Literal["joint", "per-dimension"] = option("joint", branchable=True)
    """The ratio that is clipped. joint: one ratio of the whole action. per-dimension: one of each action dimension
    (DISC, arXiv 1905.02363)."""
    clip: float = option(0.2, POSITIVE_NUMBER, branchable=True)
    """ε of PPO-Clip: the ratio is clipped to 1 ± ε (arXiv 1707.06347)."""
    desired_kl: float = option(0.01, POSITIVE_NUMBER, branchable=True)
    """Target of the KL divergence for --objective penalty and --lr-schedule kl-adaptive, in nats."""
    target_kl: float | None = option(None, POSITIVE_NUMBER, branchable=True)
    """End an update before the first optimizer step whose minibatch has a larger KL, in nats. None: no limit."""
    value_clip: bool = option(False, branchable=True)
    """Also clip the change of the value estimate to ± --clip."""
    value_coef: float = option(0.5, COEFFICIENT, branchable=True)
    """Weight of the value loss."""
    entropy_coef: float = option(0.0, COEFFICIENT, common=True, branchable=True)
    """Weight of the entropy bonus."""
    anneal_entropy: bool = option(False, branchable=True)
    """Lower the weight of the entropy bonus linearly to 0 over --anneal-steps."""
    critic_warmup_steps: int = option(0, COEFFICIENT, branchable=True)
    """Environment steps at the start during which only the critic is trained, for example after --init-from. Needs
    --separate-critic all."""

    def check(self) -> None:
        """Raise ConfigError if one of these options is invalid."""
        if self.objective != "clip":
            unused = f"has no effect with --objective {self.objective}; use --objective clip or leave it out"
            require(self.ratio == "joint", f"--ratio per-dimension {unused}")


@dataclass(frozen=True)
class OptimizerOptions:
    """The optimizer and its learning rate."""

    optimizer: Literal["adam", "sgd"] = "adam"
    """Optimizer of torch. sgd has no momentum."""
    learning_rate: float = option(1e-3, POSITIVE_NUMBER, common=True, branchable=True)
    """Learning rate at the start."""
    lr_schedule: Literal["linear", "constant", "kl-adaptive"] = option("linear", branchable=True)
    """linear: lower the learning rate to 0 over --anneal-steps. constant: keep it. kl-adaptive: after each update,
    divide it by 1.5 if the KL was above twice --desired-kl, and multiply it by 1.5 if the KL was below half of it. It
    stays within 1e-5 … 1e-2."""
    anneal_steps: int | None = option(None, AT_LEAST_1, resumable=True, searchable=False)
    """Environment steps after which annealed values reach 0. None: --total-steps."""
    adam_eps: float = option(1e-5, POSITIVE_FLOAT32, branchable=True)
    """Epsilon of adam."""
    max_grad_norm: float = option(0.5, POSITIVE_NUMBER, branchable=True)
    """Maximum L2 norm of the gradient."""
    autocast: Literal["none", "bf16"] = option("none", branchable=True)
    """bf16: in updates, round the inputs of the encoders' and the core's matrix products to bfloat16. Heads and
    sampling stay in float32. Such a run is reproducible, with other weights."""
