"""The bounds of numeric options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shmppo.config.checks import require_fields

TOO_LARGE = 1e30
"""Products of smaller numbers with ordinary numbers stay finite in float32."""
MAX_SECONDS = 1e6
"""The functions of the system that wait count in milliseconds with 32 bits."""
MAX_UNITS, MAX_LAYERS = 2**20, 100
MAX_OPTION_BYTES = 2**16
"""Largest size of the options of `reset` (--env-schedule) as JSON text."""

BOUNDS: tuple[tuple[str, Callable[[Any], bool], tuple[str, ...]], ...] = (
    ("be at least 1", lambda v: v >= 1, (
        "num_envs", "total_steps", "hidden_size", "num_layers", "rollout_steps", "seq_len", "epochs", "minibatches",
        "env_block", "grad_shards", "anneal_steps", "stop_at_iteration", "checkpoint_every", "keep_every",
        "kl_profile_every", "eval_every", "eval_episodes", "attention_window", "attention_heads", "teacher_steps",
        "opponent_slots", "opponent_every",
    )),
    ("be 0 or more", lambda v: v >= 0, ("workers", "check_determinism")),
    ("lie in 0 … 2^63 - 1", lambda v: 0 <= v < 2**63, ("seed",)),
    (f"be at most {MAX_UNITS}", lambda v: v <= MAX_UNITS, ("hidden_size",)),
    (f"be at most {MAX_LAYERS}", lambda v: v <= MAX_LAYERS, ("num_layers",)),
    ("lie in -20 … 20", lambda v: abs(v) <= 20, ("log_std_init",)),
    ("lie in 0 … 1", lambda v: 0 <= v <= 1, ("gamma", "gae_lambda", "opponent_latest")),
    ("lie between 0 and 1", lambda v: 0 < v < 1, ("preempt_fraction",)),
    ("be positive", lambda v: v > 0, ("target_kl",)),
    ("be positive and below 1e30", lambda v: 0 < v < TOO_LARGE, (
        "clip_reward", "clip", "penalty_coef", "desired_kl", "learning_rate", "max_grad_norm", "adam_eps",
    )),
    ("be 0 or more and below 1e30", lambda v: 0 <= v < TOO_LARGE, (
        "entropy_coef", "value_coef", "weight_decay", "warmup_steps", "teacher_coef", "critic_warmup_steps",
        "auxiliary_coef",
    )),
    ("be above 1 and below 1e30", lambda v: 1 < v < TOO_LARGE, ("dual_clip",)),
    ("be positive and at most 1e6 seconds", lambda v: 0 < v <= MAX_SECONDS, ("worker_timeout", "rank_timeout")),
)  # fmt: skip
"""Rules, which complete the sentence "it must …", and the options that they apply to. None passes every rule."""


def check_bounds(options: Any) -> None:
    """Raise ConfigError for the first option that is out of bounds. options: has all fields of `TrainConfig`."""
    for rule, holds, names in BOUNDS:
        require_fields(options, names, holds, rule)
