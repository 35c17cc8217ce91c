"""Draw random configurations. The number of a case determines its configuration."""

from __future__ import annotations

import random
import shlex
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shmppo.config.checks import flag_with_value
from shmppo.config.train_config import field_types

ENVS = ("CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCarContinuous-v0", "FrozenLake-v1", "InvertedPendulum-v5")
TEXTS: dict[str, tuple[str, ...]] = {
    "env": (*ENVS, "Nothing-v0", "gymnasium:CartPole-v1", "math:sin", "a b"),
    "wrappers": ("FlattenObservation", "TimeLimit(max_episode_steps=9)", "Nothing", "TimeLimit(", "os:getcwd"),
    "network": ("nowhere:make", "math:sin", "x"),
    "device": ("cpu", "cuda", "cuda:9", "gpu"),
}
"""Values of text fields. Other text fields get OTHER_TEXTS."""
OTHER_TEXTS = ("a", "runs/x", "0", "with space")
INTEGERS = (1, 2, 3, 5, 7, 8, 9, 13, 16, 31, 33, 64, 127, 1000, 65_537)
WRONG_VALUES: tuple[Any, ...] = (
    -1, 0, 2**31, 2**63 - 1, 2**63, 2**64, 10**30, 10**400, -(10**400), -0.5, 0.5, float("nan"), float("inf"),
    float("-inf"), 1e-320, 1e300, -0.0, "", "none", "None", "nan", "1e-3", " ", "é\n", "\x00", "\ud800", "-1", "--env",
    True, False, None, (), (0,), (1, "a"), ((1,),), (None,), {}, {"a": 1}, {"a": len}, {1: 2}, b"x", len, int, [1, 2],
    np.float64(0.5), np.int64(3), np.float32("nan"), np.array([1, 2]), np.array(3), np.bool_(True), Path("x"), 1j,
    [[]], {1}, range(3),
)  # fmt: skip
"""Extreme values, and values of wrong types."""
WORDS = (
    "--nothing", "--hidden_size", "--lr", "--batch-size=3", "x", "-", "--", "---", "-v", "--seed=", "=3", "--no-", "1",
    "--env-kwargs=a", "--encoder-sizes=", "--no-num-envs", "--config=/nothing.json", "--preset=nothing", "--é",
    "--resumee", "--train.seed", "--quiet=true", "--no-quiet", "--checkpoint=3", "--seed=1_0", "--seed=0x10",
)  # fmt: skip
"""Words that may make a command line wrong."""

SMALL: dict[str, tuple[Any, ...]] = {
    "hide_obs": ((), (0,), (1,)),
    "prev_action": (True,), "prev_reward": (True,), "wrappers": ((), ("TimeLimit(max_episode_steps=9)",)),
    "env_backend": ("auto", "gymnasium"), "episode_seeding": ("episode", "episode", "once"),
    "skip_bad_episodes": (True,), "allow_out_of_bounds": (True,), "num_envs": (2, 3, 5, 6, 9, 13),
    "seed": (0, 1, 12345, 2**63 - 1), "core": ("lstm", "gru", "lmu", "lru", "none"), "hidden_size": (1, 3, 8, 13, 33),
    "num_layers": (1, 2), "encoder_sizes": ((), (5,), (8, 9), (65,)), "encoder": ("auto", "mlp"),
    "layer_norm": (True,), "activation": ("relu",), "separate_critic": (True,), "log_std_init": (-2.0, 0.5),
    "squash_actions": (True,),
    "log_std_min": (None, -3.0), "rollout_steps": (1, 3, 7, 16, 19), "seq_len": (1, 2, 5, 8, 40), "burn_in": (0, 1, 4),
    "refresh_states": (True,), "epochs": (1, 2, 3), "minibatches": (1, 2, 3, 5), "gamma": (0.0, 0.9, 1.0),
    "gae_lambda": (0.0, 0.5, 1.0), "truncation_is_termination": (True,),
    "advantage_norm": ("minibatch", "global", "none"), "normalize_obs": (False,), "clip_reward": (None, 0.5),
    "normalize_reward": (False,), "env_block": (None, 1, 3), "grad_shards": (None, 1, 2, 3),
    "tile_rows": (None, 1, 3, 8, 13), "objective": ("clip", "penalty"), "ratio": ("joint", "per-dimension"),
    "clip": (0.01, 0.2, 3.0), "anneal_clip": (True,), "dual_clip": (None, 1.5), "penalty_coef": (0.1, 10.0),
    "desired_kl": (1e-5, 0.1), "target_kl": (None, 1e-6, 0.1), "value_clip": (True,), "value_coef": (0.0, 2.0),
    "entropy_coef": (0.0, 0.1), "anneal_entropy": (True,), "optimizer": ("adam", "adamw", "sgd", "rmsprop"),
    "learning_rate": (1e-8, 3e-3, 0.1), "lr_schedule": ("linear", "constant", "kl-adaptive"),
    "warmup_steps": (0, 50), "adam_eps": (1e-12, 0.1), "weight_decay": (0.0, 0.1), "max_grad_norm": (1e-3, 100.0),
    "autocast": ("none", "none", "bf16"), "checkpoint_every": (None, 1, 2), "keep_checkpoints": (1, 3),
    "keep_every": (None, 1), "replay_limit": (1, 5, 1000), "eval_every": (None, None, 2), "kl_profile_every": (None, 1),
    "step_times": (True,),
}  # fmt: skip
"""Values of a job that takes a fraction of a second. Most combinations of them are valid."""
LEFT_OUT = {
    "env", "env_kwargs", "env_schedule", "network", "init_from", "actor_obs", "critic_obs", "action_masks",
    "total_steps", "anneal_steps", "workers", "learning",
    "check_determinism", "device", "learner_threads", "run_dir", "stop_at_iteration", "worker_timeout", "max_restarts",
    "checkpoint_minutes", "rank_timeout", "preempt_fraction", "preempt_min_fraction", "ranks", "rank", "track",
    "wandb_project", "wandb_group", "wandb_name", "wandb_tags", "eval_episodes", "eval_videos", "quiet",
}  # fmt: skip
"""Fields that `small_configuration` sets itself, or that need other files, packages, devices, or ranks."""
ITERATIONS = 3


