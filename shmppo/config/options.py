"""The fields of a configuration by subject, each with its unit and meaning, and the checks that need one subject."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from shmppo.errors import ConfigError


def require(condition: bool, message: str) -> None:
    """Raises ConfigError with `message` unless the condition holds."""
    if not condition:
        raise ConfigError(message)


def require_fields(options: Any, names: tuple[str, ...], holds: Callable[[Any], bool], rule: str) -> None:
    """Raises ConfigError for the first of the named fields whose value breaks the rule; None always passes."""
    for name in names:
        value = getattr(options, name)
        require(value is None or holds(value), f"{flag(name)} is {value}; it must {rule}")


def flag(name: str) -> str:
    """The command line's name of a field."""
    return "--" + name.replace("_", "-")


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint at the known name that is most like `name`; empty if none is."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


_BEYOND = 1e30  # float32 holds what is smaller, and its sums and products with numbers of ordinary size


def _at_least_1(value: float) -> bool:
    return value >= 1


def _positive(value: float) -> bool:
    return 0 < value < _BEYOND


def _keyword_arguments(pairs: list[str]) -> Mapping[str, Any]:
    """`key=value` texts as a mapping; a value is read as JSON where it is JSON, else as text."""
    arguments: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        require(bool(equals) and key.isidentifier(), f"{pair!r} is not of the form key=value; write frame_skip=4")
        try:
            arguments[key] = json.loads(text)
        except json.JSONDecodeError:
            arguments[key] = text
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
"""A mapping that the command line takes as key=value pairs, each value JSON or plain text."""


@dataclass(frozen=True)
class TaskOptions:
    """What is learned, and for how long."""

    env: str | None = None
    """Gymnasium id, `module:Id` to import the module first, or `module:factory` to call. None: the default job,
    CartPole-v1 with its velocities (indices 1 and 3) hidden."""
    env_kwargs: KeywordArguments = field(default_factory=dict)
    """Arguments that the environment is made with, such as frame_skip=4."""
    wrappers: tuple[str, ...] = ()
    """Wrappers around the environment, innermost first: names in gymnasium.wrappers or `module:Wrapper`, with
    arguments in parentheses where they need some, such as "TimeLimit(max_episode_steps=200)"."""
    env_backend: Literal["gymnasium", "envpool"] = "gymnasium"
    """Who steps the environments: Gymnasium, one after the other, or EnvPool (extra `envpool`), a worker's together in
    C++, where it has the environment. Its episodes cannot be played again: such a run is not exact."""
    hide_obs: tuple[int, ...] | None = None
    """Observation indices set to 0, so that the policy needs memory. None: none (but see --env)."""
    prev_action: bool = False
    """Show the policy its last action too, as the environment was given it; zeros where an episode begins."""
    prev_reward: bool = False
    """Show the policy its last reward too; zero where an episode begins."""
    episode_seeding: Literal["episode", "once"] = "episode"
    """Which resets are seeded: each episode's, or only the first of each environment where a seeded reset is slow. With
    once, an episode cannot be replayed: after a fault or a stop it is restarted, and the run then not exact."""
    skip_bad_episodes: bool = False
    """Where an environment raises or returns numbers that are not finite, end that episode at its last good step, make
    the environment anew and go on (counted as failed_episodes); otherwise that ends the run."""
    num_envs: int = 16
    """N, environments stepped side by side."""
    seed: int = 1
    """Seed of everything random: weights, environments, actions, minibatches."""
    total_steps: int = 200_000
    """Environment steps to train for, over all environments; rounded up to whole iterations."""

    def check_task(self) -> None:
        require_fields(self, ("num_envs", "total_steps"), _at_least_1, "be at least 1")
        try:
            same = json.loads(json.dumps(self.env_kwargs)) == self.env_kwargs
        except (TypeError, ValueError):
            same = False
        require(same, f"--env-kwargs is {self.env_kwargs}; its values must be numbers, text, lists or mappings of them")
        if self.env_backend == "envpool":
            for name in ("wrappers", "prev_action", "prev_reward", "skip_bad_episodes"):
                require(not getattr(self, name), f"{flag(name)} needs --env-backend gymnasium; leave one of them out")
        require(0 <= self.seed < 2**63, f"--seed is {self.seed}; it must lie in 0 … 2^63 - 1")


