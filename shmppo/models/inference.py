"""Acting: the network of `model.py`, one step for a tile of environments, on preallocated memory.

A tile has a fixed number of rows B; environment n is always row n mod B. Rows that a process does not
own hold zeros. So each environment's numbers come from calls of one shape, at one row, whoever makes
them; `is_row_independent` checks that the other rows' contents then do not matter. Where a call of several
tiles gives the same bits, which `inference_batches` tries, a process acts for all of its tiles at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from shmppo.models.actor_critic import ActorCritic, Trunk
from shmppo.models.custom import CustomNetwork
from shmppo.models.distributions import Distribution, mask_logits
from shmppo.models.encoders import LeafEncoder, TanhLayers
from shmppo.models.observations import Leaf
from shmppo.utils.torch_utils import aligned_zeros

MOST_ROWS = 64  # of one call: more would not be cheaper per row


@dataclass(frozen=True)
class InferenceSlice:
    """What a range owns of a tile, or of several in one call: rows, and the same environments within the range."""

    index: int
    rows: slice
    own: slice


def inference_slices(low: int, high: int, rows: int) -> list[InferenceSlice]:
    """The tiles that environments low … high − 1 lie in, environment n being row n mod `rows`."""
    tiles = []
    for index, tile in enumerate(range(low // rows, (high - 1) // rows + 1)):
        begin, end = max(low, tile * rows), min(high, (tile + 1) * rows)
        tiles.append(
            InferenceSlice(index, slice(begin - tile * rows, end - tile * rows), slice(begin - low, end - low))
        )
    return tiles


class _Linear:
    """A linear layer laid out for inference: x @ weight + bias with the weight transposed and contiguous."""

    def __init__(self, rows: int, inputs: int, outputs: int, out: Tensor | None = None) -> None:
        self.weight = aligned_zeros(inputs, outputs)
        self.bias = aligned_zeros(outputs)
        self.out = aligned_zeros(rows, outputs) if out is None else out

    def load(self, weights: list[Tensor], biases: list[Tensor]) -> None:
        """Take over weights [outputs, part of inputs] side by side, and the sum of biases [outputs]."""
        torch.cat([w.t() for w in weights], out=self.weight)
        self.bias.copy_(biases[0])
        for bias in biases[1:]:
            self.bias.add_(bias)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight, out=self.out)


class _LstmCell:
    """One LSTM layer (gates i, f, g, o as in torch.nn.LSTM): both products in one matrix multiplication."""

    def __init__(self, rows: int, inputs: int, hidden: int) -> None:
        self.gates = _Linear(rows, inputs + hidden, 4 * hidden)
        self.joined = aligned_zeros(rows, inputs + hidden)
        self.input, self.previous = self.joined[:, :inputs], self.joined[:, inputs:]
        self.tanh_c = aligned_zeros(rows, hidden)
        out = self.gates.out
        self.if_gates, self.i, self.f = out[:, : 2 * hidden], out[:, :hidden], out[:, hidden : 2 * hidden]
        self.g, self.o = out[:, 2 * hidden : 3 * hidden], out[:, 3 * hidden :]

    def load(self, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor) -> None:
        self.gates.load([w_ih, w_hh], [b_ih, b_hh])

    def step(self, x: Tensor, h: Tensor, c: Tensor) -> None:
        """x [B, inputs]; h and c [B, H] are advanced in place."""
        self.input.copy_(x)
        self.previous.copy_(h)
        self.gates(self.joined)
        self.if_gates.sigmoid_()
        self.g.tanh_()
        self.o.sigmoid_()
        c.mul_(self.f).addcmul_(self.i, self.g)
        torch.tanh(c, out=self.tanh_c)
        torch.mul(self.o, self.tanh_c, out=h)


class _GruCell:
    """One GRU layer (gates r, z, n as in torch.nn.GRU)."""

    def __init__(self, rows: int, inputs: int, hidden: int) -> None:
        self.from_input = _Linear(rows, inputs, 3 * hidden)
        self.from_state = _Linear(rows, hidden, 3 * hidden)
        self.hidden = hidden
        self.input = aligned_zeros(rows, inputs)
        self.previous = aligned_zeros(rows, hidden)

    def load(self, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor) -> None:
        self.from_input.load([w_ih], [b_ih])
        self.from_state.load([w_hh], [b_hh])

    def step(self, x: Tensor, h: Tensor) -> None:
        """x [B, inputs]; h [B, H] is advanced in place."""
        self.input.copy_(x)
        self.previous.copy_(h)
        by_input = self.from_input(self.input)
        by_state = self.from_state(self.previous)
        gated = 2 * self.hidden
        rz = by_input[:, :gated].add_(by_state[:, :gated]).sigmoid_()
        r, z = rz[:, : self.hidden], rz[:, self.hidden :]
        n = by_input[:, gated:].addcmul_(r, by_state[:, gated:]).tanh_()
        torch.sub(self.previous, n, out=self.previous)
        torch.addcmul(n, z, self.previous, out=h)  # h' = n + z·(h − n)


class _VectorStep:
    """A vector's tanh layers."""

    def __init__(self, layers: TanhLayers, rows: int) -> None:
        self.layers = layers
        self.linears = [_Linear(rows, layer.in_features, layer.out_features) for layer in layers.linear_list]

    def load(self) -> None:
        for linear, layer in zip(self.linears, self.layers.linear_list, strict=True):
            linear.load([layer.weight], [layer.bias])

    def __call__(self, x: Tensor) -> Tensor:
        for linear in self.linears:
            x = linear(x).tanh_()
        return x


