"""The normalizer's merge against numpy on the concatenated data."""

from __future__ import annotations

import numpy as np
import pytest

from shmppo.spaces.normalization import RunningMoments, column_moments


def merged(parts: list[np.ndarray]) -> RunningMoments:
    moments = RunningMoments(4)
    for some in (parts[:2], parts[2:]):
        moments.merge(np.array([len(part) for part in some]), np.array([column_moments(part) for part in some]))
    return moments


def test_merge_equals_numpy_on_the_concatenated_data(request: pytest.FixtureRequest) -> None:
    rng = np.random.default_rng(0)
    parts = [rng.normal(loc=1000 * k, scale=1 + k, size=(size, 4)) for k, size in enumerate((5, 8, 0, 11, 14, 17))]
    moments = merged(parts)
    together = np.concatenate(parts)
    assert moments.count == len(together)
    np.testing.assert_allclose(moments.mean, together.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(moments.std, together.std(axis=0), rtol=1e-9)
    request.getfixturevalue("not_compiled")
    other = merged(parts)
    assert (moments.mean.tobytes(), moments.m2.tobytes()) == (other.mean.tobytes(), other.m2.tobytes())


def test_float32_columns_with_a_large_mean_lose_no_digits() -> None:
    column = (np.arange(128, dtype=np.float32)[:, None] % 4) + 1e6
    mean, m2 = column_moments(column)
    np.testing.assert_allclose(mean, 1e6 + 1.5)
    np.testing.assert_allclose(m2 / 128, 1.25)


def test_before_the_first_sample_nothing_is_scaled() -> None:
    moments = RunningMoments(2)
    np.testing.assert_array_equal(moments.mean, [0, 0])
    np.testing.assert_array_equal(moments.std, [1, 1])
    moments.merge(np.zeros(1, int), np.ones((1, 2, 2)))
    assert moments.count == 0


@pytest.mark.parametrize(("steps", "columns"), [(1, 1), (2, 3), (7, 16), (128, 64), (129, 5), (1000, 33), (2048, 1)])
def test_moments_of_a_column_do_not_depend_on_the_other_columns(steps: int, columns: int) -> None:
    samples = np.random.default_rng(steps).standard_normal((steps, columns))
    together = np.stack(column_moments(samples), axis=1)
    alone = np.concatenate([np.stack(column_moments(samples[:, n : n + 1]), axis=1) for n in range(columns)])
    assert together.tobytes() == alone.tobytes()
