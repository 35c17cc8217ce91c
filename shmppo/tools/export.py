"""Export one step of a policy to a file for other runtimes. The file accepts any batch size n.

The input obs [n, D] is the observation of the environment. Each leaf of a Dict or Tuple is a separate input, such as
obs/camera. --prev-action, --prev-reward, and --action-masks add the inputs prev_action, prev_reward, and action_mask. A
Discrete leaf counts from 0 and has the shape [n, 1]. The input state [n, S] is the recurrent state, zero at an
episode's start.

The output action [n, …] is the most likely action for the environment. The parts of Tuple, Dict, and MultiDiscrete
actions are flattened and concatenated. The output params [n, P] has the parameters of the action distribution, for
sampling; with --std state, the second half of a Box has x of `StateStd`; with --distribution beta, they are a and b of
`Beta`. The output value [n] is the value estimate. The output next_state [n, S] is the state after the step.

A policy without a recurrent core has neither state nor next_state. If the critic was trained with other parts of the
observation than the actor (--actor-obs, --critic-obs), only those of the actor are inputs, and there is no value.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import warnings
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from shmppo.config.checks import require
from shmppo.config.trust import Trusted
from shmppo.errors import ConfigError
from shmppo.policies.policy import TrainedPolicy, load_trained
from shmppo.spaces.normalization import leaf_statistics, normalize_leaf
from shmppo.tools.export_c import example_of, export_c
from shmppo.utils.files import config_error_if_unwritable, make_parent_directory, user_path, write_json
from shmppo.utils.user_code import describe_error
from shmppo.version import __version__

MANIFEST_STEPS = 3
"""Steps of one episode in the manifest, with which a runtime can be tested."""
SUFFIXES = {"onnx": ".onnx", "torchscript": ".pt", "c": ".c"}


class ExportedPolicy(nn.Module):
    """One step of a policy, with the inputs and outputs of the exported file."""

    visible: Tensor
    """Which elements of the first leaf the policy sees, bool in the shape of the leaf. False for hidden indices."""
    mean: Tensor
    """[D]"""
    scale: Tensor
    """[D], 1 / standard deviation."""

    def __init__(self, trained: TrainedPolicy) -> None:
        super().__init__()
        config, observation = trained.config, trained.task.observation
        visible = torch.ones(observation.leaves[0].shape, dtype=torch.bool)
        visible[list(config.hidden_indices)] = False
        mean, scale = torch.from_numpy(trained.obs_mean), torch.from_numpy(trained.obs_scale)
        for name, tensor in (("visible", visible), ("mean", mean), ("scale", scale)):
            self.register_buffer(name, tensor)
        self.model = trained.model.eval().requires_grad_(False)
        self._distribution = trained.task.distribution
        self._slices, self._normalizes = observation.normalized_slices, config.normalize_obs
        self._hides = bool(config.hidden_indices)
        self._recurrent = trained.model.state_size > 0
        self._has_value = trained.model.value_head is not None

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs."""
        return ["action", "params", *["value"] * self._has_value, *["next_state"] * self._recurrent]

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Compute the outputs from the leaves [n, …] and, with a recurrent core, the state [n, S]."""
        if not self._recurrent:
            inputs = (*inputs, inputs[0].new_zeros(inputs[0].shape[0], 0))
        *leaves, state = inputs
        obs = dict(zip(self.model.needed_leaves, leaves, strict=True))
        if self._hides and 0 in obs:
            obs[0] = torch.where(self.visible, obs[0], 0.0)
        statistics = leaf_statistics(self._slices, self.mean, self.scale, self._normalizes)
        network_obs = [torch.empty(0)] * len(statistics)
        for index, leaf in obs.items():
            network_obs[index] = normalize_leaf(leaf, statistics[index]).unsqueeze(0)
        params, value, after = self.model(network_obs, state)
        action = self._distribution.best_action(params[0])
        outputs = {"action": action, "params": params[0], "value": value[0], "next_state": after}
        return tuple(outputs[name] for name in self.output_names)


def export(
    run_dir: str | Path,
    *,
    checkpoint: str | int | Path = "last",
    format: str = "onnx",
    out: str | Path | None = None,
    weights: Literal["static", "binary"] = "static",
    trust: Trusted = (),
) -> Path:
    """Write the policy of a run to a file, and its manifest to a file beside it, with the suffix .json.

    Args:
        run_dir: directory of the run.
        checkpoint: "last", "best", an iteration, or the path of a checkpoint.
        format: "onnx", "torchscript", or "c".
        out: file to write. None: policy.onnx, policy.pt, or policy.c in the run directory.
        weights: where "c" puts the weights: "static" (into the source) or "binary" (into a file).
        trust: see `shmppo.load_policy`.

    Returns:
        The path of the file.

    Raises:
        ConfigError: if there is no such checkpoint, a library is missing, or the file cannot be written.
    """
    require(format in SUFFIXES, f"the format is {format}; use {' or '.join(SUFFIXES)}")
    require(weights in ("static", "binary"), f"weights is {weights}; use static or binary")
    installed = importlib.util.find_spec("onnxscript") is not None
    require(installed or format != "onnx", "--format onnx needs onnx and onnxscript; pip install 'shmppo[export]'")
    path = user_path(out or Path(run_dir) / f"policy{SUFFIXES[format]}", "--out")
    require(
        path.suffix == SUFFIXES[format] and path.stem not in ("config", "summary"),
        f"--out is {path}; give it a name that ends with {SUFFIXES[format]}, but not config or summary",
    )
    trained = load_trained(run_dir, checkpoint, trust)
    make_parent_directory(path, "--out")
    policy = ExportedPolicy(trained).eval()
    leaves, names = trained.task.observation.leaves, trained.input_names
    inputs = {
        names[i]: torch.zeros(2, *leaves[i].shape, dtype=getattr(torch, leaves[i].dtype))
        for i in trained.model.needed_leaves
    }
    if trained.model.state_size:
        inputs["state"] = torch.zeros(2, trained.model.state_size, dtype=torch.float32)
    about = _manifest(trained, policy, inputs)
    own = trained.config.own_module
    write = _write_onnx if format == "onnx" else _write_torchscript
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        unwritable = config_error_if_unwritable(f"--out {path}", "name another file")
        with warnings.catch_warnings(), torch.no_grad(), unwritable:
            warnings.simplefilter("ignore")  # about deprecations and optional libraries
            if own is not None:  # its branches that depend on data
                warnings.simplefilter("default", torch.jit.TracerWarning)  # type: ignore[attr-defined]
            if format == "c":
                export_c(trained, path, binary=weights == "binary")
            else:
                write(policy, inputs, path, json.dumps(about))
            write_json(path.with_suffix(".json"), about)
    except Exception as error:  # torch raises many types
        if own is None or isinstance(error, ConfigError):
            raise
        what = f"{own} cannot be exported as {format}"
        raise ConfigError(f"{what}: {describe_error(error)}; change the module, or use another --format") from error
    return path


@torch.no_grad()
def _manifest(trained: TrainedPolicy, policy: ExportedPolicy, inputs: dict[str, Tensor]) -> dict[str, Any]:
    """Return the manifest of a policy: what a runtime needs to know, and some steps to test it with.

    inputs: with two rows, in their order.
    """
    outputs = dict(zip(policy.output_names, policy(*inputs.values()), strict=True))
    described = [
        [
            {"name": name, "shape": ["n", *one.shape[1:]], "type": str(one.dtype).removeprefix("torch.")}
            for name, one in part.items()
        ]
        for part in (inputs, outputs)
    ]
    steps, generator = [], np.random.default_rng(0)
    given = {name: one[:1] for name, one in inputs.items()}
    for _ in range(MANIFEST_STEPS):
        for i in trained.model.needed_leaves:
            example = example_of(trained.task.observation.leaves[i], generator)
            given[trained.input_names[i]] = torch.from_numpy(example).to(inputs[trained.input_names[i]].dtype)[None]
        result = dict(zip(policy.output_names, policy(*given.values()), strict=True))
        steps.append(
            {
                "inputs": _lists(given),
                "outputs": _lists(result),
                "distribution": _lists(trained.task.distribution.named(result["params"].numpy())),
            }
        )
        given |= {"state": result["next_state"]} if "state" in given else {}
    return {
        "shmppo": __version__, "env": trained.config.env_id, "iteration": trained.iteration,
        "weights_sha256": trained.weights_sha256, "inputs": described[0], "outputs": described[1],
        "next": {"state": "next_state"} if "state" in inputs else {},
        "reset": "state is 0 in the first step of an episode", **trained.task.stored, "steps": steps,
    }  # fmt: skip


def _lists(rows: Any) -> Any:
    """Return the first row of arrays or tensors, or of dictionaries of them, as lists."""
    return {name: _lists(row) for name, row in rows.items()} if isinstance(rows, dict) else rows[0].tolist()


def _write_onnx(policy: ExportedPolicy, inputs: dict[str, Tensor], path: Path, metadata: str) -> None:
    rows = torch.export.Dim("n")
    program = torch.onnx.export(
        policy, tuple(inputs.values()), dynamo=True, input_names=list(inputs), output_names=policy.output_names,
        dynamic_shapes=(tuple({0: rows} for _ in inputs),), verbose=False,
    )  # fmt: skip
    assert program is not None
    program.model.metadata_props["shmppo"] = metadata
    program.save(str(path))


def _write_torchscript(policy: ExportedPolicy, inputs: dict[str, Tensor], path: Path, metadata: str) -> None:
    trace: Any = torch.jit.trace  # it has no type annotations
    traced = trace(policy, tuple(inputs.values()))
    with open(path, "wb") as file:
        torch.jit.save(traced, file, _extra_files={"shmppo": metadata})
