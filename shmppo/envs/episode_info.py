"""The numbers that environments report in `info`: one value per episode and key of --info-keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shmppo.config.info_keys import InfoKey

ReadInfo = Callable[[InfoKey, Sequence[int]], np.ndarray]
"""Returns the numbers of one key in `info` at the current step of some environments, NaN where it is missing."""


class EpisodeInfo:
    """Combines the numbers of `info` over the steps of the current episodes of n environments.

    Attributes:
        keys: the I keys.
        combined: float64 [n, I, 2], the sum or the maximum of each key so far, and the number of steps that had it.
            Both are 0 for keys whose last value counts.
    """

    def __init__(self, keys: Sequence[InfoKey], count: int) -> None:
        """count: n, number of environments."""
        self.keys = keys
        self.combined = np.zeros((count, len(keys), 2))
        self._all = list(range(count))
        self._combined_keys = [k for k, key in enumerate(keys) if key.how != "last"]
        self._maxima = np.array([key.how == "max" for key in keys])
        self._values = np.full((count, len(keys)), np.nan)

    def begin(self, i: int) -> None:
        """Start from nothing again, for the next episode of environment i."""
        self.combined[i] = 0.0

    def add(self, read: ReadInfo) -> None:
        """Add a step of every environment."""
        if not self._combined_keys:
            return
        for k in self._combined_keys:
            self._values[:, k] = read(self.keys[k], self._all)
        values, total, count = self._values, self.combined[..., 0], self.combined[..., 1]
        present = values == values
        replaced = self._maxima & ((values > total) | (count == 0))
        np.add(np.where(replaced, 0.0, total), values, out=total, where=present & (replaced | ~self._maxima))
        count += present

    def ended(self, indices: Sequence[int], read: ReadInfo) -> list[list[float]]:
        """Return the numbers of the episodes that end with this step, [I] per environment in `indices`.

        NaN: the episode did not have the key.
        """
        columns = []
        for k, key in enumerate(self.keys):
            if key.how == "last":
                columns.append(read(key, indices).tolist())
            else:
                pairs = self.combined[indices, k].tolist()
                columns.append([_result(key.how, total, steps) for total, steps in pairs])
        return list(map(list, zip(*columns, strict=True)))


def _result(how: str, total: float, steps: float) -> float:
    if not steps:
        return float("nan")
    return total / steps if how == "mean" else total


def number_of(info: Any, key: InfoKey) -> float:
    """Return the number of a key in the `info` of one environment. NaN: it is missing.

    Raises:
        TypeError: if the value of a named key is neither a number nor a boolean.
    """
    for name in key.path:
        if not isinstance(info, dict) or name not in info:
            return float("nan")
        info = info[name]
    if isinstance(info, np.ndarray) and info.size == 1:
        info = info.item()
    if isinstance(info, (float, int, np.bool_, np.integer, np.floating)):
        return float(info)
    if key.named:
        raise TypeError(f"{info!r:.40} is not a number")
    return float("nan")


def numbers_of(infos: Any, key: InfoKey, count: int) -> np.ndarray:
    """Return the numbers of a key in the `info` of a vector environment.

    Args:
        infos: a dictionary of arrays with one row per environment. As in Gymnasium, the entry `_KEY`, if there is one,
            says which rows have the key.
        key: the key.
        count: n, number of environments.

    Returns:
        float64 [n], NaN where the key is missing.

    Raises:
        TypeError: if the values of a named key are no numbers.
    """
    numbers = np.full(count, np.nan)
    present: Any = True
    for name in key.path:
        if not isinstance(infos, dict) or name not in infos:
            return numbers
        present = present & np.asarray(infos.get(f"_{name}", True))
        infos = infos[name]
    values = np.asarray(infos)
    if values.shape == (count,) and values.dtype.kind in "biuf":
        np.copyto(numbers, values, where=present)
    elif key.named:
        raise TypeError(f"an array of shape {values.shape} and type {values.dtype} is not {count} numbers")
    return numbers


def mean_of_known(numbers: Sequence[float]) -> float:
    """Return the mean of the numbers that are not NaN. NaN if there are none."""
    known = [number for number in numbers if number == number]
    return sum(known) / len(known) if known else float("nan")