@dataclass(frozen=True)
class NetworkOptions:
    """The policy and the critic."""

    core: Literal["lstm", "gru", "none"] = "lstm"
    """Recurrent core; none is a feed-forward policy."""
    hidden_size: int = 64
    """H, units of each recurrent layer (unused with --core none)."""
    num_layers: int = 1
    """Recurrent layers (unused with --core none)."""
    encoder_sizes: tuple[int, ...] = (64,)
    """Units of the tanh layers before the core, for each part of the observation that is not an image."""
    encoder: Literal["auto", "mlp", "nature", "impala"] = "auto"
    """Encoder of images: the tanh layers, or a convolutional network. auto: nature from 36 pixels a side, else mlp."""
    layer_norm: bool = False
    """Normalize over a layer's units before each activation of the encoder's linear layers."""
    network: str | None = None
    """`module:factory` of a network of your own in place of encoders and core (see shmppo/user_network.py); --core none
    says that it has no state. None: the one that the other options describe."""
    separate_critic: bool = False
    """Give the critic an encoder and a core of its own instead of sharing the actor's."""
    log_std_init: float = 0.0
    """Initial log standard deviation of Box actions (state-independent, learned)."""
    action_masks: bool = False
    """Choose only among the actions that info["action_mask"] allows, of Discrete and MultiDiscrete actions: one row of
    0 and 1, or one for each dimension."""
    squash_actions: bool = False
    """Squash Box actions into their bounds by tanh, in each dimension that has two, instead of clipping them."""
    log_std_min: float | None = None
    """Floor of the log standard deviation: after each optimizer step what lies below is put back on it. None: none."""

    def check_network(self) -> None:
        require_fields(self, ("hidden_size", "num_layers"), _at_least_1, "be at least 1")
        require(abs(self.log_std_init) <= 20, f"--log-std-init is {self.log_std_init}; it must lie in -20 … 20")
        floor = self.log_std_min
        require(
            floor is None or -20 <= floor <= self.log_std_init,
            f"--log-std-min is {floor}; it must lie in -20 … --log-std-init {self.log_std_init}",
        )
        sizes = self.encoder_sizes
        require(all(size >= 1 for size in sizes), f"--encoder-sizes is {sizes}; each must be at least 1")


@dataclass(frozen=True)
class UpdateOptions:
    """The rollout, and how it is laid out for learning."""

    rollout_steps: int = 128
    """T, steps per environment and iteration."""
    seq_len: int = 32
    """L, longest sequence for backpropagation through time, in steps."""
    burn_in: int = 0
    """Steps before a sequence, of its own episode and rollout, that warm its state up and count for nothing else."""
    refresh_states: bool = False
    """Before each epoch but the first, compute the stored states anew with the present weights."""
    epochs: int = 4
    """K, passes over each rollout."""
    minibatches: int = 8
    """M, optimizer steps per epoch."""
    gamma: float = 0.99
    """Discount per step."""
    gae_lambda: float = 0.95
    """λ of generalized advantage estimation (arXiv 1506.02438)."""
    truncation_is_termination: bool = False
    """Treat a truncated episode as one that ended: no bootstrap from its last observation. For environments that
    mark a natural end as truncated."""
    advantage_norm: Literal["minibatch", "global", "none"] = "minibatch"
    """Over what advantages are brought to mean 0 and standard deviation 1."""
    normalize_obs: bool = True
    """Normalize vectors observed by running mean and standard deviation, clipped to ± 10."""
    clip_reward: float | None = None
    """Clip each reward to ± this before anything is learned from it; reported returns stay as they are. None: never."""
    normalize_reward: bool = True
    """Divide rewards by the running standard deviation of the discounted return, clipped to ± 10."""
    env_block: int | None = None
    """Environments per shuffling block: each block fills its share of each minibatch. None: all N in one."""
    grad_shards: int | None = None
    """G, parts of a minibatch whose gradients are computed apart. None: one per 256 steps; W are faster, if fewer."""
    tile_rows: int | None = None
    """B, rows of an inference batch; environment n is always row n mod B. None: 8."""

    def check_update(self) -> None:
        counts = ("rollout_steps", "seq_len", "epochs", "minibatches", "env_block", "grad_shards", "tile_rows")
        require_fields(self, counts, _at_least_1, "be at least 1")
        require_fields(self, ("gamma", "gae_lambda"), lambda v: 0 <= v <= 1, "lie in 0 … 1")
        require(
            0 <= self.burn_in < self.seq_len,
            f"--burn-in is {self.burn_in}; it must be 0 or more, and less than --seq-len {self.seq_len}",
        )
        require_fields(self, ("clip_reward",), _positive, "be positive and below 1e30")


