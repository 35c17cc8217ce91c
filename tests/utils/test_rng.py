"""Random number generators: every key gives its own stream."""

from __future__ import annotations

from shmppo.utils.rng import action_noise_generator, episode_seed, minibatch_generator


def test_each_key_changes_the_stream() -> None:
    draws = [
        action_noise_generator(1, 0, 0).random(),
        action_noise_generator(2, 0, 0).random(),
        action_noise_generator(1, 1, 0).random(),
        action_noise_generator(1, 0, 1).random(),
        minibatch_generator(1, 0, 0, 0).random(),
        minibatch_generator(1, 0, 0, 1).random(),
        minibatch_generator(1, 0, 1, 0).random(),
        minibatch_generator(1, 1, 0, 0).random(),
    ]
    assert len(set(draws)) == len(draws)
    seeds = {episode_seed(s, n, e) for s in range(5) for n in range(40) for e in range(40)}
    assert len(seeds) == 5 * 40 * 40
