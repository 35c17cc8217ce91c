"""Export: `python -m shmppo.export RUN_DIR --format onnx` writes one step of the policy for other runtimes.

Inputs: obs [n, D] as the environment gives it (each leaf of a Dict or Tuple by itself, a Discrete counted from 0 as
[n, 1]), state [n, S] (zeros where an episode begins). Outputs: action [n, …] for
the environment, the most likely one (parts of Tuple, Dict and MultiDiscrete flat and side by side); params [n, P], to
draw from; value [n]; next_state [n, S]. Without a recurrent core there is neither state nor next_state. n is free.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from shmppo.errors import ConfigError
from shmppo.runs.policy import PolicyNetwork, TrainedPolicy, load_trained

NEEDED = ("onnx", "onnxscript")
SUFFIXES = {"onnx": ".onnx", "torchscript": ".pt"}


class ExportedPolicy(nn.Module):
    """One step as the exported file takes it."""

    def __init__(self, trained: TrainedPolicy) -> None:
        super().__init__()
        self.network = PolicyNetwork(trained)
        self._distribution = trained.task.distribution
        self._recurrent = trained.model.state_size > 0

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Leaves [n, …], state [n, S] → (action, params, value, next_state); no states without a recurrent core."""
        if not self._recurrent:
            inputs = (*inputs, inputs[0].new_zeros(inputs[0].shape[0], 0))
        params, value, after = self.network(*inputs)
        action = self._distribution.to_env_tensor(self._distribution.mode(params))
        return (action, params, value, after) if self._recurrent else (action, params, value)


def export(run_dir: Path, *, format: str = "onnx", out: Path | None = None) -> Path:
    """Write the policy of a run's newest checkpoint; returns the file.

    Raises:
        ConfigError: if there is no usable checkpoint, a library is missing, or the file cannot be written.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if format == "onnx" and missing:
        raise ConfigError(f"--format onnx needs {' and '.join(missing)}; pip install 'shmppo[export]'")
    trained = load_trained(run_dir)
    policy = ExportedPolicy(trained).eval()
    leaves = trained.task.observation.leaves
    inputs = {leaf.field: torch.zeros(2, *leaf.shape, dtype=getattr(torch, leaf.dtype)) for leaf in leaves}
    if trained.model.state_size:
        inputs["state"] = torch.zeros(2, trained.model.state_size)
    path = out or run_dir / f"policy{SUFFIXES[format]}"
    try:
        with _without_notices():
            if format == "onnx":
                _write_onnx(policy, inputs, path, _facts(trained))
            else:
                _write_torchscript(policy, inputs, path, _facts(trained))
    except OSError as error:
        raise ConfigError(f"--out {path} cannot be written: {error.strerror}; name another file") from error
    return path


def _facts(trained: TrainedPolicy) -> dict[str, Any]:
    """What a user of the file may want to know, kept in it under "shmppo"."""
    return {"env": trained.config.env_id, "iteration": trained.iteration, "state_size": trained.model.state_size}


def _write_onnx(policy: ExportedPolicy, inputs: dict[str, Tensor], path: Path, facts: dict[str, Any]) -> None:
    rows = torch.export.Dim("n")
    program = torch.onnx.export(
        policy,
        tuple(inputs.values()),
        dynamo=True,
        input_names=list(inputs),
        output_names=["action", "params", "value", *(["next_state"] if "state" in inputs else [])],
        dynamic_shapes=(tuple({0: rows} for _ in inputs),),
        verbose=False,
    )
    assert program is not None
    program.model.metadata_props["shmppo"] = json.dumps(facts)
    program.save(str(path))


def _write_torchscript(policy: ExportedPolicy, inputs: dict[str, Tensor], path: Path, facts: dict[str, Any]) -> None:
    traced = torch.jit.trace(policy, tuple(inputs.values()))
    with open(path, "wb") as file:
        torch.jit.save(traced, file, _extra_files={"shmppo": json.dumps(facts)})


@contextmanager
def _without_notices() -> Iterator[None]:
    """Keep torch's exporters from telling of their own deprecations and of libraries that are not needed here."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
