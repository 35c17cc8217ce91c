"""Export one step of a policy as C99: a source file and a header that need no library and no memory from the heap.

The functions are those of the kernels for one lane, so the numbers are those of `load_policy`, bit for bit.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from shmppo.errors import ConfigError
from shmppo.kernels import Layer, constant_names
from shmppo.kernels.c_source import forward_source
from shmppo.models.native import NativeNetwork, uses_kernels
from shmppo.policies.policy import TrainedPolicy
from shmppo.spaces.distributions import MASKED
from shmppo.spaces.normalization import leaf_statistics
from shmppo.spaces.observations import Leaf
from shmppo.utils.files import write_file

TEST_STEPS = 16
TYPES = {"float32": "float", "int32": "int32_t", "uint8": "uint8_t"}
_TEMPLATES = Path(__file__).parent / "templates"
_INDENT = "\n    "
_KEYWORD = re.compile(
    "and|asm|auto|bool|break|case|catch|char|class|const|continue|default|delete|do|double|else|enum|explicit|"
    "export|extern|false|float|for|friend|goto|if|inline|int|long|mutable|namespace|new|not|operator|or|private|"
    "protected|public|register|restrict|return|short|signed|sizeof|static|struct|switch|template|this|throw|true|"
    "try|typedef|typeid|typename|union|unsigned|using|virtual|void|volatile|while|xor"
)
"""Words of C and C++ that cannot be names."""
_READ = """static float weights[{name}_WEIGHTS];
    FILE *file = fopen("{file}.bin", "rb");
    if (!file || fread(weights, sizeof weights, 1, file) != 1) return puts("{file}.bin cannot be read"), 1;"""


class CPolicy:
    """The statements of a step of a policy, and the constants and the memory that they need.

    Attributes:
        statements: of a step, from the observation to the action.
        weights: the constants.
        scratch: floats of memory.
        actions: type and expression of each number of an action.
    """

    def __init__(self, trained: TrainedPolicy) -> None:
        """Write the statements."""
        config, observation = trained.config, trained.task.observation
        self._model, self._leaves, self._hidden = trained.model, observation.leaves, config.hidden_indices
        self._idles = config.has_idle_steps  # then the mask may allow nothing
        self._names: list[str] = []
        for name in map(_identifier, trained.input_names):
            self._names.append(
                f"{name}_{len(self._names)}" if name in self._names or _KEYWORD.fullmatch(name) else name
            )
        self._distribution = trained.task.distribution
        self._obs = [np.zeros((1, *leaf.shape), leaf.dtype) for leaf in self._leaves]
        moments = trained.obs_mean, trained.obs_scale
        statistics = leaf_statistics(observation.normalized_slices, *moments, config.normalize_obs)
        state = np.zeros((1, trained.model.state_size), np.float32)
        self._network = NativeNetwork(
            trained.model, self._obs, statistics, row_count=1, sequences=1, state=state, variant="scalar"
        )
        self._network.load()
        self.weights: list[float] = []
        self.scratch = 0
        outputs = {"state->numbers": state, "out->params": self._network.params, "&out->value": self._network.values}
        self._places = {array.ctypes.data: (array.nbytes, text) for text, array in outputs.items()}
        """Of arrays by address: length in bytes, and expression."""
        self.actions = self._distribution.c_action("out->params")
        self.statements = [*self._inputs(), *map(self._layer, self._network.layers), *self._outputs()]

    @property
    def action_type(self) -> str:
        """The type of all numbers of an action."""
        types = {kind for kind, _ in self.actions}
        return types.pop() if len(types) == 1 else "double"

    def input_fields(self) -> list[str]:
        """Return the declarations of the parts of an observation."""
        seen = ((self._leaves[i], self._names[i]) for i in self._model.needed_leaves)
        return [f"    {TYPES[leaf.dtype]} {name}[{leaf.shape[0]}];" for leaf, name in seen]

    def _constant(self, numbers: np.ndarray) -> str:
        """Add constants, and return their address."""
        self.weights += numbers.reshape(-1).tolist()
        return f"weights + {len(self.weights) - numbers.size}"

    def _reserve(self, floats: int) -> str:
        """Reserve memory, and return its address."""
        self.scratch += floats
        return f"m + {self.scratch - floats}"

    def _place(self, address: int) -> str:
        """Return the expression of an address of the network's memory."""
        for begin, (size, text) in self._places.items():
            if begin <= address < begin + size:
                return f"{text} + {(address - begin) // 4}" if address > begin else text
        arrays = (*self._network.builder.kept, *self._obs)
        own = next(one for one in arrays if one.ctypes.data <= address < one.ctypes.data + one.nbytes)
        self._places[own.ctypes.data] = own.nbytes, self._reserve(own.size)
        return self._place(address)

    def _inputs(self) -> list[str]:
        """Return the statements that check the observation and write the inputs of the network."""
        text = []
        for i in self._model.needed_leaves:
            leaf, name = self._leaves[i], f"in->{self._names[i]}"
            loop = f"for (int i = 0; i < {leaf.shape[0]}; i++)"
            if leaf.kind == "vector":
                to = self._place(self._obs[i].ctypes.data)
                text += [f"{loop}", f"    if (!is_finite({name}[i])) return -1;", f"{loop} ({to})[i] = {name}[i];"]
                text += [f"({to})[{k}] = 0.0f; /* hidden */" for k in self._hidden if i == 0]
            elif leaf.kind in ("bits", "mask"):
                text += [f"{loop}", f"    if ({name}[i] > 1) return -1;"]
            text += [f"if (!memchr({name}, 1, {leaf.shape[0]})) return -1;"] * (leaf.kind == "mask" and not self._idles)
        for leaf, i, part in self._network.builder.conversions:
            name, to = f"in->{self._names[i]}", self._place(part.ctypes.data)
            if leaf.kind == "bits":
                text.append(f"for (int i = 0; i < {leaf.shape[0]}; i++) ({to})[i] = (float){name}[i];")
                continue
            text.append(f"memset({to}, 0, {4 * leaf.input_size});")
            for k, (size, begin) in enumerate(zip(leaf.sizes, np.cumsum([0, *leaf.sizes]).tolist(), strict=False)):
                text.append(f"if ({name}[{k}] < 0 || {name}[{k}] >= {size}) return -1;")
                text.append(f"({to})[{begin} + {name}[{k}]] = 1.0f;")
        return text

    def _layer(self, layer: Layer) -> str:
        """Return the statements that compute a layer."""
        kinds, activations, results, _ = constant_names()
        kind = kinds[layer.kind]
        fields = {
            "kind": kind.upper(), "activation": activations[layer.activation].upper(), "inputs": layer.inputs,
            "outputs": layer.outputs, "into_y": results[layer.into_y].upper(), "writes_state": layer.writes_state,
            "x.at": self._place(layer.x.at), "y.at": self._place(layer.y.at),
        }  # fmt: skip
        fields |= {f"state[{k}].at": self._place(rows.at) for k, rows in enumerate(layer.state) if rows.at}
        read = {
            "input": {"weight": layer.inputs, "bias": layer.inputs}, "linear": {"bias": layer.outputs},
            "gru": {"state_bias": 3 * layer.outputs}, "scan": {"weight": layer.outputs // 2 * 3},
            "delay": {"bias": layer.outputs // layer.inputs},
        }.get(kind, {})  # fmt: skip
        address, kernels = ctypes.addressof(layer), self._network.kernels
        for name, size in (read | {"packed": kernels.packed_size(address)}).items():
            if (at := getattr(layer, name)) and size:
                constant = self._constant(np.frombuffer(ctypes.string_at(at, 4 * size), np.float32))
                fields[name] = f"(float *)({constant})" if name == "packed" else constant
        if memory := kernels.memory_size(address, 1, 1):
            fields["memory"] = self._reserve(memory)
        assignments = [f"l.{name} = {value};" for name, value in fields.items()]
        return _INDENT.join(["memset(&l, 0, sizeof l);", *assignments, f"{kind}_forward(&l, &batch);"])

    def _outputs(self) -> list[str]:
        """Return the statements that complete the parameters of the distribution and write the action."""
        text, first = [], self._distribution.num_outputs
        if self._model.log_std is not None:
            numbers = self._network.params[0, first:].copy()
            text.append(f"memcpy(out->params + {first}, {self._constant(numbers)}, {numbers.nbytes});")
        if self._model.has_mask:
            text.append(f"for (int i = 0; i < {first}; i++)")
            text.append(f"    if (!in->{self._names[-1]}[i]) out->params[i] = {MASKED}f;")
        kind = self.action_type
        return text + [f"out->action[{k}] = ({kind})({own}){code};" for k, (own, code) in enumerate(self.actions)]

    def test_steps(self) -> list[str]:
        """Act in TEST_STEPS steps, and return the observations and outputs as initializers."""
        generator, network, seen = np.random.default_rng(0), self._network, self._model.needed_leaves
        steps = []
        for _ in range(TEST_STEPS):
            for i in seen:
                self._obs[i][0] = example_of(self._leaves[i], generator)
            given = [self._obs[i][0].copy() for i in seen]
            self._obs[0][0, list(self._hidden)] = 0
            network.forward()
            (action,) = self._distribution.to_env(self._distribution.mode(network.params))
            outputs = [_flat(action), network.params[0], *[network.values[0, 0]] * (self._model.value_head is not None)]
            steps.append(f"{{{_initializer(given)}, {_initializer(outputs)}}},")
        return steps


def export_c(trained: TrainedPolicy, path: Path, *, binary: bool = False) -> None:
    """Write the source, its header beside it, and with `binary` also the weights.

    Args:
        path: of the source. Its name without the suffix is the prefix of all names.
        binary: write the weights to a file of float32 in little-endian order, instead of into the source.

    Raises:
        ConfigError: if the policy has a part that this source cannot express.
    """
    observation, config, has_value = trained.task.observation, trained.config, trained.model.value_head is not None
    leaves = [observation.leaves[i] for i in trained.model.needed_leaves]
    reasons = {
        "it cannot encode images": any(leaf.kind == "image" for leaf in leaves),
        "a part of the observation is empty": not all(leaf.input_size for leaf in leaves),
        "it has no core gtrxl": config.core == "gtrxl",
        "torch computes the network, or its --encoder": trained.model.has_torch_encoders
        or not uses_kernels(config, trained.model),
    }
    for reason in (reason for reason, holds in reasons.items() if holds):
        raise ConfigError(f"--format c is not possible, because {reason}; use --format onnx")
    policy, name = CPolicy(trained), _identifier(path.stem)
    weights = np.array(policy.weights, "<f4")
    code = "".join(policy.statements)
    arguments = f"{name}_state *state, const {name}_input *in, {name}_output *out"
    defined = f"static const float weights[{len(weights)}] = {{\n{_lines(weights)}\n}};\n"
    results = ("action", "params", "value") if has_value else ("action", "params")
    steps, note = policy.test_steps(), f"/* float32 numbers in {path.stem}.bin, little-endian */"
    texts = {
        "name": name, "file": path.stem, "iteration": trained.iteration,
        "env": re.sub(r"[^\w:./-]", "?", config.env_id, flags=re.ASCII),  # it may contain code
        "arguments": f"const float *weights, {arguments}" if binary else arguments,
        "inputs": "\n".join(policy.input_fields()), "states": trained.model.state_size or 1,
        "action_type": policy.action_type, "actions": len(policy.actions),
        "params": trained.task.distribution.num_params, "value": f"{_INDENT}float value;" if has_value else "",
        "binary": f"\n#define {name}_WEIGHTS {len(weights)} {note}\n" if binary else "",
        "kernels": forward_source({"is_finite", *re.findall(r"\b[a-z]\w+(?=\()", code)}),
        "constants": "" if binary else defined, "scratch": policy.scratch or 1,
        "statements": _INDENT.join(policy.statements),
        "test_count": TEST_STEPS, "test_steps": _INDENT.join(steps),
        "test_arguments": f"{'weights, ' * binary}&state, &steps[t].in, &out",
        "test_differs": " || ".join(f"memcmp(&out.{one}, &steps[t].out.{one}, sizeof out.{one})" for one in results),
        "test_read": _READ.format(name=name, file=path.stem) if binary else "",
    }  # fmt: skip
    for suffix in (".c", ".h"):
        template = Template((_TEMPLATES / f"policy{suffix}").read_text(encoding="utf-8"))
        write_file(path.with_suffix(suffix), template.substitute(texts).encode())
    if binary:
        write_file(path.with_suffix(".bin"), weights.tobytes())


def _identifier(text: str) -> str:
    """Return a text as a part of a name in C."""
    return re.sub(r"^(?=\d)|\W", "_", text, flags=re.ASCII)


def _lines(numbers: np.ndarray) -> str:
    """Return numbers as C constants that keep all bits, a few in each line."""
    texts = [_number(number) for number in numbers]
    return "\n".join(f"    {', '.join(texts[i : i + 6])}," for i in range(0, len(texts), 6))


def _number(x: Any) -> str:
    return f"{x:.8e}f" if isinstance(x, np.float32) else str(x.item() if isinstance(x, np.generic) else x)


def _initializer(parts: Sequence[Any]) -> str:
    """Return the initializer of a structure of arrays and numbers."""
    texts = (f"{{{', '.join(map(_number, part))}}}" if np.ndim(part) else _number(part) for part in parts)
    return f"{{{', '.join(texts)}}}"


def _flat(action: Any) -> list[Any]:
    """Return the numbers of an action of the environment, whose parts may have parts."""
    if isinstance(action, (dict, tuple)):
        parts = action.values() if isinstance(action, dict) else action
        return [number for part in parts for number in _flat(part)]
    return [*np.asarray(action).reshape(-1)]


def example_of(leaf: Leaf, generator: np.random.Generator) -> np.ndarray:
    """Return an observation for a test."""
    if leaf.kind == "vector":
        return generator.standard_normal(leaf.shape, np.float32)
    if leaf.kind == "codes":
        return generator.integers(0, leaf.sizes)
    if leaf.kind == "image":
        return generator.integers(0, leaf.max_value, leaf.shape, endpoint=True)
    bits = generator.integers(0, 2, leaf.shape)
    bits[0] |= leaf.kind == "mask"  # at least one action is allowed
    return bits
