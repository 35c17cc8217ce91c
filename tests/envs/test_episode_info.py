"""Numbers of `info` per episode, against computations by hand and a slow reference."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shmppo.config.info_keys import InfoKey, parse_info_keys
from shmppo.envs.episode_info import EpisodeInfo, info_row, number_of
from shmppo.errors import ConfigError


def key(name: str, how: str = "last", *, named: bool = True) -> InfoKey:
    return InfoKey(tuple(name.split("/")), how, named, f"info/{name}")


def test_named_keys_come_before_the_automatic_ones() -> None:
    keys = parse_info_keys(["reward/ctrl:sum", "success", "height"])
    assert keys == [key("reward/ctrl", "sum"), key("success"), key("height"), key("is_success", named=False)]
    assert keys[0].metric == "info/reward/ctrl"


@pytest.mark.parametrize("texts", [["a:median"], ["a//b"], [""], ["a,b"], ["a", "a:sum"]])
def test_wrong_keys_are_refused(texts: list[str]) -> None:
    with pytest.raises(ConfigError, match="--info-keys has"):
        parse_info_keys(texts)


@pytest.mark.parametrize("how", ["last", "sum", "mean", "max"])
def test_episodes_agree_with_a_slow_reference(how: str) -> None:
    generator = np.random.default_rng(0)
    count, steps = 3, 700
    keys = [key("a", how), key("never", how)]
    info = EpisodeInfo(keys, count)
    values = generator.standard_normal((steps, count)) - 1  # the maximum of an episode may be below 0
    values[generator.random((steps, count)) < 0.3] = np.nan
    begun = [0] * count
    for t in range(steps):
        numbers = {("a",): values[t], ("never",): np.full(count, np.nan)}
        info.add(lambda k, indices, numbers=numbers: numbers[k.path][indices])
        ending = np.flatnonzero(generator.random(count) < (0.2 if t < 40 else 0.003)).tolist()
        ended = info.ended(ending, lambda k, indices, numbers=numbers: numbers[k.path][indices])
        for i, row in zip(ending, ended, strict=True):
            episode = values[begun[i] : t + 1, i]
            known = [x for x in episode.tolist() if not math.isnan(x)]
            expected = episode[-1] if how == "last" else math.nan
            if how != "last" and known:
                expected = {"sum": sum(known), "mean": sum(known) / len(known), "max": max(known)}[how]
            assert row.get("info/a", math.nan) == pytest.approx(expected, nan_ok=True)
            assert info_row(keys, row) == pytest.approx([expected, math.nan], nan_ok=True)
            info.begin(i)
            begun[i] = t + 1


def test_numbers_of_one_environment() -> None:
    info = {"a": {"b": np.float32(0.5)}, "flag": np.True_, "one": np.array([3]), "text": "left", "many": np.ones(2)}
    assert number_of(info, key("a/b")) == 0.5
    assert number_of(info, key("flag")) == 1.0
    assert number_of(info, key("one")) == 3.0
    assert math.isnan(number_of(info, key("a/c")))
    assert math.isnan(number_of(info, key("flag/c")))
    assert math.isnan(number_of({"a": None}, key("a")))
    for name in ("text", "many"):
        with pytest.raises(TypeError, match="is not a number"):
            number_of(info, key(name))
        assert math.isnan(number_of(info, key(name, named=False)))
