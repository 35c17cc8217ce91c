"""The distribution for each action space, and products of distributions for spaces with parts."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from shmppo.errors import ConfigError
from shmppo.spaces.beta import Beta
from shmppo.spaces.distributions import (
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    Distribution,
    SquashedGaussian,
    StateStd,
)

SUPPORTED = "Box of floats, Discrete, MultiDiscrete, MultiBinary, and Tuple and Dict of these"


class Joint:
    """Product of independent distributions, for MultiDiscrete, Tuple, and Dict actions.

    Actions and noise of the parts are concatenated. `params` are the policy head's outputs of all parts, then the
    parameters of all parts that do not depend on the observation.

    Attributes:
        part_keys: of the parts in the environment's action: names, or indices.
    """

    def __init__(
        self, parts: Sequence[Distribution], assemble: Callable[[Sequence[Any]], Any], keys: Any = None
    ) -> None:
        """Combine distributions.

        Args:
            parts: one distribution per part.
            assemble: builds the environment's action from one action of each part.
            keys: of the parts in the environment's action. None: it is an array of all parts.
        """
        self._parts = list(parts)
        self._assemble, self._is_array = assemble, keys is None
        self.part_keys: Sequence[Any] = range(len(parts)) if keys is None else keys
        self.action_size = sum(part.action_size for part in parts)
        self.noise_size = sum(part.noise_size for part in parts)
        self.num_outputs = sum(part.num_outputs for part in parts)
        self.num_params = sum(part.num_params for part in parts)
        self._action_slices = _slices([part.action_size for part in parts], 0)
        self._noise_slices = _slices([part.noise_size for part in parts], 0)
        self._output_slices = _slices([part.num_outputs for part in parts], 0)
        self._free_slices = _slices([part.num_params - part.num_outputs for part in parts], self.num_outputs)

    def _split(self, params: np.ndarray) -> list[np.ndarray]:
        """Return the params of each part."""
        slices = zip(self._output_slices, self._free_slices, strict=True)
        return [np.concatenate([params[..., outputs], params[..., free]], -1) for outputs, free in slices]

    def _merge(self, parts: list[np.ndarray]) -> np.ndarray:
        """Put what belongs to the params of each part in the order of `params`. The inverse of `_split`."""
        outputs = [own[..., : part.num_outputs] for part, own in zip(self._parts, parts, strict=True)]
        free = [own[..., part.num_outputs :] for part, own in zip(self._parts, parts, strict=True)]
        return np.concatenate([*outputs, *free], -1)

    def noise(self, generator: np.random.Generator, steps: int) -> np.ndarray:
        return np.concatenate([part.noise(generator, steps) for part in self._parts], axis=-1)

    def sample(self, params: np.ndarray, noise: np.ndarray) -> np.ndarray:
        parts = zip(self._parts, self._split(params), self._noise_slices, strict=True)
        return np.concatenate([part.sample(own, noise[..., where]) for part, own, where in parts], -1)

    def mode(self, params: np.ndarray) -> np.ndarray:
        return np.concatenate([part.mode(own) for part, own in zip(self._parts, self._split(params), strict=True)], -1)

    def normalized(self, params: np.ndarray) -> np.ndarray:
        parts = zip(self._parts, self._split(params), strict=True)
        return self._merge([part.normalized(own) for part, own in parts])

    def log_prob(self, p: np.ndarray, actions: np.ndarray) -> np.ndarray:
        parts = zip(self._parts, self._split(p), self._action_slices, strict=True)
        return np.concatenate([part.log_prob(own, actions[..., where]) for part, own, where in parts], -1)

    def entropy(self, p: np.ndarray) -> np.ndarray:
        return _sum_of_parts(self.entropies(p))

    def entropies(self, p: np.ndarray) -> list[np.ndarray]:
        """Return the entropy of each part in nats, [...] each."""
        return [part.entropy(own) for part, own in zip(self._parts, self._split(p), strict=True)]

    def kl(self, p: np.ndarray, q: np.ndarray) -> np.ndarray:
        parts = zip(self._parts, self._split(p), self._split(q), strict=True)
        return _sum_of_parts([part.kl(own_p, own_q) for part, own_p, own_q in parts])

    def log_prob_grad(self, p: np.ndarray, actions: np.ndarray, upstream: np.ndarray) -> np.ndarray:
        parts = zip(self._parts, self._split(p), self._action_slices, strict=True)
        each = np.broadcast_to(upstream, actions.shape)
        return self._merge([part.log_prob_grad(own, actions[..., a], each[..., a]) for part, own, a in parts])

    def entropy_grad(self, p: np.ndarray) -> np.ndarray:
        return self._merge([part.entropy_grad(own) for part, own in zip(self._parts, self._split(p), strict=True)])

    def kl_grad(self, p: np.ndarray, q: np.ndarray) -> np.ndarray:
        parts = zip(self._parts, self._split(p), self._split(q), strict=True)
        return self._merge([part.kl_grad(own_p, own_q) for part, own_p, own_q in parts])

    def named(self, params: np.ndarray) -> dict[Any, Any]:
        parts = zip(self.part_keys, self._parts, self._split(params), strict=True)
        return {key: part.named(own) for key, part, own in parts}

    def to_env(self, actions: np.ndarray) -> list[Any]:
        slices = zip(self._parts, self._action_slices, strict=True)
        parts = [part.to_env(actions[:, where]) for part, where in slices]
        return [self._assemble(one) for one in zip(*parts, strict=True)]

    def from_env(self, actions: Any) -> np.ndarray:
        keys = self.part_keys
        given = np.reshape(actions, (-1, len(keys))).T if self._is_array else [actions[key] for key in keys]
        return np.concatenate([part.from_env(own) for part, own in zip(self._parts, given, strict=True)], -1)

    def best_action(self, params: Tensor) -> Tensor:
        slices = zip(self._parts, self._output_slices, self._free_slices, strict=True)
        parts = [part.best_action(torch.cat([params[:, a], params[:, b]], -1)) for part, a, b in slices]
        return torch.cat([one.reshape(params.shape[0], -1) for one in parts], -1)

    def c_action(self, outputs: str) -> list[tuple[str, str]]:
        parts = zip(self._parts, self._output_slices, strict=True)
        return [one for part, own in parts for one in part.c_action(f"{outputs} + {own.start}")]


def _sum_of_parts(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Add arrays one by one. np.sum adds those of a single row in another order, so the bits would depend on rows."""
    return functools.reduce(np.add, parts)


