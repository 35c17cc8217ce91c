"""The recurrent actor-critic for learning: whole rows in, policy parameters and values out.

State goes in and comes out, never hidden: one packed vector per environment, [S] =
trunks × (h, c of an LSTM; h of a GRU) × layers × H, in that order. `inference.py` is the same
function one step at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from shmppo.config.train_config import TrainConfig
from shmppo.models.custom import CustomNetwork
from shmppo.models.distributions import Distribution, mask_logits
from shmppo.models.encoders import LeafEncoder, orthogonal
from shmppo.models.observations import ObservationSpec
from shmppo.utils.torch_utils import ALIGNMENT

_FLOATS = ALIGNMENT // 4  # parameters begin at a cache line, in the slab as in memory of their own


Observations = Sequence[Tensor]
"""One tensor per leaf of the observation: vectors normalized, the others as they are stored."""


class Trunk(nn.Module):
    """An encoder for each leaf of the observation, side by side, and a recurrent core: observations to features."""

    def __init__(self, config: TrainConfig, observation: ObservationSpec) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(LeafEncoder(config, leaf) for leaf in observation.shown)
        self.encoded = sum(encoder.features for encoder in self.encoder_list)
        self.core: nn.LSTM | nn.GRU | None = None
        if config.core != "none":
            core_type = nn.LSTM if config.core == "lstm" else nn.GRU
            self.core = core_type(self.encoded, config.hidden_size, config.num_layers)
            for name, parameter in self.core.named_parameters():
                if "weight" in name:
                    nn.init.orthogonal_(parameter)
                else:
                    nn.init.zeros_(parameter)
        self.features = config.hidden_size if self.core is not None else self.encoded
        self.parts = {"lstm": 2, "gru": 1, "none": 0}[config.core]
        self.layers = config.num_layers
        self.state_size = self.parts * config.num_layers * config.hidden_size

    @property
    def encoder_list(self) -> list[LeafEncoder]:
        return cast("list[LeafEncoder]", list(self.encoders))

    def forward(self, obs: Observations, state: Tensor) -> tuple[Tensor, Tensor]:
        """obs [L, R, …] per leaf, state [R, S] → features [L, R, F], state after the last step [R, S]."""
        parts = [encoder(leaf.flatten(0, 1)) for encoder, leaf in zip(self.encoder_list, obs, strict=True)]
        x = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        x = x.unflatten(0, obs[0].shape[:2])
        if self.core is None:
            return x, state
        rows = state.shape[0]
        # [R, parts·layers·H] → [parts, layers, R, H]: the row axis moves, nothing is reinterpreted.
        split = state.view(rows, self.parts, self.layers, -1).permute(1, 2, 0, 3).contiguous()
        if self.parts == 2:
            x, (h, c) = self.core(x, (split[0], split[1]))
            after = torch.stack([h, c])
        else:
            x, h = self.core(x, split[0])
            after = h.unsqueeze(0)
        return x, after.permute(2, 0, 1, 3).reshape(rows, -1)


class ActorCritic(nn.Module):
    """One trunk for both heads, or one each (`separate_critic`); state-independent log standard deviation."""

    def __init__(self, config: TrainConfig, observation: ObservationSpec, distribution: Distribution) -> None:
        super().__init__()
        self.observation = observation
        trunks = 2 if config.separate_critic else 1
        trunk_type = Trunk if config.network is None else CustomNetwork
        self.trunks = nn.ModuleList(trunk_type(config, observation) for _ in range(trunks))
        features = self.trunk_list[0].features
        self.policy_head = orthogonal(nn.Linear(features, distribution.num_outputs), 0.01)
        self.value_head = orthogonal(nn.Linear(features, 1), 1.0)
        free = distribution.num_params - distribution.num_outputs
        self.log_std = nn.Parameter(torch.full((free,), config.log_std_init)) if free else None
        self.state_size = trunks * self.trunk_list[0].state_size

    @property
    def trunk_list(self) -> list[Trunk | CustomNetwork]:
        """The actor's trunk first; the critic's last (the same one where they share)."""
        return cast("list[Trunk | CustomNetwork]", list(self.trunks))

    def forward(self, obs: Observations, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rows of observations to what the loss needs.

        Args:
            obs: [L, R, …] per leaf, time first; state: [R, S], before the first step.

        Returns:
            (policy parameters [L, R, P], values [L, R], state after the last step [R, S]).
        """
        states = state.chunk(len(self.trunks), -1)
        shown = obs[:-1] if self.observation.masked else obs
        through = [trunk(shown, s.contiguous()) for trunk, s in zip(self.trunks, states, strict=True)]
        params = self.policy_head(through[0][0])
        if self.log_std is not None:
            params = torch.cat([params, self.log_std.expand(*params.shape[:-1], -1)], -1)
        if self.observation.masked:
            params = mask_logits(params, obs[-1])
        values = self.value_head(through[-1][0]).squeeze(-1)
        return params, values, torch.cat([after for _, after in through], -1)


def parameter_offsets(model: nn.Module) -> tuple[list[int], int]:
    """Where each parameter begins in a flat vector, in `model.parameters()` order, and the vector's length P."""
    offsets, end = [], 0
    for parameter in model.parameters():
        offsets.append(end)
        end += -(-parameter.numel() // _FLOATS) * _FLOATS
    return offsets, end


def views_of(flat: Tensor, model: nn.Module) -> list[Tensor]:
    """The parts of a flat vector [P] in the shapes of the model's parameters."""
    offsets, _ = parameter_offsets(model)
    return [
        flat[offset : offset + parameter.numel()].view(parameter.shape)
        for offset, parameter in zip(offsets, model.parameters(), strict=True)
    ]


def move_parameters(model: nn.Module, flat: Tensor, *, keep: bool) -> None:
    """Make the model's parameters views of `flat` [P]; `keep` copies their present values there first."""
    for parameter, view in zip(model.parameters(), views_of(flat, model), strict=True):
        if keep:
            view.copy_(parameter.detach())
        parameter.data = view


def weights_sha256(tensors: Iterable[Tensor]) -> str:
    """SHA-256 over float32 parameters, in the order given (a state dict's), little-endian, row-major."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().to("cpu", torch.float32).contiguous().numpy().tobytes())
    return digest.hexdigest()


def build_model(config: TrainConfig, observation: ObservationSpec, distribution: Distribution) -> ActorCritic:
    """The network with the initial weights of this seed; draws nothing from torch's global generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return ActorCritic(config, observation, distribution)


def model_without_memory(config: TrainConfig, observation: ObservationSpec, distribution: Distribution) -> ActorCritic:
    """The network's shapes, without numbers in them."""
    with torch.device("meta"):
        return ActorCritic(config, observation, distribution)


def parameter_shapes(
    config: TrainConfig, observation: ObservationSpec, distribution: Distribution
) -> dict[str, tuple[int, ...]]:
    """Shape of every parameter of the network, by name."""
    return {
        name: tuple(tensor.shape)
        for name, tensor in model_without_memory(config, observation, distribution).state_dict().items()
    }