def configuration(case: int) -> dict[str, Any]:
    """Draw fields for `TrainConfig`: up to 12 of all fields. In half of the cases, some values are wrong."""
    draw = random.Random(f"fields {case}")
    wrong = draw.choice((0.0, 0.0, 0.1, 0.5))
    kinds = field_types()
    names = draw.sample(sorted(kinds), draw.randint(1, 12))
    return {name: _value(draw, name, kinds[name], wrong) for name in names}


def command_line(case: int) -> list[str]:
    """Draw the flags of `train`. Every second command line has up to three mistakes."""
    draw = random.Random(f"flags {case}")
    words = _as_flags(configuration(case))
    if draw.random() < 0.5:
        _make_mistakes(draw, words)
    return words


def small_configuration(case: int) -> dict[str, Any]:
    """Draw fields of a small job, most of which are valid. They lack workers, learning, and the run directory."""
    draw = random.Random(f"small {case}")
    names = draw.sample(sorted(SMALL), draw.randint(1, 14))
    base = {"num_envs": 4, "rollout_steps": 16, "minibatches": 2, "seq_len": 8, "hidden_size": 8, "epochs": 2}
    fields: dict[str, Any] = base | {"env": draw.choice(ENVS)}
    fields |= {name: draw.choice(SMALL[name]) for name in names}
    steps = ITERATIONS * fields["num_envs"] * fields["rollout_steps"]
    return fields | {"total_steps": steps, "eval_episodes": 1, "quiet": True}


def small_command_line(case: int) -> list[str]:
    """Draw the flags of a small job. Two of three command lines have up to three mistakes."""
    draw = random.Random(f"command {case}")
    fields = small_configuration(case) | {"workers": draw.randint(0, 2), "learning": draw.choice(("auto", "central"))}
    kinds = field_types()
    mistakes = draw.randrange(3)
    if mistakes:
        for name in draw.sample(sorted(set(kinds) - {"run_dir", "total_steps"}), draw.randint(0, 2)):
            fields[name] = _value(draw, name, kinds[name], 0.8)
    words = _as_flags(fields | {"stop_at_iteration": 1})
    if mistakes == 2:
        _make_mistakes(draw, words)
    return words


def _as_flags(fields: Mapping[str, Any]) -> list[str]:
    """Return fields as words of a command line. A value that no command line can contain is left out."""
    words: list[str] = []
    for name, value in fields.items():
        try:
            given = shlex.split(flag_with_value(name, value))
        except (TypeError, ValueError):
            continue
        words += [word for word in given if "\x00" not in word and "\ud800" not in word]
    return words


def _make_mistakes(draw: random.Random, words: list[str]) -> None:
    """Insert wrong words, and remove, repeat, or cut a word."""
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(words) + 1)
        kind = draw.randrange(4)
        if kind == 0 or at == len(words):
            words.insert(at, draw.choice(WORDS))
        elif kind == 1:
            del words[at]
        elif kind == 2:
            words.insert(at, words[at])
        elif len(words[at]) > 3:
            words[at] = words[at][:-1]


def _value(draw: random.Random, name: str, kind: Any, wrong: float) -> Any:
    """Draw a value for a field of this type; with the probability `wrong`, any value."""
    if draw.random() < wrong:
        return draw.choice(WRONG_VALUES)
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return None if draw.random() < 0.25 else _value(draw, name, parts[0], 0)
    if origin is typing.Literal:
        return draw.choice(parts)
    if origin is tuple:
        return tuple(_value(draw, name, parts[0], 0) for _ in range(draw.randrange(4)))
    if kind is bool:
        return draw.random() < 0.5
    if kind is int:
        return draw.choice(INTEGERS)
    if kind is float:
        return draw.choice((0.5, 1.0, draw.random(), 10 ** draw.uniform(-9, 3)))
    if kind is str:
        return draw.choice(TEXTS.get(name, OTHER_TEXTS))
    return draw.choice(({}, {"size": 3}, {"a": [1, None], "b": {"c": "d"}}))  # a mapping
