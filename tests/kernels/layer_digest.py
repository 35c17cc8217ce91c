"""Run layers of each kind forward and backward with odd sizes, and print a hash of all that they write.

    python layer_digest.py LIBRARY VARIANT

Torch is not imported, so this also runs under a sanitizer or an emulator. Every array has its own memory of the exact
size. Rows of inputs and outputs are parts of wider rows.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import sys
from pathlib import Path

import numpy as np

import shmppo.kernels
from shmppo.kernels import Batch, Kernels, Layer, Rows, constants, rows

LAYERS = ("input", "linear", "layer_norm", "lstm", "gru", "scan", "delay")
SIZES = ((1, 1), (3, 2), (17, 33), (32, 64), (67, 5), (270, 49))
"""Inputs and outputs of layers."""
SHARDS = 3
LOG = 3
LENGTHS = ((1,), (1,) * 7, (5, 3, 3, 1), (41, 40, 39, 30, 2))
"""Lengths of the sequences of a batch, the longest first."""


def run(
    kernels: Kernels,
    kind: str,
    sizes: tuple[int, int],
    lengths: tuple[int, ...],
    option: int,
    trains: bool,
    bf16: bool = False,
    scale: float = 1.0,
) -> list[np.ndarray]:
    """Run one layer, and return all that it writes.

    Args:
        option: decides the activation and what is done with the results.
        scale: of all numbers that the layer reads.
    """
    generator = np.random.default_rng([*sizes, *lengths])

    def numbers(*shape: int) -> np.ndarray:  # sums and products of integers are the same on each processor
        return (generator.integers(-999, 1000, shape) * np.float32(scale / 999)).astype(np.float32)

    inputs, outputs = sizes
    inputs = {"input": outputs, "layer_norm": outputs, "scan": 2 * outputs, "delay": 8}.get(kind, inputs)
    outputs *= {"scan": 2, "delay": 8}.get(kind, 1)
    active = np.array([np.sum(np.array(lengths) > t) for t in range(max(lengths))], np.int32)
    count, sequences, unit = int(active.sum()), len(lengths), sizes[1]
    stride = 0 if kind == "delay" else 3  # the rows of a delay are adjacent
    x, by_x = numbers(count, inputs + 3), numbers(count, inputs + 3)
    y, by_y = numbers(count, outputs + stride), numbers(count, outputs + stride)
    part = outputs if kind == "delay" else unit
    state = numbers(sequences, 2 * part + 1)
    weights, vectors = {
        "linear": ((outputs, inputs), (outputs,)), "layer_norm": ((outputs,), (outputs,)),
        "lstm": ((4 * unit, inputs), (4 * unit,)), "gru": ((3 * unit, inputs), (3 * unit,)),
        "scan": ((3 * unit,), (1,)), "delay": ((unit, unit), (unit,)), "input": ((outputs,), (outputs,)),
    }[kind]  # fmt: skip
    shapes = {"weight": weights, "bias": vectors, "state_weight": (weights[0], unit), "state_bias": (weights[0],)}
    values = {name: numbers(*shape) * np.float32(0.3) for name, shape in shapes.items()}
    width = 3 * unit if kind == "scan" else max(array.size for array in values.values()) + 5
    results = {f"by_{name}": np.full((SHARDS + 1, width), 7, np.float32) for name in shapes}
    layer = Layer(
        kind=constants()[kind], activation=option % 3, inputs=inputs, outputs=outputs, trains=trains, bf16=bf16,
        into_y=constants()["add" if kind == "linear" and option == 1 else "set"],
        into_by_x=constants()[("set", "add", "skip")[option if kind in ("linear", "lstm", "gru") else 0]],
        writes_state=len(active) == 1,
        x=rows(x), y=rows(y), by_x=rows(by_x), by_y=rows(by_y),
        state=(Rows * 2)(rows(state[:, :part]), rows(state[:, part : 2 * part])),
        **{name: array.ctypes.data for name, array in (values | results).items()},
    )  # fmt: skip
    packed = np.zeros(kernels.packed_size(ctypes.addressof(layer)), np.float32)
    memory = np.zeros(kernels.memory_size(ctypes.addressof(layer), count, sequences), np.float32)
    layer.packed, layer.memory = packed.ctypes.data, memory.ctypes.data
    shard = generator.integers(0, 2, count) * 2  # the middle one is empty
    order, bounds = np.argsort(shard, kind="stable"), np.array([0, *(np.sum(shard <= s) for s in range(SHARDS))])
    index = generator.integers(0, count, count)
    batch = Batch(
        rows=count, steps=len(active), sequences=sequences, active=active.ctypes.data, index=index.ctypes.data,
        shards=SHARDS, first_shard=1, order=order.ctypes.data, bounds=bounds.ctypes.data, gradient_stride=width,
    )  # fmt: skip
    kernels.load_weights(ctypes.byref(layer), 1)
    kernels.forward(ctypes.byref(layer), 1, ctypes.byref(batch))
    written = [y.copy(), state.copy()]
    if not trains:
        return written
    kernels.backward(ctypes.byref(layer), 1, ctypes.byref(batch))
    for name, array in results.items() if kind != "scan" else ():
        assert (array[0] == 7).all(), "the shard before has changed"
        assert (array[:, values[name[3:]].size :] == 7).all(), "what follows a gradient has changed"
    return [*written, by_x, by_y, *results.values()]


def main(library: str, variant: str) -> None:
    shmppo.kernels._library_path = lambda: Path(library)  # type: ignore[assignment]
    kernels, digest = Kernels(variant), hashlib.sha256()
    for number, case in enumerate(itertools.product(LAYERS, SIZES, LENGTHS)):
        for trains in (True, False):
            for array in run(kernels, *case, number % 3, trains):
                assert np.isfinite(array).all(), case
                digest.update(array.tobytes())
        if case[0] not in ("linear", "lstm", "gru"):
            continue
        for scale in (1, 1e-19, 1e-38):  # products and numbers below the smallest normal one
            for array in run(kernels, *case, number % 3, True, True, scale):
                digest.update(array.tobytes())
    x = np.linspace(-100, 100, 1003, dtype=np.float32)
    for function in range(5):
        y, allowed = np.zeros_like(x), np.abs(x) + 0.01 if function == LOG else x
        kernels.apply_function(function, allowed.ctypes.data, y.ctypes.data, len(x))
        digest.update(y.tobytes())
    for count in range(40):
        digest.update(np.float64(kernels.norm(x.ctypes.data, count)).tobytes())
    print(digest.hexdigest())


if __name__ == "__main__":
    main(*sys.argv[1:])
