"""Seeds of the spaces of an environment. Some draw from their spaces, which `reset(seed=…)` does not seed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium
from gymnasium import spaces

from shmppo.envs.snapshots import wrappers_of

_PLAIN = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def spaces_of(env: gymnasium.Env) -> list[spaces.Space[Any]]:
    """Return the spaces of an environment and of its wrappers, each once, with parts in place of a Dict or Tuple."""
    layers = (*wrappers_of(env), env.unwrapped)
    found = [getattr(layer, name, None) for layer in layers for name in ("observation_space", "action_space")]
    return list({id(part): part for space in found for part in _parts(space)}.values())


def _parts(space: Any) -> Iterator[spaces.Space[Any]]:
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        for part in space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces:
            yield from _parts(part)
    elif isinstance(space, spaces.Space):
        yield space


def seed_spaces(parts: Sequence[spaces.Space[Any]], seed: int) -> None:
    """Seed what `spaces_of` returned.

    The state of each generator is set directly: `Space.seed` takes half as long as the reset of CartPole.
    """
    for k, part in enumerate(parts):
        if not isinstance(part, _PLAIN):
            part.seed(seed)
            continue
        bits = hashlib.blake2b(f"{seed}/{k}".encode()).digest()
        state = {"state": int.from_bytes(bits[:16], "little"), "inc": int.from_bytes(bits[16:32], "little") | 1}
        part.np_random.bit_generator.state = {
            "bit_generator": "PCG64", "state": state, "has_uint32": 0, "uinteger": 0,
        }  # fmt: skip