@dataclass(frozen=True)
class ObjectiveOptions:
    """What is maximized."""

    objective: Literal["clip", "penalty"] = "clip"
    """PPO-Clip, or PPO-Penalty: the ratio unclipped, less β times the KL divergence (arXiv 1707.06347)."""
    ratio: Literal["joint", "per-dimension"] = "joint"
    """Clip the ratio of the whole action, or that of each action dimension (DISC, arXiv 1905.02363)."""
    clip: float = 0.2
    """ε of PPO-Clip: the ratio's range is 1 ± ε (arXiv 1707.06347)."""
    anneal_clip: bool = False
    """Lower the clip range linearly to 0 over --anneal-steps."""
    dual_clip: float | None = None
    """c > 1: where the advantage A is negative, the objective is at least c·A (arXiv 1912.09729). None: no limit."""
    penalty_coef: float = 1.0
    """β of --objective penalty at the start; it then halves and doubles to keep the KL near --desired-kl."""
    desired_kl: float = 0.01
    """KL in nats that --objective penalty and --lr-schedule kl-adaptive aim at."""
    target_kl: float | None = None
    """End an update before the first step whose minibatch shows a larger KL. None: never."""
    value_clip: bool = False
    """Clip the value's change to ± --clip as well."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    anneal_entropy: bool = False
    """Lower the entropy bonus linearly to 0 over --anneal-steps."""

    def check_objective(self) -> None:
        require_fields(self, ("clip", "penalty_coef", "desired_kl"), _positive, "be positive and below 1e30")
        weights = ("entropy_coef", "value_coef")
        require_fields(self, weights, lambda v: 0 <= v < _BEYOND, "be 0 or more and below 1e30")
        require_fields(self, ("target_kl",), lambda v: v > 0, "be positive")
        require_fields(self, ("dual_clip",), lambda v: 1 < v < _BEYOND, "be above 1 and below 1e30")
        if self.objective == "penalty":
            clips = "clips, and --objective penalty does not; use --objective clip"
            require(self.ratio == "joint", f"--ratio per-dimension {clips}")
            require(self.dual_clip is None, f"--dual-clip {clips}")


@dataclass(frozen=True)
class OptimizerOptions:
    """How a gradient becomes a step."""

    optimizer: Literal["adam", "adamw", "sgd", "rmsprop"] = "adam"
    """Optimizer, by torch's name; sgd has no momentum, rmsprop averages squares over about 100 steps (α = 0.99)."""
    learning_rate: float = 1e-3
    """The optimizer's step size at the start."""
    lr_schedule: Literal["linear", "constant", "kl-adaptive"] = "linear"
    """linear: fall to 0 over --anneal-steps. kl-adaptive: after each update, divide by 1.5 if its KL was above twice
    --desired-kl, multiply by 1.5 if below half of it, within 1e-5 … 1e-2."""
    warmup_steps: int = 0
    """Environment steps over which the step size rises linearly to what --lr-schedule says. 0: none."""
    anneal_steps: int | None = None
    """Horizon of the annealing, in environment steps. None: --total-steps."""
    adam_eps: float = 1e-5
    """Epsilon of adam, adamw and rmsprop."""
    weight_decay: float = 0.0
    """Pull of every parameter towards 0: decoupled from the gradient with adamw, added to it (L2) with the others."""
    max_grad_norm: float = 0.5
    """Gradients are scaled down to this L2 norm."""
    autocast: Literal["none", "bf16"] = "none"
    """bf16: the network's products of the update in bfloat16, acting in float32. Another run, exact for itself."""

    def check_optimizer(self) -> None:
        require_fields(self, ("anneal_steps",), _at_least_1, "be at least 1")
        positive = ("learning_rate", "max_grad_norm", "adam_eps")
        require_fields(self, positive, _positive, "be positive and below 1e30")
        at_least_0 = ("weight_decay", "warmup_steps")
        require_fields(self, at_least_0, lambda v: 0 <= v < _BEYOND, "be 0 or more and below 1e30")


