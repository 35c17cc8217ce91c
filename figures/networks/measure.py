"""Measure the time of the recurrent cores and of the encoders of images.

    python -m figures.networks.measure cores
    python -m figures.networks.measure encoders

cores: one thread computes the gradient of one recurrent layer with 128 units over 16 sequences. Writes cores.csv, where
the times are relative to torch.nn.LSTM. encoders: one thread encodes images of 84 × 84 pixels, 8 at a time for acting,
and 128 at a time with a backward pass. Writes encoders.csv. The functions are called in turn, and the times are CPU
times of the thread, so other load on the machine has less influence.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from typing import Any

import torch
from gymnasium import spaces
from shmppo.models.gru import Gru
from torch import Tensor, nn

from figures.common.command_line import script_parser
from figures.common.paths import FIGURES
from figures.common.tables import write_rows
from shmppo import TrainConfig
from shmppo.models.encoders import Encoder
from shmppo.models.lmu import Lmu, memory_size
from shmppo.models.lru import Lru
from shmppo.spaces.observations import observation_spec

FOLDER = FIGURES / "networks"
SEQUENCES, HIDDEN = 16, 128
LENGTHS = (16, 32, 64)
ENCODERS = ("nature", "a3c", "impala")
SIDE, ACTING_IMAGES, LEARNING_IMAGES = 84, 8, 128
WARM_UP, CALLS = 2, 3


def thread_times(functions: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Return the CPU seconds of a call of each function: one number per round, the mean of CALLS calls."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for round_number in range(rounds + WARM_UP):
        for name, function in functions.items():
            start = time.thread_time()
            for _ in range(CALLS):
                function()
            if round_number >= WARM_UP:
                times[name].append((time.thread_time() - start) / CALLS)
    return times


def layer_gradient(layer: nn.Module, x: Tensor, state: Tensor | tuple[Tensor, Tensor] | None) -> Any:
    """Compute the gradients of a layer's parameters and of its input."""
    outputs = layer(x) if state is None else layer(x, state)
    return torch.autograd.grad(outputs[0].square().mean(), [x, *layer.parameters()])


def measure_cores(rounds: int) -> list[dict[str, Any]]:
    """Return a row per layer and length: the median time, and the median ratio to the LSTM of the same round."""
    rows = []
    for steps in LENGTHS:
        torch.manual_seed(0)
        x = torch.randn(steps, SEQUENCES, HIDDEN, requires_grad=True)
        state = torch.randn(1, SEQUENCES, HIDDEN)
        layers: dict[str, tuple[nn.Module, Any]] = {
            "lstm": (nn.LSTM(HIDDEN, HIDDEN), None),
            "gru": (Gru(HIDDEN, HIDDEN), state),
            "torch_gru": (nn.GRU(HIDDEN, HIDDEN), None),
            "lmu": (Lmu(HIDDEN, HIDDEN, 1, steps), torch.randn(1, SEQUENCES, memory_size(HIDDEN, steps))),
            "lru": (Lru(HIDDEN, HIDDEN, 1, steps), (state, torch.randn(1, SEQUENCES, HIDDEN))),
        }
        functions = {name: partial(layer_gradient, layer, x, first) for name, (layer, first) in layers.items()}
        times = thread_times(functions, rounds)
        for name, own in times.items():
            ratio = median(a / b for a, b in zip(own, times["lstm"], strict=True))
            milliseconds = f"{1e3 * median(own):.2f}"
            rows.append(
                {"core": name, "steps": steps, "milliseconds": milliseconds, "relative_to_lstm": f"{ratio:.2f}"}
            )
    return rows


def encoder_gradient(encoder: Encoder, images: Tensor) -> Any:
    """Compute the gradients of an encoder's parameters."""
    return torch.autograd.grad(encoder([images]).square().mean(), list(encoder.parameters()))


@torch.no_grad()
def encode(encoder: Encoder, images: Tensor) -> None:
    """Encode images as for acting."""
    encoder([images])


def measure_encoders(rounds: int) -> list[dict[str, Any]]:
    """Return a row per encoder and number of channels: median microseconds per image."""
    rows = []
    for channels in (1, 4):
        (leaf,) = observation_spec(spaces.Box(0, 255, (channels, SIDE, SIDE), "uint8"), "the image").leaves
        images = torch.randint(0, 256, (LEARNING_IMAGES, channels, SIDE, SIDE), dtype=torch.uint8)
        functions: dict[str, Callable[[], Any]] = {}
        for name in ENCODERS:
            encoder = Encoder(TrainConfig(encoder=name), [leaf], [0])  # type: ignore[arg-type]
            functions[f"{name} acting"] = partial(encode, encoder, images[:ACTING_IMAGES])
            functions[f"{name} learning"] = partial(encoder_gradient, encoder, images)
        times = thread_times(functions, rounds)
        rows += [
            {
                "encoder": name,
                "channels": channels,
                "acting_microseconds": round(1e6 * median(times[f"{name} acting"]) / ACTING_IMAGES),
                "gradient_microseconds": round(1e6 * median(times[f"{name} learning"]) / LEARNING_IMAGES),
            }
            for name in ENCODERS
        ]
    return rows


PARTS = {"cores": measure_cores, "encoders": measure_encoders}


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = PARTS[options.part](options.rounds)
    print(*rows, sep="\n")
    write_rows(FOLDER / f"{options.part}.csv", rows, f"Medians of {options.rounds} rounds.")


if __name__ == "__main__":
    main()
