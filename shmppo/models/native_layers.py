"""The layers of an actor-critic for the kernels: which memory each reads and writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from torch import Tensor, nn

from shmppo.config.options import ATTENTION_HEADS
from shmppo.kernels import Layer, Rows, constants, rows
from shmppo.kernels.functions import lru_factors
from shmppo.models.actor_critic import ActorCritic, Trunk, parameter_offsets
from shmppo.models.encoders import Encoder, Mlp, is_linear
from shmppo.models.gtrxl import Gtrxl, GtrxlLayer, linears
from shmppo.models.lmu import SIGNALS, Lmu, LmuLayer
from shmppo.models.lru import Lru, LruLayer
from shmppo.spaces.observations import Leaf

Statistics = Sequence[tuple[np.ndarray, np.ndarray] | None]
"""For each leaf, the mean and the scale that normalize it; None: it is not normalized."""


class Scan:
    """The factors of a layer of the core `lru`.

    Attributes:
        factors: [3 H]: Re λ, Im λ, and γ.
        by_factors: [shards, 3 H], the derivatives of the loss with respect to them.
    """

    def __init__(self, layer: LruLayer, shards: int) -> None:
        self.log_decay, self.log_phase = layer.log_decay, layer.log_phase
        self.factors = np.zeros(3 * layer.hidden, np.float32)
        self.by_factors = np.zeros((shards, 3 * layer.hidden), np.float32)
        self._derivatives = np.zeros((5, layer.hidden), np.float32)

    def load(self) -> None:
        """Compute the factors from the current parameters."""
        parameters = self.log_decay.detach().numpy(), self.log_phase.detach().numpy()
        lru_factors(*parameters, self.factors, self._derivatives)

    def gradients(self, shard: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the gradients of a shard with respect to log_decay and to log_phase, [H] each."""
        by_real, by_imaginary, by_gamma = self.by_factors[shard].reshape(3, -1)
        d = self._derivatives
        return by_real * d[0] + by_imaginary * d[1] + by_gamma * d[2], by_real * d[3] + by_imaginary * d[4]


class TorchPart(NamedTuple):
    """The output of an encoder that torch computes."""

    encoder: nn.Module
    seen: Sequence[int]
    """Indices of the leaves that its trunk sees."""
    out: np.ndarray
    """[R, F], to be written."""
    by_out: np.ndarray | None
    """[R, F], the derivatives of the loss, which the backward pass writes. None: there is none."""

    def compute(self, obs: Sequence[Tensor]) -> Tensor:
        """Compute the output for some rows. obs: [rows, …] for each leaf of the observation; vectors normalized."""
        result: Tensor = self.encoder([obs[i] for i in self.seen])
        return result


