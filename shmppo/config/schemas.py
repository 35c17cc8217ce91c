"""The JSON files of a run: the keys and values of each, a checksum of their content, and how they are read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from shmppo.errors import ConfigError

CHECKSUM = "checksum"
"""The key of summary.json and failed_episode.json that holds the checksum of all others."""
_MAX_FLOAT32 = 3.4e38


class Key(NamedTuple):
    """A key that a JSON object must have."""

    holds: Callable[[Any], bool]
    """The check of its value."""
    rule: str
    """Completes the sentence "it must be …"."""


Schema = Mapping[str, Key]


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _MAX_FLOAT32


def _is_matrix(value: Any) -> bool:
    """Check a list of rows of finite numbers. All rows have the same length."""
    rows = isinstance(value, list) and all(isinstance(row, list) and all(map(_is_finite, row)) for row in value)
    return rows and len({len(row) for row in value}) <= 1


OBJECT = Key(_is_object, "an object")
COUNT = Key(_is_count, "a whole number of at least 0")
TEXT = Key(_is_text, "text")
TEXT_OR_NULL = Key(lambda value: value is None or _is_text(value), "text or null")

CONFIG_FILE: Schema = {"config": OBJECT}
"""config.json. `TrainConfig` checks the fields of its configuration. The other keys are for readers."""
SUMMARY_FILE: Schema = {"config": OBJECT, "weights_sha256": TEXT_OR_NULL, "iterations": COUNT}
"""summary.json, as far as `shmppo.verify` reads it."""
FAILED_EPISODE_FILE: Schema = {
    "config": OBJECT,
    "env_index": COUNT,
    "episode": COUNT,
    "iteration": COUNT,
    "failed_iteration": COUNT,
    "seed": COUNT,
    "actions": Key(_is_matrix, "a list of actions, which are lists of finite numbers of equal length"),
    "message": TEXT,
}


def read_object(path: Path, schema: Schema, advice: str) -> dict[str, Any]:
    """Read a JSON file, and check its content.

    Args:
        path: the file.
        schema: its keys and their values. Further keys are allowed.
        advice: what to do if it is damaged, for the error message.

    Raises:
        ConfigError: if the file cannot be read, is damaged, or has another content.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_constant)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is damaged ({_reason(error)}); {advice}") from error
    problem = problem_of(content, schema)
    if problem is not None:
        raise ConfigError(f"{path} is damaged ({problem}); {advice}")
    checked: dict[str, Any] = content
    return checked


def problem_of(content: Any, schema: Schema) -> str | None:
    """Return in which way a JSON value does not have the form of a schema, or None. A checksum must be correct."""
    if not isinstance(content, dict):
        return f"it is {_short(content)} instead of an object"
    for name, key in schema.items():
        if name not in content:
            return f"the key {name} is missing"
        if not key.holds(content[name]):
            return f"{name} is {_short(content[name])}, which must be {key.rule}"
    rest = {name: value for name, value in content.items() if name != CHECKSUM}
    if CHECKSUM in content and content[CHECKSUM] != content_digest(rest):
        return "its checksum differs"
    return None


def with_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a JSON file with its checksum. All keys must be text."""
    return {**content, CHECKSUM: content_digest(content)}


def content_digest(content: Any) -> str:
    """Return the SHA-256 of a JSON value. It does not depend on white space and the order of keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def config_digest(path: Path) -> str:
    """Return the SHA-256 of the content of a config.json. Raises ConfigError if it is damaged."""
    advice = "restore it, or continue in a new directory with --resume RUN_DIR --run-dir NEW_DIR"
    return content_digest(read_object(path, CONFIG_FILE, advice))


def _constant(text: str) -> float:
    """Parse a constant that JSON lacks. NaN is refused: no file of a run contains it."""
    if text == "NaN":
        raise ValueError("it contains NaN")
    return float(text)


def _reason(error: Exception) -> str:
    """Describe in one line why a file cannot be read."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return "its objects are nested too deeply" if isinstance(error, RecursionError) else str(error)


def _short(value: Any) -> str:
    """Show a JSON value in at most 40 characters."""
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
