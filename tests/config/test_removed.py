"""Options that earlier versions had: their runs load if these have their defaults, and get one sentence otherwise."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shmppo import load_policy
from shmppo.config.flags import parse_start
from shmppo.config.removed import REMOVED, without_removed
from shmppo.config.train_config import TrainConfig, load_config
from shmppo.errors import ConfigError
from shmppo.runs.launch import resume, train
from shmppo.storage.checkpoint_file import load_checkpoint, write_checkpoint

TRAINED = Path(__file__).parents[2] / "examples" / "trained"
OTHER: dict[str, Any] = {
    "anneal_clip": True,
    "attention_heads": 2,
    "auxiliary_coef": 0.5,
    "burn_in": 2,
    "dual_clip": 3.0,
    "env_block": 4,
    "episode_seeding": "once",
    "eval_sample": True,
    "layer_norm": True,
    "opponent_latest": 0.2,
    "opponent_slots": 8,
    "penalty_coef": 2.0,
    "rank_timeout": 60.0,
    "refresh_states": True,
    "warmup_steps": 1000,
    "weight_decay": 0.1,
}
"""Values of the removed options that are not their defaults."""


def stored_run(directory: Path, **changes: Any) -> Path:
    """A run directory of an earlier version, without a policy. changes: of its configuration."""
    content = json.loads((TRAINED / "cartpole" / "config.json").read_text())
    content["config"] |= {name: default for name, (default, _) in REMOVED.items()} | changes
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(content))
    return directory


@contextmanager
def one_sentence(*parts: str) -> Iterator[None]:
    """Assert that a ConfigError of one sentence with these parts is raised, of which the last is its end."""
    with pytest.raises(ConfigError) as raised:
        yield
    text = str(raised.value)
    assert "\n" not in text
    assert ". " not in text
    assert all(part in text for part in parts), text
    assert text.endswith(parts[-1]), text


def test_each_removed_option_has_a_test_and_names_existing_flags() -> None:
    assert OTHER.keys() == REMOVED.keys()
    fields = TrainConfig().fields().keys()
    assert not REMOVED.keys() & fields
    for name, (_, instead) in REMOVED.items():
        of_train = re.sub("`.*?`", "", instead)  # without other commands
        flags = {flag.replace("-", "_") for flag in re.findall(r"(?<=--)[a-z][a-z-]*", of_train)}
        assert flags <= fields, name


def test_runs_of_earlier_versions_load(tmp_path: Path) -> None:
    run_dir = stored_run(tmp_path / "run")
    assert load_config(run_dir).to_json() == load_config(TRAINED / "cartpole").to_json()
    (config, _) = parse_start(["--config", str(run_dir / "config.json"), "--seed", "7"])
    assert (config.seed, config.env, config.gamma) == (7, "CartPole-v1", load_config(run_dir).gamma)
    assert load_policy(TRAINED / "cartpole").initial_state() is not None


def test_a_run_of_an_earlier_version_can_be_fine_tuned(tmp_path: Path) -> None:
    weights = {"init_from": str(TRAINED / "cartpole"), "run_dir": str(tmp_path / "fine"), "quiet": True}
    (config, _) = parse_start(
        ["--init-from", weights["init_from"], "--total-steps", "2048", "--stop-at-iteration", "1"]
    )
    summary = train(dataclasses.replace(config, **weights, workers=0, check_determinism=0))  # type: ignore[arg-type]
    assert summary["initial_weights"]["path"] == weights["init_from"]


@pytest.mark.parametrize("name", OTHER)
def test_another_value_of_a_removed_option_is_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    flag, value = f"--{name.replace('_', '-')}", OTHER[name]
    _, instead = REMOVED[name]
    run_dir = stored_run(tmp_path / "run", **{name: value})
    stored = (f"{flag} {value}" if value is not True else flag, f" is no longer supported; {instead}")
    with one_sentence(str(run_dir / "config.json"), *stored):
        load_config(run_dir)
    with one_sentence(f"--config {run_dir / 'config.json'}: ", *stored):
        parse_start(["--config", str(run_dir / "config.json")])

    checkpoint = load_checkpoint(TRAINED / "cartpole" / "checkpoint.pt")
    checkpoint["config"] = json.dumps(json.loads(checkpoint["config"]) | {name: value})
    write_checkpoint(run_dir / "checkpoint.pt", checkpoint | {"carry": {}})
    shutil.copy(TRAINED / "cartpole" / "metrics.csv", run_dir)
    with one_sentence(*stored):
        resume(run_dir)


@pytest.mark.parametrize("name", OTHER)
def test_the_flag_or_the_field_of_a_removed_option_gets_what_to_do_instead(name: str, tmp_path: Path) -> None:
    flag, (_, instead) = f"--{name.replace('_', '-')}", REMOVED[name]
    for given in (flag, f"--{name}", f"{flag}=3"):
        with one_sentence(f"there is no flag {given.partition('=')[0]}; ", instead):
            parse_start([given, "3"])
    file = tmp_path / "flags.yaml"
    file.write_text(f"{name}: 3\n")
    fields = re.sub(r"--([a-z][a-z-]*)", lambda found: found[1].replace("-", "_"), instead)
    with one_sentence(f"there is no field {name}; ", fields):
        parse_start(["--config", str(file)])


def test_adamw_of_earlier_versions_without_weight_decay_is_adam() -> None:
    earlier = json.loads((TRAINED / "cartpole" / "config.json").read_text())["config"]
    for optimizer, expected in (("adam", "adam"), ("adamw", "adam"), ("sgd", "sgd")):
        assert without_removed(earlier | {"optimizer": optimizer})["optimizer"] == expected
    now = TrainConfig().to_json()
    assert without_removed(now) == now


def test_runs_with_envpool_are_refused_in_one_sentence(tmp_path: Path) -> None:
    run_dir = stored_run(tmp_path / "run", env_backend="envpool")
    text = "--env-backend envpool is no longer supported; use --env-backend vector with a factory that makes the pool"
    for load in (lambda: load_config(run_dir), lambda: parse_start(["--config", str(run_dir / "config.json")])):
        with one_sentence(text):
            load()
