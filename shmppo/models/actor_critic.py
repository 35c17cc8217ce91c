"""The recurrent actor-critic used for learning. It maps whole sequences to policy parameters and values.

The recurrent state is an explicit argument and result: one packed vector [S] per environment. Its axes are, in this
order: trunks, parts (see `shmppo.models.cores`), layers, numbers of a part. `NativeNetwork` computes the same
function.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from shmppo.config.extensions import added
from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError
from shmppo.models.cores import CORES
from shmppo.models.encoders import Encoder, encoders_of, is_linear
from shmppo.models.initial_weights import initialize
from shmppo.models.user_module import CustomEncoder, CustomNetwork
from shmppo.spaces.distributions import Distribution, mask_logits
from shmppo.spaces.observations import Leaf, ObservationSpec
from shmppo.utils.rng import INITIAL_WEIGHTS, keyed_generator
from shmppo.utils.torch_utils import ALIGNMENT

# Each parameter starts at a cache line, also within a flat vector of all parameters. Kernels may round differently
# with another alignment.
_ALIGNED_FLOATS = ALIGNMENT // 4

NETWORK = ("trunks", "policy_head", "value_head", "log_std")
"""The parts of `ActorCritic` that belong to the network. Extensions add others."""

Observations = Sequence[Tensor]
"""One tensor per leaf of the observation. Vectors are normalized, all other leaves are as stored."""


class Trunk(nn.Module):
    """Encoders, then a recurrent core. Maps observations to features.

    Attributes:
        encoded: width of the concatenated encoder outputs.
        features: F, width of the output.
        parts: state tensors per layer: 2 for an LSTM or an LRU, 1 for the other cores, 0 without a core.
        part_size: numbers of one part in one layer.
        layers: layers of the core.
        state_size: size of the packed recurrent state of this trunk.
    """

    def __init__(self, config: TrainConfig, leaves: Sequence[Leaf], shared: Trunk | None = None) -> None:
        """Create the modules.

        Args:
            leaves: of the observation that the trunk maps to features. Empty with `shared`.
            shared: the trunk whose encoders this trunk uses. None: it has encoders of its own.
        """
        super().__init__()
        custom = [CustomEncoder(config, leaves)] if config.has_own_encoder and leaves else []
        built_in = encoders_of(config, leaves, [i for one in custom for i in one.indices])
        encoders: list[CustomEncoder | Encoder] = [*custom, *built_in]
        self.encoders = nn.ModuleList(encoders)
        self.encoded: int = shared.encoded if shared else sum(encoder.features for encoder in encoders)
        self.core: nn.Module | None = None
        self.parts = self.part_size = 0
        if config.core != "none":
            core_type = CORES[config.core]
            self.parts = core_type.parts
            self.part_size = core_type.part_size(config)
            self.core = core_type.module(self.encoded, config)
        self.features = config.hidden_size if self.core is not None else self.encoded
        self.layers = config.num_layers
        self.state_size = self.parts * config.num_layers * self.part_size

    def forward(self, obs: Observations, state: Tensor) -> tuple[Tensor, Tensor]:
        """Map L steps of J sequences to features.

        Args:
            obs: [L, J, …] per leaf, time first.
            state: [J, S], before the first step.

        Returns:
            (features [L, J, F], state after the last step [J, S]).
        """
        return self.run_core(self.encode(obs), state)

    def encode(self, obs: Observations) -> Tensor:
        """Compute the outputs of the encoders [L, J, E], the input of the core. obs: see `forward`."""
        rows = [leaf.flatten(0, 1) for leaf in obs]
        parts = [encoder(rows) for encoder in self.encoders]
        x = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        return torch.unflatten(x, 0, obs[0].shape[:2])

    def run_core(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Run the core on the outputs of the encoders [L, J, E]. The rest is as for `forward`."""
        if self.core is None:
            return x, state
        sequences = state.shape[0]
        # [J, parts·layers·size] → [parts, layers, J, size]: torch expects the sequence axis after the layer axis.
        split = state.reshape(sequences, self.parts, self.layers, -1).permute(1, 2, 0, 3).contiguous()
        if self.parts == 1:
            x, h = self.core(x, split[0])
            after = h.unsqueeze(0)
        else:
            x, state_parts = self.core(x, split.unbind())
            after = torch.stack(state_parts)
        return x, after.permute(2, 0, 1, 3).reshape(sequences, -1)