class _EncoderStep:
    """Any other encoder: the learning network's own module, on its own weights, which rest while we act."""

    def __init__(self, encoder: LeafEncoder) -> None:
        self.encoder = encoder

    def load(self) -> None:
        pass

    def __call__(self, stored: Tensor) -> Tensor:
        return self.encoder(stored)


def _encoder_step(encoder: LeafEncoder, rows: int) -> _VectorStep | _EncoderStep:
    layers = encoder.network
    if encoder.leaf.kind == "vector" and isinstance(layers, TanhLayers) and not layers.normalized:
        return _VectorStep(layers, rows)
    return _EncoderStep(encoder)


class _TrunkStep:
    """One trunk: encoders, then the layers of its core, over a slice of each tile's packed state."""

    def __init__(self, trunk: Trunk, states: Tensor) -> None:
        """states: [tiles, B, S of this trunk], advanced in place."""
        self.trunk = trunk
        tiles, rows, _ = states.shape
        self.encoders = [_encoder_step(encoder, rows) for encoder in trunk.encoder_list]
        self.encoded = aligned_zeros(rows, trunk.encoded)
        self.cells: list[_LstmCell | _GruCell] = []
        self.states: list[list[list[Tensor]]] = [[] for _ in range(tiles)]  # per tile, layer and part: [B, H]
        if trunk.core is None:
            return
        hidden, inputs = trunk.core.hidden_size, trunk.core.input_size
        cell_type = _LstmCell if trunk.parts == 2 else _GruCell
        for k in range(trunk.layers):
            self.cells.append(cell_type(rows, inputs if k == 0 else hidden, hidden))
            starts = [(part * trunk.layers + k) * hidden for part in range(trunk.parts)]
            for tile in range(tiles):
                self.states[tile].append([states[tile, :, start : start + hidden] for start in starts])

    def load(self) -> None:
        for encoder in self.encoders:
            encoder.load()
        for k, cell in enumerate(self.cells):
            names = (f"weight_ih_l{k}", f"weight_hh_l{k}", f"bias_ih_l{k}", f"bias_hh_l{k}")
            cell.load(*(getattr(self.trunk.core, name) for name in names))

    def __call__(self, obs: list[Tensor], tile: int) -> Tensor:
        if len(obs) == 1:
            x = self.encoders[0](obs[0])
        else:
            parts = [encoder(leaf) for encoder, leaf in zip(self.encoders, obs, strict=True)]
            x = torch.cat(parts, 1, out=self.encoded)
        for cell, state in zip(self.cells, self.states[tile], strict=True):
            cell.step(x, *state)
            x = state[0]
        return x


