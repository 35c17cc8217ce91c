"""Acting: compute actions from observations, for a range of environments.

`Actor` is the only implementation of acting: normalize, encode, recurrent core, heads, sample. The collector,
evaluation, and the policy API use it. It also computes the values that bootstrap truncated steps.

With the kernels (`NativeNetwork`), one call computes a step of all environments, because the result of a row depends on
nothing else. With torch (`TorchActing`, and the encoders of `EncodedActing`), it depends on the shape of the call. So
the environments are divided into inference batches of B rows, and B depends only on the configuration: environment n
always has row n mod B, in a call of the same shape and alignment, whichever process steps it. The module
`row_independence` checks that the other rows do not change its actions, as those of a custom network may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from shmppo.config.train_config import TrainConfig
from shmppo.models.actor_critic import ActorCritic
from shmppo.models.native import NativeNetwork, uses_kernels
from shmppo.models.native_layers import Statistics
from shmppo.parallel.shared_buffers import Acting
from shmppo.spaces.distributions import Distribution
from shmppo.spaces.normalization import leaf_statistics, normalize_leaf
from shmppo.spaces.observations import ObservationSpec
from shmppo.utils.torch_utils import aligned_rows, aligned_zeros, set_numeric_modes


class InferenceBatches:
    """The observations of own environments in inference batches of B rows, for networks that torch computes.

    Environment n has row n mod B of its batch, and all other rows are zero.

    Attributes:
        shape: (number of batches, B).
    """

    def __init__(
        self, observation: ObservationSpec, obs: Sequence[np.ndarray], statistics: Statistics, *, low: int, rows: int
    ) -> None:
        """Allocate the memory.

        Args:
            obs: [own, …] per leaf, the stored observations that `read` reads.
            statistics: of each leaf, for its normalization.
            low: index of the first environment.
            rows: B.
        """
        self._sources = list(map(torch.from_numpy, obs))
        self._statistics = [pair and (torch.from_numpy(pair[0]), torch.from_numpy(pair[1])) for pair in statistics]
        self._own = slice(low % rows, low % rows + len(obs[0]))
        self.shape = -(-self._own.stop // rows), rows
        # Matrix products read vectors and states. Their bits may depend on the alignment, which must be the same in
        # all batches.
        self._obs = [
            aligned_rows(*self.shape, *leaf.shape)
            if leaf.kind == "vector"
            else aligned_zeros(*self.shape, *leaf.shape, dtype=getattr(torch, leaf.dtype))
            for leaf in observation.leaves
        ]
        self._targets = list(map(self.own, self._obs))

    def own(self, batches: Tensor) -> Tensor:
        """Return the rows of own environments [own, …]. batches: [number of batches, B, …], contiguous."""
        return batches.flatten(0, 1)[self._own]

    def read(self) -> Iterator[list[Tensor]]:
        """Read and normalize the observations. Yield the leaves [B, …] of each batch, for torch."""
        set_numeric_modes()  # the code of an environment may have changed them
        for source, statistics, target in zip(self._sources, self._statistics, self._targets, strict=True):
            target.copy_(normalize_leaf(source, statistics))
        for batch in range(self.shape[0]):
            yield [leaf[batch] for leaf in self._obs]


class TorchActing:
    """Acting by the modules of a network on any device, one step of an inference batch at a time.

    Attributes:
        state: [own, S], recurrent states; `forward` updates them.
        params: [own, P], policy parameters, an output.
        values: [own, 1], an output.
    """

    def __init__(
        self, model: ActorCritic, obs: Sequence[np.ndarray], statistics: Statistics, *, low: int, rows: int
    ) -> None:
        """Allocate the memory.

        Args:
            model: the network. All other memory is on the CPU.
            obs, statistics, low, rows: see `InferenceBatches`.
        """
        self._model, self._device = model, model.policy_head.weight.device
        self._batches = batches = InferenceBatches(model.observation, obs, statistics, low=low, rows=rows)
        self._states, self._values = aligned_rows(*batches.shape, model.state_size), aligned_rows(*batches.shape, 1)
        self._params = aligned_rows(*batches.shape, model.params_size)
        outputs = self._states, self._params, self._values
        self.state, self.params, self.values = (batches.own(output).numpy() for output in outputs)

    def load(self) -> None:
        """Nothing to do: the modules read the current weights."""

    def forward(self) -> None:
        """Compute one step of all own environments."""
        for batch, leaves in enumerate(self._batches.read()):
            obs = [leaf.unsqueeze(0).to(self._device) for leaf in leaves]
            state = self._states[batch].to(self._device)
            params, values, after = self._model(obs, state)
            self._params[batch], self._values[batch, :, 0], self._states[batch] = params[0], values[0], after


class EncodedActing:
    """Acting by the kernels, after encoders that torch computes. It has the interface of `TorchActing`."""

    def __init__(self, network: NativeNetwork, batches: InferenceBatches) -> None:
        """Allocate the memory. network: the rest of the network, for one step of all own environments."""
        self._network, self._batches = network, batches
        self.state, self.params, self.values, self.load = network.state, network.params, network.values, network.load
        parts = network.builder.torch_parts
        self._encoded = [(part, aligned_rows(*batches.shape, part.out.shape[1])) for part in parts]

    def forward(self) -> None:
        """Compute one step of all own environments."""
        for batch, obs in enumerate(self._batches.read()):
            for part, encoded in self._encoded:
                encoded[batch] = part.compute(obs)
        for part, encoded in self._encoded:
            part.out[:] = self._batches.own(encoded)
        self._network.forward()


class LearnerActing:
    """Acting by the learner's process (--act-on device). It has the interface of `TorchActing`.

    Attributes:
        obs: [own, …] per leaf, the stored observations that `forward` reads.
    """

    obs: Sequence[np.ndarray]

    def __init__(self, acting: Acting, own: slice, ask: Callable[[], None]) -> None:
        """Create views. ask: waits until the learner has acted."""
        self._obs, self._before, self._after = [leaf[own] for leaf in acting.obs], acting.state[own], acting.after[own]
        self.params, self.values, self.state = acting.params[own], acting.values[own], self._before.copy()
        self._ask = ask

    def load(self) -> None:
        """Nothing to do: the learner reads the current weights."""

    def forward(self) -> None:
        """Compute one step of all own environments."""
        for target, source in zip([*self._obs, self._before], [*self.obs, self.state], strict=True):
            target[:] = source
        self._ask()
        self.state[:] = self._after


class Actor:
    """Acts for a range of environments. "own" below is the number of environments in the range.

    Attributes:
        states: float32 [own, S], recurrent states; the caller may write them.
        params: policy parameters of the last step, [own, P]. The next step overwrites them.
        values: values of the last step, [own]. The next step overwrites them.
    """

    def __init__(
        self,
        config: TrainConfig,
        model: ActorCritic,
        distribution: Distribution,
        obs: Sequence[np.ndarray],
        *,
        low: int,
        active: np.ndarray | None = None,
        learner: LearnerActing | None = None,
    ) -> None:
        """Allocate the memory. Call `load` before the first step.

        Args:
            model: the network that learns; its parameters must not move.
            obs: [own, …] per leaf. Each step reads the current observations from these arrays.
            low: index of the first environment of the range.
            active: bool [own], the columns whose states change at a step; the caller writes it. None: all.
            learner: computes the network instead of this process, if it is not None.
        """
        self._distribution, self._obs, self._active = distribution, obs, active
        spec, count = model.observation, len(obs[0])
        self._obs_mean = np.zeros(spec.normalized_size, np.float32)
        self._obs_scale = np.ones(spec.normalized_size, np.float32)
        statistics = leaf_statistics(spec.normalized_slices, self._obs_mean, self._obs_scale, config.normalize_obs)
        self._inputs = [np.zeros((count, *leaf.shape), leaf.dtype) for leaf in spec.leaves]
        rows = {"low": low, "rows": config.inference_rows}
        self._network: NativeNetwork | EncodedActing | TorchActing | LearnerActing
        if learner is not None:
            learner.obs, self._network = self._inputs, learner
        elif uses_kernels(config, model):
            state = np.zeros((count, model.state_size), np.float32)
            network = NativeNetwork(model, self._inputs, statistics, row_count=count, sequences=count, state=state)
            batches = InferenceBatches(spec, self._inputs, statistics, **rows) if model.has_torch_encoders else None
            self._network = network if batches is None else EncodedActing(network, batches)
        else:
            self._network = TorchActing(model, self._inputs, statistics, **rows)
        self.states: np.ndarray = self._network.state
        self.params: np.ndarray = self._network.params
        self.values: np.ndarray = self._network.values[:, 0]

    def load(self, obs_mean: np.ndarray, obs_scale: np.ndarray) -> None:
        """Read the current weights of the model, and copy the statistics that normalize observations.

        Args:
            obs_mean: [D].
            obs_scale: [D], 1 / standard deviation.
        """
        torch.set_flush_denormal(False)  # a library of an environment may replace denormal numbers by 0
        self._network.load()
        self._obs_mean[:], self._obs_scale[:] = obs_mean, obs_scale

    def load_noise(self, noise: np.ndarray) -> None:
        """Set the noise of the next steps, float32 [steps, own, noise_size]. It is not copied."""
        self._noise = noise

    def act(self, step: int | None = 0) -> np.ndarray:
        """Act on the current observations, and update the recurrent states. Call it in inference mode.

        Args:
            step: index of the step whose noise is used. None: take the most likely actions.

        Returns:
            The actions, float32 [own, A].
        """
        self.advance()
        distribution, params = self._distribution, self.params
        with np.errstate(over="ignore", invalid="ignore"):  # if the policy has diverged, the update says so
            actions = distribution.mode(params) if step is None else distribution.sample(params, self._noise[step])
            return np.array(actions, np.float32)  # the mode may be a view of the parameters

    def advance(self) -> None:
        """Update the recurrent states with the current observations, without acting. Call it in inference mode."""
        if self._active is None:
            self._forward(self._obs)
            return
        before = self.states.copy()
        self._forward(self._obs)
        np.copyto(self.states, before, where=~self._active[:, np.newaxis])

    def values_of(self, obs: Sequence[np.ndarray]) -> np.ndarray:
        """Compute the values of observations with the current recurrent states. The states do not change.

        Call it in inference mode.

        Args:
            obs: [own, …] per leaf, as stored.

        Returns:
            float32 [own].
        """
        states = self.states.copy()
        self._forward(obs)
        self.states[:] = states
        return self.values.copy()

    def _forward(self, obs: Sequence[np.ndarray]) -> None:
        for target, source in zip(self._inputs, obs, strict=True):
            target[:] = source
        self._network.forward()
