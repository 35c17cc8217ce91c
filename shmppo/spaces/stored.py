"""Spaces as JSON values, which a checkpoint stores: a policy knows its spaces without an environment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from shmppo.errors import ConfigError


def space_to_json(space: spaces.Space[Any]) -> dict[str, Any]:
    """Return a supported space as JSON values."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = space.items() if isinstance(space, spaces.Dict) else enumerate(space)
        return {
            "type": type(space).__name__,
            "parts": [[_key_to_json(key), space_to_json(part)] for key, part in parts],
        }
    if isinstance(space, spaces.Box):
        low, high = _array_to_json(space.low), _array_to_json(space.high)
        return {"type": "Box", "shape": list(space.shape), "dtype": str(space.dtype), "low": low, "high": high}
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.n)}
    if isinstance(space, spaces.MultiDiscrete):
        nvec, start = space.nvec.tolist(), space.start.tolist()
        return {"type": "MultiDiscrete", "nvec": nvec, "start": start, "dtype": str(space.dtype)}
    assert isinstance(space, spaces.Discrete)
    return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}


def _key_to_json(key: Any) -> Any:
    """Return a key of a Dict. A tuple becomes a list. Raises ConfigError if it is none of JSON's values."""
    if isinstance(key, tuple):
        return [_key_to_json(part) for part in key]
    key = key.item() if isinstance(key, np.generic) else key
    if key is None or isinstance(key, (str, int, float)):
        return key
    raise ConfigError(f"a space has the key {key!r}; name its parts by strings, numbers, or tuples of them")


def _key_from_json(key: Any) -> Any:
    return tuple(map(_key_from_json, key)) if isinstance(key, list) else key


def _array_to_json(array: np.ndarray) -> Any:
    """Return an array as nested lists, or as one number if all are equal. JSON has no infinity: it becomes a text."""
    if array.dtype.kind == "f" and np.isinf(array).any():
        array = np.where(np.isinf(array), np.where(array > 0, "inf", "-inf"), array.astype(object))
    values = array.tolist()
    flat = np.array(values, object).reshape(-1).tolist()
    return flat[0] if flat and all(one == flat[0] for one in flat) else values


def space_from_json(stored: dict[str, Any]) -> spaces.Space[Any]:
    """Return the space that `space_to_json` has described."""
    fields = {name: value for name, value in stored.items() if name != "type"}
    if stored["type"] == "Dict":
        return spaces.Dict([(_key_from_json(key), space_from_json(part)) for key, part in stored["parts"]])
    if stored["type"] == "Tuple":
        return spaces.Tuple([space_from_json(part) for _, part in stored["parts"]])
    if stored["type"] == "Box":
        low, high = (np.full(stored["shape"], stored[name], stored["dtype"]) for name in ("low", "high"))
        return spaces.Box(low, high, dtype=np.dtype(stored["dtype"]).type)
    if stored["type"] == "MultiBinary":
        return spaces.MultiBinary(stored["n"])
    if stored["type"] == "MultiDiscrete":
        return spaces.MultiDiscrete(**fields | {"dtype": np.dtype(stored["dtype"]).type})
    return spaces.Discrete(**fields)


class SpaceDifference(NamedTuple):
    """A difference between two spaces."""

    text: str
    """For example "observation_space['goal'] is missing"."""
    of_bounds: bool
    """Whether only the bounds of a Box differ."""


def differences(before: Any, now: Any, where: str) -> Iterator[SpaceDifference]:
    """Yield the differences between two stored spaces.

    Args:
        before: that of the training.
        now: another one.
        where: name of the space.
    """
    if before["type"] != now["type"]:
        yield SpaceDifference(f"{where} is {now['type']}, and was {before['type']} in training", False)
    elif "parts" in before:
        parts, others = ({_key_from_json(key): part for key, part in one["parts"]} for one in (before, now))
        for key in dict.fromkeys([*parts, *others]):
            name = f"{where}[{key!r}]"
            if key not in others or key not in parts:
                yield SpaceDifference(f"{name} is {'missing' if key in parts else 'new'}", False)
            else:
                yield from differences(parts[key], others[key], name)
        if list(parts) != list(others) and parts.keys() == others.keys():
            yield SpaceDifference(f"{where} has its parts in another order", False)
    else:
        for field in before:
            if before[field] != now[field]:
                values = " and was ".join(_shown(one[field]) for one in (now, before))
                yield SpaceDifference(f"{field} of {where} is {values} in training", field in ("low", "high"))


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
