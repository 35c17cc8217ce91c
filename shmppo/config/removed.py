"""Options that earlier versions had: stored configurations contain them, and command lines may still name them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shmppo.config.checks import flag_with_value, require

REMOVED: dict[str, tuple[Any, str]] = {
    "anneal_clip": (False, "leave it out; --lr-schedule linear makes updates smaller"),
    "attention_heads": (4, "leave it out; --core gtrxl always has four heads"),
    "auxiliary_coef": (1.0, "leave it out, and let the module of --auxiliary scale its losses"),
    "burn_in": (0, "leave it out; fewer --epochs keep stored recurrent states up to date"),
    "dual_clip": (None, "use --target-kl, which ends an update that changes the policy too much"),
    "env_block": (None, "leave it out; each rank shuffles the sequences of all its environments"),
    "episode_seeding": ("episode", "leave it out; a factory can make `reset` ignore seeds after the first one"),
    "eval_sample": (False, "leave it out; `shmppo evaluate --stochastic` evaluates checkpoints with sampled actions"),
    "layer_norm": (False, "leave it out, or use --encoder module:factory"),
    "opponent_latest": (0.5, "leave it out; half of the opponents get the current weights"),
    "opponent_slots": (4, "leave it out; there are always four opponents at a time"),
    "penalty_coef": (1.0, "leave it out; the coefficient adapts itself within a few updates"),
    "rank_timeout": (300.0, "leave it out; ranks wait five minutes for each other"),
    "refresh_states": (False, "leave it out; fewer --epochs keep stored recurrent states up to date"),
    "weight_decay": (0.0, "leave it out; --max-grad-norm and --target-kl limit the changes of the weights"),
    "warmup_steps": (0, "lower --learning-rate, or use --lr-schedule kl-adaptive"),
}
"""By name of the field: its default, and what to do instead."""


def without_removed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a stored configuration without those that this version no longer has.

    Raises:
        ConfigError: if one of them has another value than its default.
    """
    kept = dict(fields)
    for name, (default, instead) in REMOVED.items():
        value = kept.pop(name, default)
        require(value == default, f"{flag_with_value(name, value)} is no longer supported; {instead}")
    require(
        kept.get("env_backend") != "envpool",
        "--env-backend envpool is no longer supported; use --env-backend vector with a factory that makes the pool",
    )
    if kept.get("optimizer") == "adamw":  # without weight decay, it is adam
        kept["optimizer"] = "adam"
    return kept
