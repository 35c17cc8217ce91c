"""Start a new run from the weights and normalizers of another one (--init-from)."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import summary_of
from helpers import parse_config
from public_helpers import SIX_ITERATIONS, csv_rows, run_fixture, train_in
from rank_processes import directories, finish, start

from shmppo import resume, train
from shmppo.errors import ConfigError
from shmppo.models.actor_critic import weights_sha256
from shmppo.storage.checkpoint import kept_name, load_selected_checkpoint
from shmppo.storage.checkpoint_file import load_checkpoint

BASE = dataclasses.replace(SIX_ITERATIONS, env="Pendulum-v1", hide_obs=(2,), total_steps=4 * 32 * 4)
NEW = dataclasses.replace(BASE, seed=2, learning_rate=3e-4, total_steps=4 * 32 * 2, checkpoint_every=1)


source = run_fixture(BASE, keep_every=2)
"""The run whose weights the others start from."""


def test_the_new_run_has_the_weights_and_normalizers_and_starts_anew(source: Path, tmp_path: Path) -> None:
    runs = {}
    for workers in (0, 2):
        config = dataclasses.replace(NEW, init_from=str(source), workers=workers, stop_at_iteration=1)
        runs[workers] = train_in(tmp_path / str(workers), config)
    plain = train_in(tmp_path / "plain", NEW)
    assert runs[0]["weights_sha256"] == runs[2]["weights_sha256"] != plain["weights_sha256"]
    assert runs[0]["exact"]
    old, new = load_selected_checkpoint(source), load_selected_checkpoint(tmp_path / "0", 0)
    assert (new["iteration"], new["env_steps"]) == (0, 0)
    assert new["learner"]["optimizer"]["state"] == {}
    assert not new["learner"]["discounted_return"].any()
    for part in ("model", "obs_moments", "return_moments"):
        assert old["learner"][part].keys() == new["learner"][part].keys()
        assert all(torch.equal(value, new["learner"][part][name]) for name, value in old["learner"][part].items())
    record = {"path": str(source), "iteration": 4, "weights_sha256": summary_of(source)["weights_sha256"]}
    assert json.loads((tmp_path / "0" / "config.json").read_text())["initial_weights"] == record
    assert runs[0]["initial_weights"] == record
    assert plain["initial_weights"] is None


def test_a_resumed_run_does_not_need_the_source(source: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(source, tmp_path / "source"))
    config = dataclasses.replace(NEW, init_from=str(copy))
    whole = train_in(tmp_path / "whole", config)
    train_in(tmp_path / "run", config, stop_at_iteration=1)
    shutil.rmtree(copy)
    rest = resume(tmp_path / "run")
    assert rest["weights_sha256"] == whole["weights_sha256"]
    assert rest["initial_weights"] == whole["initial_weights"]


def test_a_checkpoint_file_can_be_named(source: Path, tmp_path: Path) -> None:
    file = source / kept_name(2)
    config = dataclasses.replace(NEW, init_from=str(file), stop_at_iteration=1, run_dir=str(tmp_path / "run"))
    weights = weights_sha256(load_checkpoint(file)["learner"]["model"].values())
    assert train(config)["initial_weights"] == {"path": str(file), "iteration": 2, "weights_sha256": weights}


OTHER_NETWORK = r"parameter \S+ has the shape .*; that run has another network or other spaces; use its options"
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "size": ({"hidden_size": 32}, OTHER_NETWORK),
    "core": ({"core": "gru", "separate_critic": "all"}, OTHER_NETWORK),
    "spaces": ({"env": "CartPole-v1"}, OTHER_NETWORK),
    "input": ({"prev_action": True}, OTHER_NETWORK),
    "activation": ({"activation": "relu"}, "was trained with --activation tanh; add this flag"),
    "squashing": ({"squash_actions": True}, "was trained with --no-squash-actions; add this flag"),
    "hidden": ({"hide_obs": ()}, r"was trained with --hide-obs 2; hide them, too$"),
    "moments": ({"normalize_obs": False}, "was trained with --normalize-obs; add this flag"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_shapes_are_refused_with_the_flags_to_use(case: str, source: Path, tmp_path: Path) -> None:
    changes, message = REFUSED[case]
    with pytest.raises(ConfigError, match=f"^--init-from {source}.*{message}"):
        train_in(tmp_path / "run", NEW, init_from=str(source), **changes)
    assert not (tmp_path / "run").exists()


def test_a_minimum_of_the_standard_deviation_holds_from_the_first_rollout(tmp_path: Path) -> None:
    train_in(tmp_path / "narrow", NEW, log_std_init=-2.0, stop_at_iteration=1)
    train_in(tmp_path / "run", NEW, init_from=str(tmp_path / "narrow"), log_std_min=-1.0, learning_rate=1e-6)
    assert float(csv_rows(tmp_path / "run" / "metrics.csv")[0]["approx_kl"]) < 1e-6


def test_the_command_line_takes_the_options_of_that_run(source: Path, tmp_path: Path) -> None:
    checkpoint = source / "checkpoint.pt"
    resolved = {"keep_every": 2, "kernel": "native", "quiet": False}
    for given in (source, checkpoint):
        config = parse_config(["--init-from", str(given), "--learning-rate", "0.5"])
        assert config == dataclasses.replace(BASE, **resolved, init_from=str(given), learning_rate=0.5)
    assert parse_config(["--init-from", str(source), "--preset", "Hopper-v5"]).env == "Hopper-v5"
    assert parse_config(["--init-from", str(source)], default=NEW) == dataclasses.replace(NEW, init_from=str(source))
    options = tmp_path / "options.json"
    options.write_text('{"env": "Pendulum-v1"}')
    assert parse_config(["--init-from", str(source), "--config", str(options)]).env == "Pendulum-v1"
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match=f"^--init-from {tmp_path}/config.json is not a mapping"):
        parse_config(["--init-from", str(tmp_path)])


@pytest.mark.slow(reason="about 25 s")
@pytest.mark.usefixtures("environments_importable")
def test_all_ranks_start_from_the_same_weights(tmp_path: Path) -> None:
    first = tmp_path / "first"
    finish(start(first, "--total-steps", 128 * 2))
    finish(start(tmp_path / "second", "--total-steps", 128, "--init-from", first, "--checkpoint-every", 1))
    for path in directories(tmp_path / "second"):
        model = load_selected_checkpoint(path, 0)["learner"]["model"]
        assert weights_sha256(model.values()) == summary_of(first)["weights_sha256"]
        assert summary_of(path)["weights_sha256"] != summary_of(first)["weights_sha256"]