class _UserStep:
    """A trunk that is the user's own: the learning network's module, one step at a time."""

    def __init__(self, trunk: CustomNetwork, states: Tensor) -> None:
        """states: [tiles, B, S of this trunk], advanced in place."""
        self.trunk = trunk
        self.states = list(states)

    def load(self) -> None:
        pass

    def __call__(self, obs: list[Tensor], tile: int) -> Tensor:
        state = self.states[tile]
        features, after = self.trunk([leaf.unsqueeze(0) for leaf in obs], state.contiguous())
        state.copy_(after)
        return features[0]


class ActingNetwork:
    """The network as acted with, for `tiles` tiles of B rows. `load` takes the weights over, once per publish.

    Attributes:
        obs: per leaf, [tiles, B, …]: vectors normalized, the others as stored, written by the caller.
        state: [tiles, B, S] packed recurrent states, advanced by `step`.
        params: [B, P] policy parameters and
        values: [B, 1] values of the tile stepped last.
    """

    def __init__(self, model: ActorCritic, distribution: Distribution, *, tiles: int, rows: int) -> None:
        self._model = model
        self.distribution = distribution
        self.leaves = model.observation.leaves
        self.obs = [aligned_zeros(tiles, rows, *leaf.shape, dtype=getattr(torch, leaf.dtype)) for leaf in self.leaves]
        self.state = aligned_zeros(tiles, rows, model.state_size)
        trunks = model.trunk_list
        size = model.state_size // len(trunks)
        parts = [self.state[:, :, i * size : (i + 1) * size] for i in range(len(trunks))]
        self._trunks = [
            (_UserStep(trunk, part) if isinstance(trunk, CustomNetwork) else _TrunkStep(trunk, part))
            for trunk, part in zip(trunks, parts, strict=True)
        ]
        shown = len(model.observation.shown)
        self._obs_of = [[leaf[tile] for leaf in self.obs[:shown]] for tile in range(tiles)]
        self._masks = list(self.obs[-1]) if model.observation.masked else None
        # One memory for value, outputs and state-independent parameters: heads of one trunk are one product.
        outputs, features = distribution.num_outputs, trunks[0].features
        heads = aligned_zeros(rows, 1 + distribution.num_params)
        self.values, self.params = heads[:, :1], heads[:, 1:]
        self._free = heads[:, 1 + outputs :]
        if len(trunks) == 1:
            self._heads = [_Linear(rows, features, 1 + outputs, out=heads[:, : 1 + outputs])]
        else:
            policy = _Linear(rows, features, outputs, out=heads[:, 1 : 1 + outputs])
            self._heads = [policy, _Linear(rows, features, 1, out=self.values)]

    @torch.inference_mode()
    def load(self) -> None:
        """Take over the model's present weights."""
        model = self._model
        for step in self._trunks:
            step.load()
        policy, value = model.policy_head, model.value_head
        if len(self._heads) == 1:
            self._heads[0].weight.copy_(torch.cat([value.weight, policy.weight]).t())
            self._heads[0].bias.copy_(torch.cat([value.bias, policy.bias]))
        else:
            for linear, head in zip(self._heads, (policy, value), strict=True):
                linear.load([head.weight], [head.bias])
        if model.log_std is not None:
            self._free.copy_(model.log_std.expand_as(self._free))

    def step(self, tile: int) -> None:
        """One forward pass of a tile: reads `obs[…][tile]`, advances `state[tile]`, fills `params` and `values`.

        To be called in inference mode.
        """
        obs = self._obs_of[tile]
        for trunk, head in zip(self._trunks, self._heads, strict=True):
            head(trunk(obs, tile))
        if self._masks is not None:
            self.params.copy_(mask_logits(self.params, self._masks[tile]))