class LayerBuilder:
    """Appends layers in the order of the forward pass, and allocates their outputs.

    Attributes:
        layers: the layers so far. Addresses of gradients are those of shard 0.
        kept: memory that only the addresses in layers refer to.
        conversions: leaves whose network input Python writes, with their index and the memory to write.
        offsets: offset of each parameter in a row of `gradients`, by its id.
        scans: layers of the core `lru`.
        torch_parts: outputs that torch writes before each forward pass.
    """

    def __init__(self, model: ActorCritic, row_count: int, state: np.ndarray, gradients: np.ndarray | None) -> None:
        """Start without layers.

        Args:
            row_count: rows of each output.
            state: [J, S], the recurrent states that layers read.
            gradients: [G, P], gradients of the parameters. None: there is no backward pass.
        """
        self.layers: list[Layer] = []
        self.kept: list[np.ndarray] = []
        self.conversions: list[tuple[Leaf, int, np.ndarray]] = []
        self.scans: list[Scan] = []
        self.torch_parts: list[TorchPart] = []
        self._row_count, self._state, self._gradients = row_count, state, gradients
        self.offsets = dict(zip(map(id, model.parameters()), parameter_offsets(model)[0], strict=True))
        self._derivatives: dict[int, np.ndarray] = {}  # of outputs, by their address
        self._readers: dict[int, Layer] = {}  # the last layer that reads an output, by its address

    def output(self, array: np.ndarray, derivatives: np.ndarray | None = None) -> np.ndarray:
        """Register an output [R, width], with its derivatives if there is a backward pass."""
        self.kept.append(array)
        if self._gradients is not None:
            self._derivatives[array.ctypes.data] = np.zeros_like(array) if derivatives is None else derivatives
        return array

    def derivatives_to_add_to(self, array: np.ndarray) -> np.ndarray:
        """Return the derivatives of an output, to which the backward pass will add. Append all readers first."""
        if (last := self._readers.get(array.ctypes.data)) is not None:  # it runs first, and would set them
            last.into_by_x = constants()["add"]
        return self._derivatives.get(array.ctypes.data, np.zeros_like(array))

    def _new(self, width: int) -> np.ndarray:
        return self.output(np.zeros((self._row_count, width), np.float32))

    def _add(self, kind: str, x: np.ndarray, y: np.ndarray, **fields: Any) -> None:
        """Append a layer that reads x and writes y. fields: of the layer."""
        layer = Layer(
            kind=constants()[kind], trains=self._gradients is not None, inputs=x.shape[1], outputs=y.shape[1],
            x=rows(x), y=rows(y), **{"into_y": constants()["set"]} | fields,
        )  # fmt: skip
        by_x, by_y = (self._derivatives.get(array.ctypes.data) for array in (x, y))
        if by_y is not None:
            layer.by_y = rows(by_y)
        if by_x is not None:
            layer.by_x, layer.into_by_x = rows(by_x), constants()["set"]
            self._read(x, layer)
        self.layers.append(layer)

    def _read(self, x: np.ndarray, layer: Layer) -> None:
        """Note that a layer reads x. The backward pass runs the last reader first, so the others add to its result."""
        if (earlier := self._readers.get(x.ctypes.data)) is not None:
            earlier.into_by_x = constants()["add"]
        self._readers[x.ctypes.data] = layer

    def _add_with_input(
        self, kind: str, x: np.ndarray, y: np.ndarray, part: int, own: np.ndarray, **fields: Any
    ) -> None:
        """Append a layer that reads the output `own` in place of a part of the state. The rest: see `_add`."""
        self._add(kind, x, y, **fields)
        layer = self.layers[-1]
        layer.state[part] = rows(own)
        if self._gradients is not None:
            layer.by_state = rows(self._derivatives[own.ctypes.data])
            self._read(own, layer)

    def _parameters(self, weight: Tensor, bias: Tensor | None, prefix: str = "") -> dict[str, int]:
        """Return the addresses of two parameters and of their gradients, as fields of a layer."""
        fields = {}
        for name, tensor in (("weight", weight), ("bias", bias)):
            if tensor is not None:
                fields[prefix + name] = tensor.data_ptr()
                if self._gradients is not None:
                    fields[f"by_{prefix}{name}"] = self._gradients.ctypes.data + 4 * self.offsets[id(tensor)]
        return fields

    def linear(
        self,
        x: np.ndarray,
        layer: nn.Linear,
        activation: str = "identity",
        *,
        out: np.ndarray | None = None,
        into: str = "set",
    ) -> np.ndarray:
        """Append a linear layer, and return its outputs.

        Args:
            out: array for the outputs. None: a new one.
            into: "set" to write the outputs, "add" to add them to what `out` contains.
        """
        y = self._new(layer.out_features) if out is None else out
        weights = self._parameters(layer.weight, layer.bias)
        self._add("linear", x, y, activation=constants()[activation], into_y=constants()[into], **weights)
        return y

    def encoder(
        self, trunk: Trunk, seen: Sequence[int], obs: Sequence[np.ndarray], statistics: Statistics
    ) -> np.ndarray:
        """Append the encoders of a trunk, and return their outputs. seen: indices of the leaves that the trunk sees."""
        x = np.zeros((self._row_count, trunk.encoded), np.float32)
        has_parameters = any(True for _ in trunk.encoders.parameters())
        (self.output if has_parameters else self.kept.append)(x)
        encoders = cast("list[Encoder]", list(trunk.encoders))
        for encoder, out in zip(encoders, self._parts(x, [encoder.features for encoder in encoders]), strict=True):
            leaves = [seen[i] for i in encoder.indices]
            if is_linear(encoder):
                self._linear_encoder(encoder, leaves, obs, statistics, out)
            else:
                by_out = self._derivatives.get(out.ctypes.data)
                by_out = by_out if by_out is None else by_out[:, : encoder.features]
                self.torch_parts.append(TorchPart(encoder, seen, out, by_out))
        return x

    def _linear_encoder(
        self,
        encoder: Encoder,
        leaves: Sequence[int],
        obs: Sequence[np.ndarray],
        statistics: Statistics,
        out: np.ndarray,
    ) -> None:
        """Append an encoder with linear layers only. out: its output."""
        network = cast(Mlp, encoder.network)
        layers = linears(network.linears)
        width = sum(leaf.input_size for leaf in encoder.leaves)
        x, begin = np.zeros((self._row_count, width), np.float32) if layers else out, 0
        self.kept.append(x)
        for leaf, i in zip(encoder.leaves, leaves, strict=True):
            part = x[:, begin : begin + leaf.input_size]
            begin += leaf.input_size
            if leaf.kind != "vector":
                self.conversions.append((leaf, i, part))
                continue
            self.kept += statistics[i] or ()
            names = dict(zip(("weight", "bias"), statistics[i] or (), strict=False))
            self._add("input", obs[i], part, **{name: array.ctypes.data for name, array in names.items()})
        for linear in layers:
            x = self.linear(x, linear, network.activation, out=out if linear is layers[-1] else None)

    def core(self, trunk: Trunk, x: np.ndarray, begin: int, writes_state: bool) -> np.ndarray:
        """Append the recurrent core of a trunk.

        Args:
            begin: column at which its states begin.
            writes_state: whether a batch of one step updates the states.
        """
        core, size = trunk.core, trunk.part_size
        if isinstance(core, Gtrxl):
            x = self.linear(x, core.into)
        for i in range(trunk.layers if core is not None else 0):
            starts = [begin + (part * trunk.layers + i) * size for part in range(trunk.parts)]
            state = (Rows * 2)(*(rows(self._state[:, start : start + size]) for start in starts))
            fields = {"state": state, "writes_state": writes_state}
            if isinstance(core, Lru):
                x = self._lru_layer(cast(LruLayer, core.layers[i]), x, fields)
            elif isinstance(core, Gtrxl):
                x = self._gtrxl_layer(cast(GtrxlLayer, core.layers[i]), x, fields)
            elif isinstance(core, Lmu):
                layer = cast(LmuLayer, core.layers[i])
                transition, into = layer.memory.transition.numpy(), layer.memory.into.numpy()
                self.kept += [transition, into]
                fields |= {"weight": transition.ctypes.data, "bias": into.ctypes.data}
                signals, memory = self.linear(x, layer.signals), self._new(SIGNALS * layer.memory.order)
                self._add("delay", signals, memory, **fields)
                y = self.linear(x, layer.from_input)
                x = self.linear(memory, layer.from_memory, "tanh", out=y, into="add")
            else:
                assert isinstance(core, (nn.LSTM, nn.GRU))
                names = [f"{name}_l{i}" for name in ("weight_ih", "bias_ih", "weight_hh", "bias_hh")]
                w_ih, b_ih, w_hh, b_hh = (getattr(core, name) for name in names)
                fields |= self._parameters(w_ih, b_ih) | self._parameters(w_hh, b_hh, "state_")
                y = self._new(core.hidden_size)
                self._add("lstm" if isinstance(core, nn.LSTM) else "gru", x, y, **fields)
                x = y
        return x

    def _lru_layer(self, layer: LruLayer, x: np.ndarray, fields: dict[str, Any]) -> np.ndarray:
        scan = Scan(layer, 1 if self._gradients is None else len(self._gradients))
        self.scans.append(scan)
        inputs, memory = self.linear(x, layer.into), self._new(2 * layer.hidden)
        fields |= {"weight": scan.factors.ctypes.data, "by_weight": scan.by_factors.ctypes.data}
        self._add("scan", inputs, memory, **fields)
        y = self.linear(x, layer.from_input)
        return self.linear(memory, layer.from_state, "tanh", out=y, into="add")

    def _gtrxl_layer(self, layer: GtrxlLayer, x: np.ndarray, fields: dict[str, Any]) -> np.ndarray:
        attention, hidden = layer.attention, x.shape[1]
        heads, size = ATTENTION_HEADS, attention.size
        n = self._normalized(x)
        queries = self._parts(self.linear(n, attention.query), [size] * heads)
        scores, mean, values = (self._new(heads * width) for width in (hidden + attention.window + 1, hidden, size))
        by_head = self._parts(scores, [hidden] * heads + [attention.window + 1] * heads)
        by_queries = zip(queries * 2, linears(attention.keys) + linears(attention.distances), by_head, strict=True)
        for query, linear, out in by_queries:
            self.linear(query, linear, out=out)
        self._add_with_input("attend", scores, mean, 1, n, heads=heads, **fields)
        means, by_head = self._parts(mean, [hidden] * heads), self._parts(values, [size] * heads)
        for part, linear, out in zip(means, linears(attention.values), by_head, strict=True):
            self.linear(part, linear, out=out)
        x = self._gate(x, self.linear(values, layer.after_attention, "relu"), layer.gate)
        y = self._normalized(x)
        for linear in linears(layer.linears):
            y = self.linear(y, linear, "relu")
        return self._gate(x, y, layer.second_gate)

    def _normalized(self, x: np.ndarray) -> np.ndarray:
        """Append a layer normalization."""
        y = self._new(x.shape[1])
        self._add("layer_norm", x, y)
        return y

    def _gate(self, x: np.ndarray, y: np.ndarray, gate: nn.GRUCell) -> np.ndarray:
        out = self._new(gate.hidden_size)
        fields = self._parameters(gate.weight_ih, gate.bias_ih)
        fields |= self._parameters(gate.weight_hh, gate.bias_hh, "state_")
        self._add_with_input("gate", y, out, 0, x, **fields)
        return out

    def _parts(self, array: np.ndarray, widths: Sequence[int]) -> list[np.ndarray]:
        """Divide an output into adjacent columns that other layers read or write."""
        borders, derivatives = np.cumsum(widths)[:-1], self._derivatives.get(array.ctypes.data)
        parts: list[np.ndarray] = np.split(array, borders, axis=1)
        if derivatives is not None:
            by_parts = np.split(derivatives, borders, axis=1)
            by_part = {part.ctypes.data: by for part, by in zip(parts, by_parts, strict=True)}
            self._derivatives = by_part | self._derivatives  # the first part begins where the whole output does
        return parts
