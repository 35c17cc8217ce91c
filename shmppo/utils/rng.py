"""Random number generators, each keyed by its purpose.

No generator of training keeps state between calls. Therefore any process can recreate any stream, and no stream depends
on the draws from other streams.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

_PLAIN_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
ACTION_NOISE, MINIBATCHES, DETERMINISM_CHECK, PLAYBACK, INITIAL_WEIGHTS = 0, 1, 2, 3, 6
"""Purposes of streams. 4 and 5 belong to extensions."""


def keyed_generator(
    seed: int, purpose: int, *, index: int = 0, epoch: int = 0, iteration: int = 0
) -> np.random.Generator:
    """Return the generator of one stream.

    Args:
        seed: seed of the run.
        purpose: what the numbers are for, one of the constants above.
        index: whom they are for: the global index of an environment, a rank, or a number of other streams.
        epoch: of the update, or another number that counts within or instead of iterations.
        iteration: of the run.
    """
    # Philox counts draws in the lowest word of its counter. The other three words distinguish 2^192 streams per key.
    return np.random.Generator(np.random.Philox(key=[seed, index], counter=[0, purpose, epoch, iteration]))


def episode_seed(run_seed: int, env_index: int, episode: int) -> int:
    """Return the seed of one episode, 0 … 2³¹ − 1. It is a hash, so that neighboring indices get unrelated seeds.

    Args:
        run_seed: seed of the run.
        env_index: global index of the environment.
        episode: number of the episode in this environment, from 0.
    """
    key = f"{run_seed}/{env_index}/{episode}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=4).digest(), "little") & 0x7FFFFFFF


def seed_spaces(parts: Sequence[spaces.Space[Any]], seed: int) -> None:
    """Seed the spaces of an environment: some environments draw from them, and `reset(seed=…)` does not seed them.

    The state of each generator is set directly: `Space.seed` takes half as long as the reset of CartPole.

    Args:
        parts: spaces that are neither a Dict nor a Tuple.
        seed: of the episode.
    """
    for k, part in enumerate(parts):
        if not isinstance(part, _PLAIN_SPACES):
            part.seed(seed)
            continue
        bits = hashlib.blake2b(f"{seed}/{k}".encode()).digest()
        state = {"state": int.from_bytes(bits[:16], "little"), "inc": int.from_bytes(bits[16:32], "little") | 1}
        part.np_random.bit_generator.state = {
            "bit_generator": "PCG64", "state": state, "has_uint32": 0, "uinteger": 0,
        }  # fmt: skip
