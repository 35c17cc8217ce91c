"""Measure the time of the recurrent cores and of the encoders of images.

    python -m figures.networks.measure cores
    python -m figures.networks.measure encoders

cores: one thread computes the gradient of a network with one recurrent layer of 128 units over 16 sequences, by each
kernel. Writes cores.csv, where the times are relative to those of the native LSTM. encoders: one thread encodes images
of 84 × 84 pixels, 8 at a time for acting, and 128 at a time with a backward pass. Writes encoders.csv. The functions
are called in turn, and the times are CPU times of the thread, so other load on the machine has less influence.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from statistics import median
from typing import Any, TypeVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from figures.common.command_line import script_parser
from figures.common.paths import FIGURES
from figures.common.tables import write_rows
from shmppo import TrainConfig
from shmppo.models.actor_critic import build_model, parameter_offsets
from shmppo.models.cores import CORES
from shmppo.models.encoders import Encoder
from shmppo.models.native import NativeNetwork
from shmppo.spaces.action_spaces import distribution_for
from shmppo.spaces.observations import observation_spec

FOLDER = FIGURES / "networks"
SEQUENCES, HIDDEN = 16, 128
LENGTHS = (16, 32, 64)
ENCODERS = ("nature", "a3c", "impala")
SIDE, ACTING_IMAGES, LEARNING_IMAGES = 84, 8, 128
WARM_UP, CALLS = 2, 3
_Key = TypeVar("_Key", bound=Hashable)


def thread_times(functions: Mapping[_Key, Callable[[], Any]], rounds: int) -> dict[_Key, list[float]]:
    """Return the CPU seconds of a call of each function: one number per round, the mean of CALLS calls."""
    times: dict[_Key, list[float]] = {name: [] for name in functions}
    for round_number in range(rounds + WARM_UP):
        for name, function in functions.items():
            start = time.thread_time()
            for _ in range(CALLS):
                function()
            if round_number >= WARM_UP:
                times[name].append((time.thread_time() - start) / CALLS)
    return times


def network_gradients(core: str, steps: int) -> dict[str, Callable[[], Any]]:
    """Return functions that compute the gradient of a network, by kernel. Its core reads HIDDEN outputs of a layer."""
    config = TrainConfig(core=core, hidden_size=HIDDEN, encoder_sizes=(HIDDEN,), seq_len=steps)  # type: ignore[arg-type]
    observation = observation_spec(spaces.Box(-1, 1, (HIDDEN,)), "the observation")
    model = build_model(config, observation, distribution_for(spaces.Discrete(2), "the network"))
    rows = steps * SEQUENCES
    sequences, state = torch.randn(steps, SEQUENCES, HIDDEN), torch.zeros(SEQUENCES, model.state_size)

    def by_torch() -> None:
        params, values, _ = model([sequences], state)
        torch.autograd.grad(params.mean() + values.mean(), list(model.parameters()))

    obs = np.random.default_rng(0).standard_normal((rows, HIDDEN), np.float32)
    gradients = np.zeros((1, parameter_offsets(model)[1]), np.float32)
    network = NativeNetwork(model, [obs], [None], row_count=rows, sequences=SEQUENCES, gradients=gradients)
    network.by_params[:] = network.by_values[:] = 1 / rows
    active, order, bounds = np.full(steps, SEQUENCES, np.int32), np.arange(rows), np.array([0, rows])

    def native() -> None:
        network.load()
        network.forward(active, order)
        network.backward(range(1), order, bounds)

    return {"native": native, "torch": by_torch}


def measure_cores(rounds: int) -> list[dict[str, Any]]:
    """Return a row per core, kernel, and length: the median time, and the median ratio to the native LSTM."""
    rows = []
    for steps in LENGTHS:
        functions = {
            (core, kernel): function for core in CORES for kernel, function in network_gradients(core, steps).items()
        }
        times = thread_times(functions, rounds)
        for (core, kernel), own in times.items():
            ratio = median(a / b for a, b in zip(own, times["lstm", "native"], strict=True))
            rows.append(
                {
                    "core": core, "kernel": kernel, "steps": steps, "milliseconds": f"{1e3 * median(own):.2f}",
                    "relative_to_lstm": f"{ratio:.2f}",
                }
            )  # fmt: skip
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
