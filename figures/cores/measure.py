"""Measure the time of a gradient of the cores and of the networks in this folder, relative to torch.nn.LSTM.

    python -m figures.cores.measure

One thread computes forward and backward passes of one recurrent layer with 128 units over 16 sequences. The layers are
interleaved. The times are CPU times of the thread, so other load on the machine has less influence. Writes cores.csv.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from figures.common.command_line import script_parser
from figures.common.paths import FIGURES
from figures.common.tables import write_rows
from figures.common.thread_times import interleaved_thread_times
from figures.cores.networks import NETWORKS
from shmppo.models.gru import Gru
from shmppo.models.lmu import Lmu, memory_size
from shmppo.models.lru import Lru

TABLE = FIGURES / "cores" / "cores.csv"
SEQUENCES, HIDDEN = 16, 128
LENGTHS = (16, 32, 64)


def gradient_functions(steps: int) -> dict[str, Callable[[], Any]]:
    """Return for each layer a function that computes the gradients of its parameters and of its input."""
    torch.manual_seed(0)
    x = torch.randn(steps, SEQUENCES, HIDDEN, requires_grad=True)

    def gradient(layer: nn.Module, state: Tensor | tuple[Tensor, Tensor] | None) -> Callable[[], Any]:
        wanted = [x, *layer.parameters()]

        def compute() -> Any:
            outputs = layer(x) if state is None else layer(x, state)
            return torch.autograd.grad(outputs[0].square().mean(), wanted)

        return compute

    functions = {"lstm": gradient(nn.LSTM(HIDDEN, HIDDEN), None)}
    functions["gru"] = gradient(Gru(HIDDEN, HIDDEN), torch.randn(1, SEQUENCES, HIDDEN))
    functions["torch_gru"] = gradient(nn.GRU(HIDDEN, HIDDEN), None)
    lmu = Lmu(HIDDEN, HIDDEN, 1, steps)
    functions["lmu"] = gradient(lmu, torch.randn(1, SEQUENCES, memory_size(HIDDEN, steps)))
    lru_state = (torch.randn(1, SEQUENCES, HIDDEN), torch.randn(1, SEQUENCES, HIDDEN))
    functions["lru"] = gradient(Lru(HIDDEN, HIDDEN, 1, steps), lru_state)
    for name, network in NETWORKS.items():
        layer = network.layer(HIDDEN, steps)
        functions[name] = gradient(layer, torch.randn(SEQUENCES, layer.state_size))
    return functions


def measure(steps: int, rounds: int) -> list[dict[str, Any]]:
    """Return one row per layer: the median time, and the median of the ratios to the LSTM of the same round."""
    times = interleaved_thread_times(gradient_functions(steps), rounds)
    return [
        {
            "core": name,
            "steps": steps,
            "milliseconds": f"{1e3 * median(own):.2f}",
            "relative_to_lstm": f"{median(a / b for a, b in zip(own, times['lstm'], strict=True)):.2f}",
        }
        for name, own in times.items()
    ]


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=60, help="interleaved rounds per length")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for steps in LENGTHS:
        rows += measure(steps, options.rounds)
    for row in rows:
        print(row, flush=True)
    write_rows(TABLE, rows, f"{SEQUENCES} sequences, {HIDDEN} units; medians of {options.rounds} rounds.")


if __name__ == "__main__":
    main()
