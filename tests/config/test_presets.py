"""Presets: the configurations that they stand for, their choice, and what overrides them."""

from __future__ import annotations

import hashlib
import json
import shlex
from pathlib import Path

import pytest
from helpers import parse_config, slow_after
from public_helpers import python

from docs.generate import preset_flags
from shmppo.config.presets import PRESETS, preset, preset_fields
from shmppo.config.train_config import TrainConfig

DIGESTS = {
    "CartPole-v1": "820d67a5acb9",
    "CartPole-v1-memory": "c3a5bcc87355",
    "Pendulum-v1": "dd8a0d57fa94",
    "Pendulum-v1-memory": "ea8b2c82118b",
    "MountainCarContinuous-v0": "abc420b92f9c",
    "MountainCarContinuous-v0-memory": "967cbc632eb1",
    "InvertedDoublePendulum-v5-memory": "c8f8143b92e2",
    "LunarLander-v3": "95749f97e25b",
    "HalfCheetah-v5": "8430fd4b4fc8",
    "Hopper-v5": "6de9f0f7bf4b",
    "Walker2d-v5": "72581d4b2e1e",
    "Swimmer-v5": "23bc8038315d",
    "Ant-v5": "797adf58eade",
    "Humanoid-v5": "34df51fc2708",
    "MiniGrid-MemoryS9-v0": "35d45c77f140",
    "ALE/Pong-v5": "171d28856b41",
    "tictactoe_v3": "3e3a11c8208d",
    "connect_four_v3": "cdc411f03bae",
    "pybullet-occluded": "3a18cdefeb7a",
    "popgym": "2c6d47808dc8",
}
"""Beginning of the SHA-256 of each preset's fields. The published results were measured with these options."""


def digest(config: TrainConfig) -> str:
    """The hash of all fields that are not at their defaults."""
    default = TrainConfig().fields()
    changed = {name: value for name, value in config.fields().items() if value != default[name]}
    return hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:12]


def test_the_presets_are_those_of_the_published_results() -> None:
    assert {name: digest(preset(name)) for name in PRESETS} == DIGESTS


@pytest.mark.parametrize("name", slow_after(5, PRESETS, "1 s per preset"))
def test_the_flags_of_a_preset_give_its_configuration(name: str) -> None:
    assert parse_config(shlex.split(preset_flags(PRESETS[name]))) == preset(name)
    assert parse_config(["--preset", name]) == preset(name)


def test_auto_chooses_by_the_environment_without_its_module() -> None:
    for env in ("ALE/Pong-v5", "ale_py:ALE/Pong-v5"):
        assert preset_fields("auto", env) == PRESETS["ALE/Pong-v5"]
    for name in ("tictactoe_v3", "connect_four_v3"):  # of PettingZoo, named by the module
        assert preset_fields("auto", PRESETS[name]["env"]) == PRESETS[name]
    config = parse_config(["--preset", "auto", "--env", "Pendulum-v1"])
    assert config == preset("Pendulum-v1")
    assert config.hidden_indices == ()
    assert preset("Pendulum-v1-memory").hidden_indices == (2,)


def test_a_preset_is_overridden_by_the_file_and_both_by_flags(tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text('{"gamma": 0.5, "epochs": 3}')
    arguments = ["--preset", "Hopper-v5", "--config", str(tmp_path / "file.json"), "--epochs", "2", "--env", "Ant-v5"]
    assert parse_config(arguments) == preset("Hopper-v5", gamma=0.5, epochs=2, env="Ant-v5")
    assert parse_config(["--preset", "Hopper-v5"], default=preset("ALE/Pong-v5")) == preset("Hopper-v5")


def test_arguments_of_the_same_environment_are_added(tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text('{"env-kwargs": {"b": 3, "c": 4}, "env": "own:Env"}')
    given = ["--config", str(tmp_path / "file.json"), "--env-kwargs", "a=1", "b=2", "--trust", "own"]
    assert parse_config(given).env_kwargs == {"a": 1, "b": 2, "c": 4}
    assert parse_config([*given, "--env", "own:Env"]).env_kwargs == {"a": 1, "b": 2, "c": 4}
    assert parse_config([*given, "--env", "own:Other"]).env_kwargs == {"a": 1, "b": 2}
    assert parse_config([*given[:2], "--trust", "own", "--env-kwargs"]).env_kwargs == {}


def test_auto_takes_the_environment_of_a_file_or_of_a_script(tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text('{"env": "Ant-v5"}')
    assert parse_config(["--preset", "auto", "--config", str(tmp_path / "file.json")]) == preset("Ant-v5")
    assert parse_config(["--preset", "auto"], default=TrainConfig(env="Ant-v5")) == preset("Ant-v5")


def test_presets_do_not_import_torch() -> None:
    script = "import sys, shmppo; shmppo.preset('Hopper-v5'); sys.exit('torch' in sys.modules)"
    assert python("-c", script).returncode == 0