def _slices(sizes: Sequence[int], start: int) -> list[slice]:
    """Adjacent slices of the given sizes, the first one starting at `start`."""
    return [slice(a, b) for a, b in itertools.pairwise(itertools.accumulate(sizes, initial=start))]


# Module functions instead of lambdas: distributions are pickled and sent to workers.


def _as_array(shape: tuple[int, ...], dtype: Any, numbers: Sequence[int]) -> np.ndarray:
    return np.array(numbers, dtype).reshape(shape)


def _as_dict(names: Sequence[str], actions: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(names, actions, strict=True))


def distribution_for(
    space: spaces.Space[Any], where: str, *, squash: bool = False, state_std: StateStd | None = None, beta: bool = False
) -> Distribution:
    """Create the distribution for an action space.

    Args:
        space: the action space.
        where: name of the environment for error messages, such as "--env CartPole-v1".
        squash: squash bounded Box dimensions by tanh instead of clipping them.
        state_std: how the standard deviation of Box actions depends on the state. None: it does not.
        beta: give Box actions a beta distribution instead of a Gaussian one.

    Raises:
        ConfigError: if the space or a part of it is not supported, or has no bounds for a beta distribution.
    """
    parts: list[Distribution]
    of_part = functools.partial(distribution_for, squash=squash, state_std=state_std, beta=beta)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating) and 0 not in space.shape:
        if beta:
            return Beta(space, where)
        return (SquashedGaussian if squash else DiagonalGaussian)(space, state_std)
    if isinstance(space, spaces.Discrete):
        return Categorical(space)
    if isinstance(space, spaces.MultiBinary):
        return Bernoulli(space)
    if isinstance(space, spaces.MultiDiscrete):
        sizes, starts = space.nvec.reshape(-1).tolist(), space.start.reshape(-1).tolist()
        parts = [Categorical(spaces.Discrete(n, start=start)) for n, start in zip(sizes, starts, strict=True)]
        return Joint(parts, functools.partial(_as_array, space.shape, space.dtype))
    if isinstance(space, spaces.Tuple) and len(space):
        parts = [of_part(s, f"{where}: part {i}") for i, s in enumerate(space)]
        return Joint(parts, tuple, range(len(space)))
    if isinstance(space, spaces.Dict) and len(space):
        parts = [of_part(s, f"{where}: part {k!r}") for k, s in space.items()]
        return Joint(parts, functools.partial(_as_dict, tuple(space)), tuple(space))
    raise ConfigError(
        f"{where} has the action space {space}, which is not supported; supported are {SUPPORTED}: convert it with a "
        "wrapper"
    )
