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
_ACTION_NOISE, _MINIBATCHES, _DETERMINISM_CHECK, _PLAYBACK, _INITIAL_WEIGHTS = 0, 1, 2, 3, 6


def keyed_generator(seed: int, index: int, purpose: int, epoch: int, iteration: int) -> np.random.Generator:
    """Return the generator of one stream. purpose: what it is for; 4 and 5 belong to extensions."""
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


def initial_weights_generator(run_seed: int) -> np.random.Generator:
    """Return the generator of the network's initial weights."""
    return keyed_generator(run_seed, 0, _INITIAL_WEIGHTS, 0, 0)


def action_noise_generator(run_seed: int, env_index: int, iteration: int) -> np.random.Generator:
    """Return the generator of one environment's action noise in one iteration."""
    return keyed_generator(run_seed, env_index, _ACTION_NOISE, 0, iteration)


def minibatch_generator(run_seed: int, rank: int, iteration: int, epoch: int) -> np.random.Generator:
    """Return the generator that shuffles the sequences of one rank in one epoch of an update."""
    return keyed_generator(run_seed, rank, _MINIBATCHES, epoch, iteration)


def playback_generator(run_seed: int, env_index: int, epoch: int) -> np.random.Generator:
    """Return the generator of the order in which one environment plays all recorded episodes for the n-th time."""
    return keyed_generator(run_seed, env_index, _PLAYBACK, epoch, 0)


def determinism_check_generator(run_seed: int, index: int) -> np.random.Generator:
    """Return a generator of the check that an environment is a function of its seed and actions.

    Args:
        run_seed: seed of the run.
        index: what the numbers are for, from 0.
    """
    return keyed_generator(run_seed, index, _DETERMINISM_CHECK, 0, 0)