def _random_leaf(leaf: Leaf, rows: int, generator: torch.Generator) -> Tensor:
    """Values of a leaf as an acting network is given them, [rows, …]."""
    if leaf.kind == "vector":
        return torch.randn(rows, *leaf.shape, generator=generator)
    limit = {"codes": min(leaf.sizes, default=1), "bits": 2, "mask": 2, "image": leaf.largest + 1}[leaf.kind]
    return torch.randint(0, limit, (rows, *leaf.shape), generator=generator).to(getattr(torch, leaf.dtype))


def _random_inputs(network: ActingNetwork, rows: int) -> list[Tensor]:
    """Observations per leaf [rows, …], states [rows, S] and noise for the actions [rows, noise size]."""
    generator = torch.Generator().manual_seed(0)
    obs = [_random_leaf(leaf, rows, generator) for leaf in network.leaves]
    state = torch.randn(rows, network.state.shape[-1], generator=generator).tanh()
    return [*obs, state, torch.randn(rows, network.distribution.noise_size, generator=generator)]


@torch.inference_mode()
def _tried(network: ActingNetwork, inputs: list[Tensor], rows: slice) -> Tensor:
    """Parameters, values, states and actions [R, …] of these rows, all others being zero, on the last tile."""
    tile, noise = len(network.state) - 1, torch.zeros_like(inputs[-1])
    memory = (*network.obs, network.state)
    for stored, given in zip(memory, inputs[:-1], strict=True):
        stored[tile].zero_()
        stored[tile, rows] = given[rows]
    noise[rows] = inputs[-1][rows]
    network.step(tile)
    actions = network.distribution.sample(network.params, noise)
    outputs = torch.cat([network.params, network.values, network.state[tile], actions], 1)[rows].clone()
    for stored in memory:
        stored[tile].zero_()
    return outputs


def is_row_independent(network: ActingNetwork) -> bool:
    """Whether each row's outputs are the same bits when all other rows are zero (tried on the last tile).

    This is what lets any worker own any part of a tile; it is checked at start on the layers in use.
    """
    rows = network.state.shape[1]
    inputs = _random_inputs(network, rows)
    whole = _tried(network, inputs, slice(None))
    return all(torch.equal(whole[i : i + 1], _tried(network, inputs, slice(i, i + 1))) for i in range(rows))


def is_batch_size_invariant(network: ActingNetwork, narrow: ActingNetwork) -> bool:
    """Whether each row's outputs are the same bits from `narrow`, which has fewer; both loaded, not with zeros."""
    rows, width = network.state.shape[1], narrow.state.shape[1]
    inputs = _random_inputs(network, rows)
    whole = _tried(network, inputs, slice(None))
    parts = [_tried(narrow, [one[i : i + width] for one in inputs], slice(None)) for i in range(0, rows, width)]
    return bool(network.values.any()) and torch.equal(whole, torch.cat(parts))


def inference_batches(
    model: ActorCritic, distribution: Distribution, low: int, high: int, tile: int
) -> tuple[list[InferenceSlice], int]:
    """How environments low … high − 1 are acted for: their part of each call, and the calls' rows B.

    A call is of one tile, or of several next to each other if that changes no bit of any row; it is tried, with the
    model's present weights.
    """
    begin = low - low % tile
    tiles = -(-(high - begin) // tile)
    calls = -(-tiles * tile // MOST_ROWS)
    rows = -(-tiles // calls) * tile
    if rows > tile:
        networks = [ActingNetwork(model, distribution, tiles=1, rows=width) for width in (rows, tile)]
        for network in networks:
            network.load()
        if not is_batch_size_invariant(*networks):
            rows = tile
    return inference_slices(low - begin, high - begin, rows), rows
