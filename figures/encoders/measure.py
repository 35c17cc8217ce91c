"""Measure the time that each encoder of images takes per image, for acting and for a gradient.

    python -m figures.encoders.measure

One thread encodes images of 84 × 84 pixels: 8 at a time for acting, and 128 at a time with a backward pass. The
encoders are interleaved. The times are CPU times of the thread. Writes encoders.csv.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from gymnasium import spaces

from figures.common.command_line import script_parser
from figures.common.paths import FIGURES
from figures.common.tables import write_rows
from figures.common.thread_times import interleaved_thread_times
from shmppo import TrainConfig
from shmppo.models.encoders import Encoder
from shmppo.spaces.observations import observation_spec

TABLE = FIGURES / "encoders" / "encoders.csv"
ENCODERS = ("nature", "a3c", "impala")
SIDE, ACTING_IMAGES, LEARNING_IMAGES = 84, 8, 128


def acting(encoder: Encoder, images: torch.Tensor) -> Callable[[], Any]:
    """Return a function that encodes images."""

    def compute() -> None:
        with torch.no_grad():
            encoder([images])

    return compute


def learning(encoder: Encoder, images: torch.Tensor) -> Callable[[], Any]:
    """Return a function that computes the gradients of the encoder's parameters."""
    parameters = list(encoder.parameters())
    return lambda: torch.autograd.grad(encoder([images]).square().mean(), parameters)


def measure(channels: int, rounds: int) -> list[dict[str, Any]]:
    """Return one row per encoder: median microseconds per image. channels: of the images."""
    (leaf,) = observation_spec(spaces.Box(0, 255, (channels, SIDE, SIDE), "uint8"), "the image").leaves
    images = torch.randint(0, 256, (LEARNING_IMAGES, channels, SIDE, SIDE), dtype=torch.uint8)
    functions: dict[str, Callable[[], Any]] = {}
    for name in ENCODERS:
        encoder = Encoder(TrainConfig(encoder=name), [leaf], [0])  # type: ignore[arg-type]
        functions[f"{name} acting"] = acting(encoder, images[:ACTING_IMAGES])
        functions[f"{name} learning"] = learning(encoder, images)
    times = interleaved_thread_times(functions, rounds)
    return [
        {
            "encoder": name,
            "channels": channels,
            "acting_microseconds": round(1e6 * median(times[f"{name} acting"]) / ACTING_IMAGES),
            "gradient_microseconds": round(1e6 * median(times[f"{name} learning"]) / LEARNING_IMAGES),
        }
        for name in ENCODERS
    ]


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="interleaved rounds")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = measure(1, options.rounds) + measure(4, options.rounds)
    for row in rows:
        print(row, flush=True)
    write_rows(TABLE, rows, f"Medians of {options.rounds} rounds.")


if __name__ == "__main__":
    main()
