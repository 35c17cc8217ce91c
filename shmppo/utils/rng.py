"""Every random number of a run, keyed by what it is for; no generator carries state from call to call.

So any process can draw any stream again, and no stream depends on how many others were drawn before it.
"""

from __future__ import annotations

import hashlib

import numpy as np

_ACTION_NOISE, _MINIBATCHES = 0, 1


def _philox(seed: int, index: int, purpose: int, epoch: int, iteration: int) -> np.random.Generator:
    # Counter-based: the lowest counter word counts draws, so the others name 2^192 streams per key.
    return np.random.Generator(np.random.Philox(key=[seed, index], counter=[0, purpose, epoch, iteration]))


def episode_seed(run_seed: int, env_index: int, episode: int) -> int:
    """Seed of one episode, 0 … 2³¹ − 1: a hash, so streams of neighboring indices have nothing in common."""
    key = f"{run_seed}/{env_index}/{episode}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=4).digest(), "little") & 0x7FFFFFFF


def action_noise_generator(run_seed: int, env_index: int, iteration: int) -> np.random.Generator:
    """The generator of one environment's action noise in one iteration."""
    return _philox(run_seed, env_index, _ACTION_NOISE, 0, iteration)


def minibatch_generator(run_seed: int, block: int, iteration: int, epoch: int) -> np.random.Generator:
    """The generator that shuffles one block of environments in one epoch of one iteration's update."""
    return _philox(run_seed, block, _MINIBATCHES, epoch, iteration)
