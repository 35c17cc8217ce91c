"""The numbers in `info` that a run reports (--info-keys)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shmppo.config.checks import require, shown
from shmppo.errors import printable

HOW = ("last", "sum", "mean", "max")
PREFIX = "info/"
"""What the names of these metrics begin with."""
AUTOMATIC = ("is_success", "success")
"""Keys that are reported without being named, if an environment has them."""


class InfoKey(NamedTuple):
    """A key of `info`, and how its values at the steps of an episode become one number."""

    path: tuple[str, ...]
    """The nested keys that lead to the number. Empty if it does not come from `info`."""
    how: str
    """One of HOW. A step without the key does not count."""
    named: bool
    """Whether --info-keys names it. Otherwise it is one of AUTOMATIC, and ignored where it is not a number."""

    metric: str
    """Name of the metric: `info/KEY`."""


def parse_info_keys(texts: Sequence[str]) -> list[InfoKey]:
    """Return the keys of --info-keys, and then those of AUTOMATIC that are not among them.

    Raises:
        ConfigError: if a text is not KEY or KEY:HOW, or if two texts name the same key.
    """
    keys: list[InfoKey] = []
    for text in texts:
        name, _, how = text.partition(":")
        path = tuple(name.split("/"))
        require(
            all(path) and not set(name) & set(',"\r\n') and how in ("", *HOW),
            f"--info-keys has {shown(text)}; write KEY or KEY:HOW, where HOW is one of {', '.join(HOW)} and KEY has no "
            "comma",
        )
        require(path not in [key.path for key in keys], f"--info-keys has {name} twice; keep one of them")
        keys.append(InfoKey(path, how or "last", True, PREFIX + printable(name)))
    named = [key.path for key in keys]
    return keys + [InfoKey((name,), "last", False, PREFIX + name) for name in AUTOMATIC if (name,) not in named]
