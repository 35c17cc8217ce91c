"""The numbers that environments report in `info`: one value per episode and key of --info-keys."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from shmppo.config.info_keys import InfoKey

ReadInfo = Callable[[InfoKey, Sequence[int]], np.ndarray]
"""Returns the numbers of one key in `info` at the current step of some environments, NaN where it is missing."""


class EpisodeInfo:
    """Combines the numbers of `info` over the steps of the current episodes of n environments.

    Attributes:
        combined: what is known of the current episodes, float64 [n, I, 2]: sum and number of steps, or the maximum.
    """

    def __init__(self, keys: Sequence[InfoKey], count: int) -> None:
        """keys: the I keys. count: n, number of environments."""
        self._ordered = sorted(keys, key=lambda key: ("sum", "mean", "max", "last").index(key.how))
        self._to_combine = [key for key in self._ordered if key.how != "last"]
        self._maxima = [k for k, key in enumerate(self._ordered) if key.how in ("max", "last")]
        self.combined = np.zeros((count, len(keys), 2))
        self.combined[:, self._maxima, 0] = np.nan
        self._all = list(range(count))

    def begin(self, i: int) -> None:
        """Start from nothing again, for the next episode of environment i."""
        self.combined[i] = 0.0
        self.combined[i, self._maxima, 0] = np.nan

    def add(self, read: ReadInfo) -> None:
        """Add a step of every environment."""
        for k, key in enumerate(self._to_combine):
            numbers = read(key, self._all)
            combined, steps = self.combined[:, k].T
            if key.how == "max":
                np.fmax(combined, numbers, out=combined)
            else:
                present = ~np.isnan(numbers)
                combined += np.where(present, numbers, 0.0)
                steps += present

    def ended(self, indices: Sequence[int], read: ReadInfo) -> list[dict[str, float]]:
        """Return the numbers of the episodes that end with this step, by metric, per environment in `indices`.

        A key that an episode did not have is left out.
        """
        results: list[dict[str, float]] = [{} for _ in indices]
        for k, key in enumerate(self._ordered):
            if key.how == "last":
                numbers = read(key, indices)
            else:
                numbers, steps = self.combined[indices, k].T
                if key.how != "max":
                    with np.errstate(invalid="ignore"):  # 0 / 0 is NaN
                        numbers = numbers / (steps if key.how == "mean" else steps > 0)
            for result, number in zip(results, numbers.tolist(), strict=True):
                if number == number:
                    result[key.metric] = number
        return results


def info_row(keys: Sequence[InfoKey], numbers: Mapping[str, float]) -> list[float]:
    """Return the numbers of an episode, by metric, as a row [I] in the order of the I keys, NaN for missing ones."""
    return [numbers.get(key.metric, float("nan")) for key in keys]


def number_of(info: Any, key: InfoKey) -> float:
    """Return the number of a key in the `info` of one environment. NaN: it is missing, or does not come from `info`.

    Raises:
        TypeError: if the value of a named key is neither a number nor a boolean.
    """
    for name in key.path:
        if not isinstance(info, dict) or name not in info:
            return float("nan")
        info = info[name]
    return _as_number(info, key) if key.path else float("nan")


def _as_number(value: Any, key: InfoKey) -> float:
    """Return a value in `info` as a number. NaN: it is None, or a text or the like of an automatic key.

    Errors: see `number_of`.
    """
    if value is None:
        return float("nan")
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    if isinstance(value, (float, int, np.bool_, np.integer, np.floating)):
        return float(value)
    if key.named:
        raise TypeError(f"{value!r:.40} is not a number")
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
    rows = values if values.shape[:1] == (count,) else [values] * count
    known = np.flatnonzero(np.broadcast_to(present, count)).tolist()  # other rows may be None
    numbers[known] = [_as_number(rows[i], key) for i in known]
    return numbers


def info_means(
    keys: Sequence[InfoKey], rows: Sequence[Sequence[float]], also: Collection[str] = ()
) -> dict[str, float]:
    """Return the mean of each key over the episodes that have it, by the name of the metric.

    Args:
        keys: the I keys.
        rows: the numbers [I] of each episode, NaN where it did not have the key.
        also: metrics of automatic keys that are NaN if no episode has them. Without this, they are left out.
    """
    means = {}
    for k, key in enumerate(keys):
        known = [row[k] for row in rows if row[k] == row[k]]
        if known or key.named or key.metric in also:
            means[key.metric] = sum(known) / len(known) if known else float("nan")
    return means
