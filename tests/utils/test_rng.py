"""Random number generators: every key gives its own stream."""

from __future__ import annotations

from shmppo.utils.rng import ACTION_NOISE, MINIBATCHES, episode_seed, keyed_generator


def test_each_key_changes_the_stream() -> None:
    draws = [
        keyed_generator(1, ACTION_NOISE).random(),
        keyed_generator(2, ACTION_NOISE).random(),
        keyed_generator(1, ACTION_NOISE, index=1).random(),
        keyed_generator(1, ACTION_NOISE, iteration=1).random(),
        keyed_generator(1, MINIBATCHES).random(),
        keyed_generator(1, MINIBATCHES, epoch=1).random(),
        keyed_generator(1, MINIBATCHES, iteration=1).random(),
        keyed_generator(1, MINIBATCHES, index=1).random(),
    ]
    assert len(set(draws)) == len(draws)
    seeds = {episode_seed(s, n, e) for s in range(5) for n in range(40) for e in range(40)}
    assert len(seeds) == 5 * 40 * 40
