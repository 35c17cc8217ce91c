"""Encoders of the user (--encoder module:factory): what they read, what is refused, and policies that contain one.

`test_disturbances.py` and `test_gradients.py` have cases with such an encoder.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import SHAPED
from helpers import assert_refused
from networks import Look
from public_helpers import SIX_ITERATIONS, train_in
from torch import Tensor, nn

from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.models.actor_critic import ActorCritic, build_model
from shmppo.storage.checkpoint_file import load_checkpoint
from shmppo.tools.export import export
from shmppo.utils.machine import processor_type

BASE = dataclasses.replace(SIX_ITERATIONS, **SHAPED, encoder="networks:look_at_image", seq_len=8, grad_shards=2)


def model_of(config: TrainConfig) -> ActorCritic:
    task = inspect_task(config)
    return build_model(config, task.observation, task.distribution)


def test_the_built_in_encoders_read_all_parts_that_it_does_not_name() -> None:
    encoders = model_of(BASE).trunks[0].encoders
    assert [type(encoder).__name__ for encoder in encoders] == ["CustomEncoder", "Encoder"]
    names = {leaf.field for encoder in encoders[1:] for leaf in encoder.leaves}
    assert names == {leaf.field for leaf in inspect_task(BASE).observation.leaves} - set(encoders[0].module.names)
    (alone,) = model_of(dataclasses.replace(BASE, encoder="networks:look")).trunks[0].encoders
    assert len(alone.module.names) == len(inspect_task(BASE).observation.leaves)


def test_its_initial_weights_are_its_own() -> None:
    custom, built_in = model_of(BASE).trunks[0].encoders
    assert custom.module.layer.bias.any()
    assert not built_in.network.linears[0].bias.any()


class Mixed(Look):
    """Its rows depend on each other."""

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        features = super().forward(obs)
        return features - features.mean(0, keepdim=True) / 1000


class Wide(Look):
    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        return super().forward(obs).repeat(1, 2)


class Branching(Look):
    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        features = super().forward(obs)
        return features if features.sum() < 1e6 else 2 * features


def branching(shapes: Mapping[str, tuple[int, ...]], config: Any) -> nn.Module:
    return Branching(shapes)


def unknown(shapes: Mapping[str, tuple[int, ...]], config: Any) -> nn.Module:
    made = Look(shapes)
    made.parts = ("camera",)
    return made


def unsized(shapes: Mapping[str, tuple[int, ...]], config: Any) -> nn.Module:
    return nn.Flatten()


def wide(shapes: Mapping[str, tuple[int, ...]], config: Any) -> nn.Module:
    return Wide(shapes)


def mixed(shapes: Mapping[str, tuple[int, ...]], config: Any) -> nn.Module:
    return Mixed(shapes)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("unknown", r"has the attribute parts = \('camera',\); list some of obs/"),
        ("unsized", "must return an nn.Module with the attribute features, an integer of at least 1"),
        ("wide", r"returned features of shapes \(8, 10\); they must be \(8, 5\)"),
    ],
)
def test_what_breaks_a_rule_is_refused(factory: str, message: str, tmp_path: Path) -> None:
    assert_refused(BASE, {"encoder": f"test_custom_encoder:{factory}"}, message, tmp_path)


class Scaled(nn.Module):
    """It has no parameters."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], config: Any) -> None:
        super().__init__()
        self.parts = tuple(name for name, shape in shapes.items() if len(shape) == 3)
        self.features = sum(math.prod(shapes[name]) for name in self.parts)

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([2 * obs[name].flatten(1) for name in self.parts], 1)


@pytest.mark.parametrize("sizes", [(), (16,)], ids=str)
def test_it_may_have_no_parameters(sizes: tuple[int, ...], tmp_path: Path) -> None:
    fields: dict[str, Any] = {"encoder": "test_custom_encoder:Scaled", "encoder_sizes": sizes}
    assert train_in(tmp_path / "run", BASE, **fields, stop_at_iteration=1)["exact"]


def test_torch_and_the_processor_decide_its_bits(tmp_path: Path) -> None:
    train_in(tmp_path / "run", BASE, stop_at_iteration=1)
    found = load_checkpoint(tmp_path / "run" / "checkpoint.pt")["fingerprint"]
    assert found["torch"] == metadata.version("torch")
    assert found["processor"] == processor_type("torch")
    images: dict[str, Any] = {"env_kwargs": {"space": "image"}, "encoder": "auto", "prev_action": False}
    train_in(tmp_path / "built-in", BASE, **images, stop_at_iteration=1)
    assert load_checkpoint(tmp_path / "built-in" / "checkpoint.pt")["fingerprint"] == found


def test_an_export_of_an_encoder_with_branches_warns(tmp_path: Path) -> None:
    train_in(tmp_path / "run", BASE, encoder="test_custom_encoder:branching", stop_at_iteration=1)
    with pytest.warns(torch.jit.TracerWarning, match="Python boolean"):
        export(tmp_path / "run", format="torchscript")


def test_rows_that_depend_on_each_other_make_a_run_inexact(tmp_path: Path) -> None:
    summary = train_in(tmp_path / "run", BASE, encoder="test_custom_encoder:mixed", stop_at_iteration=1)
    assert not summary["exact"]