class ActorCritic(nn.Module):
    """A policy head and a value head on one shared trunk, or on one trunk each (--separate-critic).

    With --separate-critic core, the critic's trunk has no encoders: it reads the outputs of the actor's.

    Parameters of the policy that do not depend on the observation (log standard deviations) are in `log_std`.

    Attributes:
        params_size: P, number of policy parameters.
        inputs: for each trunk, the indices of the leaves that it sees (`actor_obs` and `critic_obs`).
        shares_encoder: whether both trunks use the encoders of the first one.
        value_head: None if the network is only for acting, and has no critic.
        feature_losses: names of further modules, each of which computes a loss of the actor's features.
    """

    def __init__(self, config: TrainConfig, observation: ObservationSpec, distribution: Distribution) -> None:
        super().__init__()
        self.observation, self.params_size = observation, distribution.num_params
        self.has_mask = observation.has_mask
        self.inputs = trunk_inputs(config, observation)
        trunk_type = Trunk if config.network is None else CustomNetwork
        leaves = observation.network_leaves
        self.shares_encoder = config.separate_critic == "core"
        with_encoder = self.inputs[:1] if self.shares_encoder else self.inputs
        self.trunks = nn.ModuleList(trunk_type(config, [leaves[i] for i in seen]) for seen in with_encoder)
        if self.shares_encoder:
            self.trunks.append(Trunk(config, (), cast(Trunk, self.trunks[0])))
        self.policy_head = nn.Linear(self.trunk_list[0].features, distribution.num_outputs)
        self.value_head: nn.Linear | None = nn.Linear(self.trunk_list[-1].features, 1)
        free = distribution.num_params - distribution.num_outputs
        self.log_std = nn.Parameter(torch.full((free,), config.log_std_init)) if free else None
        self._initialize(keyed_generator(config.seed, INITIAL_WEIGHTS))
        losses = [one for one in added("feature_loss") if getattr(config, one.NAME) is not None]
        self.feature_losses = [one.NAME for one in losses]
        for one in losses:
            made = one.MODULE(config, leaves, self.trunk_list[0].features, distribution.action_size)
            self.add_module(one.NAME, made)

    def _initialize(self, generator: np.random.Generator) -> None:
        """Set the initial weights. Those of the user's modules are their own."""
        for trunk in self.trunks:
            if isinstance(trunk, Trunk):
                built_in = nn.ModuleList(one for one in trunk.encoders if isinstance(one, Encoder))
                initialize(built_in, math.sqrt(2), generator)
                if trunk.core is not None:
                    initialize(trunk.core, 1.0, generator)
        initialize(self.policy_head, 0.01, generator)
        assert self.value_head is not None
        initialize(self.value_head, 1.0, generator)

    @property
    def state_size(self) -> int:
        """Size of the packed recurrent state of all trunks."""
        return sum(trunk.state_size for trunk in self.trunk_list)

    @property
    def needed_leaves(self) -> tuple[int, ...]:
        """Indices of the leaves that a trunk sees, and of the action mask."""
        mask = {len(self.observation.leaves) - 1} if self.has_mask else set()
        return tuple(sorted(mask.union(*self.inputs)))

    @property
    def network_parameters(self) -> list[nn.Parameter]:
        """All parameters but those of extensions, which come last."""
        return [parameter for name, parameter in self.named_parameters() if name.partition(".")[0] in NETWORK]

    @property
    def convolutional(self) -> bool:
        """Whether an encoder or a custom network has layers of type Conv2d."""
        return any(isinstance(module, nn.Conv2d) for module in self.trunks.modules())

    @property
    def has_torch_encoders(self) -> bool:
        """Whether torch must compute an encoder, because the kernels have linear layers only."""
        encoders = [encoder for trunk in self.trunks if isinstance(trunk, Trunk) for encoder in trunk.encoders]
        return not all(is_linear(encoder) for encoder in encoders)

    @property
    def trunk_list(self) -> list[Trunk | CustomNetwork]:
        """The trunks: the actor's is first, the critic's is last. A shared trunk is listed once."""
        return cast("list[Trunk | CustomNetwork]", list(self.trunks))

    def forward(self, obs: Observations, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute policy parameters and values for L steps of J sequences.

        Args:
            obs: [L, J, …] per leaf, time first.
            state: [J, S], before the first step.

        Returns:
            (policy parameters [L, J, P], values [L, J], state after the last step [J, S]).
        """
        features, after = self.features(obs, state)
        return *self.heads(features, obs), after

    def features(self, obs: Observations, state: Tensor) -> tuple[list[Tensor], Tensor]:
        """Compute the features [L, J, F] of each trunk, and the state after the last step [J, S].

        The arguments are those of `forward`.
        """
        states = torch.split(state, [trunk.state_size for trunk in self.trunk_list], -1)
        if self.shares_encoder:
            actor, critic = cast("list[Trunk]", self.trunk_list)
            x = actor.encode([obs[i] for i in self.inputs[0]])
            outputs = [actor.run_core(x, states[0]), critic.run_core(x, states[1])]
        else:
            inputs = zip(self.trunks, self.inputs, states, strict=True)
            outputs = [trunk([obs[i] for i in seen], part.contiguous()) for trunk, seen, part in inputs]
        return [features for features, _ in outputs], torch.cat([after for _, after in outputs], -1)

    def heads(self, features: Sequence[Tensor], obs: Observations) -> tuple[Tensor, Tensor]:
        """Compute the policy parameters [L, J, P] and the values [L, J].

        Args:
            features: [L, J, F] of each trunk.
            obs: [L, J, …] per leaf. The action mask is read, if there is one.
        """
        params = self.policy_head(features[0])
        if self.log_std is not None:
            params = torch.cat([params, self.log_std.expand(*params.shape[:-1], -1)], -1)
        if self.has_mask:
            params = mask_logits(params, obs[-1])
        if self.value_head is None:
            return params, params.new_zeros(params.shape[:-1])
        return params, self.value_head(features[-1]).squeeze(-1)


def trunk_inputs(config: TrainConfig, observation: ObservationSpec) -> list[tuple[int, ...]]:
    """Return the indices of the leaves that each trunk sees.

    Raises:
        ConfigError: if a key of --actor-obs or --critic-obs selects nothing, or if they differ on a shared trunk.
    """
    actor = observation.selected(config.actor_obs, "--actor-obs")
    hidden = [key for key, of_critic in config.added_parts().items() if of_critic]
    if hidden:
        actor = tuple(sorted(set(actor) - set(observation.selected(hidden, "the critic's part"))))
    critic = observation.selected(config.critic_obs, "--critic-obs")
    if actor != critic and config.separate_critic != "all":
        raise ConfigError(
            "--actor-obs and --critic-obs select different parts of the observation, but actor and critic share their "
            "network; add --separate-critic all"
        )
    return [actor] if config.separate_critic == "none" else [actor, critic]


def parameter_offsets(model: nn.Module) -> tuple[list[int], int]:
    """Return each parameter's offset in a flat vector, in the order of `model.parameters()`, and its length P."""
    offsets, end = [], 0
    for parameter in model.parameters():
        offsets.append(end)
        end += -(-parameter.numel() // _ALIGNED_FLOATS) * _ALIGNED_FLOATS
    return offsets, end


def parameter_views(flat: Tensor, model: nn.Module) -> list[Tensor]:
    """Return views into a flat vector [P] with the shapes of the model's parameters."""
    places = zip(parameter_offsets(model)[0], model.parameters(), strict=True)
    return [flat[begin : begin + parameter.numel()].view(parameter.shape) for begin, parameter in places]


def move_parameters(model: nn.Module, flat: Tensor, *, keep: bool) -> None:
    """Replace the model's parameters by views into `flat` [P].

    Args:
        model: the model to change.
        flat: [P], the new memory of the parameters.
        keep: copy the current parameter values into `flat` first. Otherwise the model takes the values of `flat`.
    """
    for parameter, view in zip(model.parameters(), parameter_views(flat, model), strict=True):
        if keep:
            view.copy_(parameter.detach())
        parameter.data = view


def network_weights(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a state dict without those of extensions."""
    return {name: tensor for name, tensor in state.items() if name.partition(".")[0] in NETWORK}


def weights_sha256(tensors: Iterable[Tensor]) -> str:
    """Return the SHA-256 of the float32 bytes of tensors (a state dict's values), little-endian and row-major."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().to("cpu", torch.float32).contiguous().numpy().data)
    return digest.hexdigest()


def build_model(config: TrainConfig, observation: ObservationSpec, distribution: Distribution) -> ActorCritic:
    """Create the network with the initial weights of the run's seed. Torch's global generator does not change."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)  # the code of the user may have changed it
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            return ActorCritic(config, observation, distribution)
    finally:
        torch.set_default_dtype(before)


def trained_model(
    config: TrainConfig, observation: ObservationSpec, distribution: Distribution, weights: Mapping[str, Tensor]
) -> ActorCritic:
    """Create the network with the given weights, for acting.

    If the critic sees other parts of the observation than the actor, it is removed, because they may be missing. All
    values are 0 then.
    """
    model = build_model(config, observation, distribution)
    if len(set(model.inputs)) > 1:
        del model.trunks[1], model.inputs[1]
        model.value_head = None
    model.load_state_dict({name: weights[name] for name in model.state_dict()})
    return model


def build_meta_model(config: TrainConfig, observation: ObservationSpec, distribution: Distribution) -> ActorCritic:
    """Create the network on the meta device: its parameters have shapes, but no memory."""
    with torch.device("meta"):
        return build_model(config, observation, distribution)


def parameter_shapes(
    config: TrainConfig, observation: ObservationSpec, distribution: Distribution
) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter of the network by name."""
    state = build_meta_model(config, observation, distribution).state_dict()
    return {name: tuple(tensor.shape) for name, tensor in state.items()}
