"""Hints for flags that other trainers have: which flag to use here, and how to compute its value.

Names are those of Stable-Baselines3 and its contrib package, CleanRL, Sample Factory, PufferLib, RLlib, rsl_rl,
rl_games, Brax, and OpenAI Baselines. A hyphen stands for a hyphen or an underscore.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from shmppo.config.checks import nearest, require
from shmppo.config.removed import REMOVED

_TABLES = json.loads(Path(__file__).with_name("foreign_flags.json").read_text())
RENAMED: dict[str, list[str]] = _TABLES["renamed"]
"""Names of other trainers by the flag that means the same here."""
EXPLAINED: dict[str, list[str]] = _TABLES["explained"]
"""Names of other trainers by the sentence that says what to do instead."""


def refuse_foreign_flags(words: Sequence[str], known: Collection[str]) -> None:
    """Raise ConfigError for flags that other trainers have, with what to use instead.

    Args:
        words: the command line.
        known: the flags of the command.
    """
    found = []
    for given in (word.partition("=")[0] for word in words if word.startswith("--")):
        name = given.replace("_", "-")
        is_flag = name in known or name.replace("--no-", "--", 1) in known
        if not is_flag and (remedy := remedy_for(name, known)):
            found.append(f"there is no flag {given}; {remedy}")
    require(not found, "; ".join(found))


def remedy_for(given: str, known: Collection[str]) -> str:
    """Return what to use instead of a flag of another trainer. Empty if it is unknown.

    Args:
        given: the flag.
        known: the flags of the command.
    """
    own = given.lstrip("-").replace("_", "-").lower().rpartition(".")[2]  # PufferLib groups flags: --train.gamma
    if f"--{own}" in known:
        return f"use --{own}"
    if (field := own.replace("-", "_")) in REMOVED:
        return REMOVED[field][1]
    remedies = [(f"use {flag}", names) for flag, names in RENAMED.items()] + list(EXPLAINED.items())
    fitting = [text for text, names in remedies if own in names and set(flags_in(text)) <= set(known)]
    return fitting[0] if fitting else ""


def field_hint(name: str, known: Collection[str]) -> str:
    """Return what to use instead of an unknown field of a configuration, as the end of a sentence.

    Args:
        known: the fields.
    """
    if name in ("overwrite", "trust"):
        return f"; pass it to the function: train(config, {name}=…)"
    remedy = remedy_for(name, [f"--{field.replace('_', '-')}" for field in known])
    if remedy:
        return "; " + re.sub(r"--([a-z][a-z-]*)", lambda found: found[1].replace("-", "_"), remedy)
    return nearest(name, known)


def flags_in(text: str) -> list[str]:
    """Return the flags that a text names."""
    return re.findall(r"--[a-z][a-z-]*", text)