@dataclass(frozen=True)
class ProcessOptions:
    """Where it runs and what is kept of it; of these, only the learner's device and threads touch the weights."""

    workers: int | None = None
    """W, rollout processes. 0: none, the learner samples by itself. None: one per core, at most N."""
    learning: Literal["auto", "central", "sharded"] = "auto"
    """Who computes gradients: the learner, or it and the workers. auto: sharded if W and G are 2 or more."""
    device: str = "cpu"
    """Device of the learner's gradient: cpu, cuda or cuda:1 (central learning only); acting stays on the CPU. Other
    than cpu: another run, and not exact."""
    learner_threads: int = 1
    """Threads of the learner's gradient (central learning only). Other than 1: another run, exact for itself."""
    run_dir: str | None = None
    """Where everything of this run is written. None: runs/<env>-s<seed>-<time>."""
    stop_at_iteration: int | None = None
    """Stop after this iteration; annealing still aims at its own horizon."""
    worker_timeout: float = 60.0
    """Seconds without a step or an answer after which a worker counts as stalled."""
    max_restarts: int = 3
    """Times that each worker is replaced within an hour when it fails; then the run ends."""
    checkpoint_every: int | None = None
    """Iterations between checkpoints. None: by --checkpoint-minutes alone."""
    checkpoint_minutes: float = 10.0
    """Minutes between checkpoints; one is also written at the start, the end and when the run is told to stop."""
    keep_checkpoints: int = 2
    """Newest checkpoints that are kept; the best by return is kept besides."""
    replay_limit: int = 1_000_000
    """Steps of an episode that are kept to replay it. A longer one is restarted where it would have to be replayed,
    and the run is then not exact; an environment with get_state and set_state needs no replay."""

    def check_processes(self) -> None:
        counts = ("learner_threads", "stop_at_iteration", "checkpoint_every", "keep_checkpoints", "replay_limit")
        require_fields(self, counts, _at_least_1, "be at least 1")
        require_fields(self, ("max_restarts", "workers"), lambda v: v >= 0, "be 0 or more")
        require_fields(self, ("worker_timeout", "checkpoint_minutes"), _positive, "be positive and below 1e30")
        require(self.device == "cpu" or self.device.startswith("cuda"), f"--device is {self.device}; use cpu or cuda")


SetByRanks = Annotated[int, tyro.conf.Fixed, tyro.conf.Suppress]
"""A field that is no flag: it follows from how the processes were started."""


@dataclass(frozen=True)
class RankOptions:
    """Several learners that average their gradients, started by torchrun. VectorEnv sizes are those of one rank."""

    rank_timeout: float = 300.0
    """Seconds that a rank waits for the others; then the run ends and names those that are missing. A checkpoint and
    the replacement of a worker, on any rank, must fit in."""
    preempt_fraction: float | None = None
    """Once this share of the ranks, or of a rank's workers, have finished their rollout, the others end theirs early
    (DD-PPO: 0.6). By the clock, so such a run is not exact. None: all wait for the slowest."""
    preempt_min_fraction: float = 0.25
    """Share of its steps that a rollout has at least when it is ended early."""
    ranks: SetByRanks = 1
    """R, ranks that learn together."""
    rank: SetByRanks = 0
    """Which of them this is."""

    def check_ranks(self) -> None:
        require_fields(self, ("rank_timeout",), _positive, "be positive and below 1e30")
        require_fields(self, ("preempt_fraction", "preempt_min_fraction"), lambda v: 0 < v < 1, "lie between 0 and 1")
        require(0 <= self.rank < self.ranks, f"rank is {self.rank} of {self.ranks}; it must lie in 0 … ranks - 1")


@dataclass(frozen=True)
class ReportOptions:
    """What is shown and recorded of a run, and who is told of it."""

    track: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Trackers that get every row of metrics.csv besides. Each needs its extra: pip install 'shmppo[tensorboard]'."""
    eval_every: int | None = None
    """Evaluate after every so many iterations, in a process of its own: eval.csv. None: never."""
    eval_episodes: int = 10
    """Episodes of each of these evaluations, with the most likely actions."""
    eval_videos: bool = False
    """VideoRecorder the first episode of each of these evaluations: videos/ITERATION.mp4 (extra `video`)."""
    quiet: bool = False
    """Print nothing but errors."""
    kl_profile_every: int | None = None
    """Record the KL profile of every K-th update, from the first on: kl.csv and kl/*.npz. None: of none."""

    step_times: bool = False
    """Time every environment step, to name stragglers: step_times.csv, and a line of the summary."""

    def check_report(self) -> None:
        require_fields(self, ("kl_profile_every", "eval_every", "eval_episodes"), _at_least_1, "be at least 1")
        require(
            self.eval_every is not None or not self.eval_videos,
            "--eval-videos films evaluations, and there are none; add --eval-every",
        )
