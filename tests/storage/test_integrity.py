"""The files of a run belong together: every damage is detected before the run resumes, or by `check_run`."""

from __future__ import annotations

import csv
import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shmppo.config.schemas import with_checksum
from shmppo.config.train_config import TrainConfig, from_json
from shmppo.errors import ConfigError
from shmppo.loggers.checked_rows import ROW_CHECKSUM
from shmppo.loggers.metrics import TIMED_COLUMNS
from shmppo.policies.evaluation import evaluate
from shmppo.policies.policy import load_policy
from shmppo.runs.trainer import resume, train
from shmppo.storage.checkpoint import BEFORE, BEST, NAME
from shmppo.storage.checkpoint_file import KEYS, LEARNER_KEYS, load_checkpoint, write_checkpoint
from shmppo.storage.integrity import check_run

BASE = TrainConfig(
    env="CartPole-v1", num_envs=4, rollout_steps=32, minibatches=2, epochs=1, hidden_size=8, encoder_sizes=(8,),
    workers=0, quiet=True, total_steps=4 * 32 * 8, stop_at_iteration=4, seq_len=8, checkpoint_every=1,
    kl_profile_every=4, check_determinism=0,
)  # fmt: skip
NOT_CHECKED = {"run.log", "run.lock", "kl.csv"}
"""Files without checksums."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with all files that have checksums. The tests do not change it."""
    run_dir = tmp_path_factory.mktemp("integrity") / "run"
    train(dataclasses.replace(BASE, run_dir=str(run_dir)))
    config = json.loads((run_dir / "config.json").read_text())["config"]
    episode = {"config": config, "env_index": 0, "episode": 1, "iteration": 1, "failed_iteration": 1, "seed": 2}
    episode |= {"actions": [[0.0], [1.0]], "message": "test"}
    (run_dir / "failed_episode.json").write_text(json.dumps(with_checksum(episode), indent=2))
    torch.save({"weights": torch.arange(50.0)}, run_dir / "failed_minibatch.pt")
    return run_dir


@pytest.fixture
def run_dir(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_an_undamaged_run_has_no_problem(trained: Path) -> None:
    files = check_run(trained)
    assert list(files.rows) == [1, 2, 3, 4]
    assert files.newest.iteration == files.last_iteration == 4


def test_rows_of_one_configuration_differ_only_in_times(trained: Path, tmp_path: Path) -> None:
    train(dataclasses.replace(BASE, run_dir=str(tmp_path / "again")))
    tables = []
    for directory in (trained, tmp_path / "again"):
        with open(directory / "metrics.csv", newline="") as file:
            tables.append(list(csv.DictReader(file)))
    ignored = {*TIMED_COLUMNS, ROW_CHECKSUM}
    one, other = ([{k: v for k, v in row.items() if k not in ignored} for row in rows] for rows in tables)
    assert one == other
    assert all(a[ROW_CHECKSUM] != b[ROW_CHECKSUM] for a, b in zip(*tables, strict=True))


# --- damage at random places


def content(path: Path) -> Any:
    """What a reader gets from a file, for comparison."""
    if path.suffix == ".json":
        return json.loads(path.read_text())
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return {name: arrays[name].tobytes() for name in arrays}
    if path.suffix == ".pt":
        state = torch.load(path, weights_only=True)
        return {name: tensor.numpy().tobytes() for name, tensor in state.items()}
    return path.read_text().split()


def assert_detected_or_harmless(trained: Path, run_dir: Path, name: str, damaged: bytes) -> None:
    """Write damaged bytes to a file of a copy of the run. `check_run` must detect them, unless readers do not."""
    whole = (run_dir / name).read_bytes()
    (run_dir / name).write_bytes(damaged)
    message = None
    try:
        check_run(run_dir)
    except ConfigError as error:
        message = str(error)
    if message is None:
        assert content(run_dir / name) == content(trained / name), name
    else:
        assert name in message or "checkpoint" in message
        assert "\n" not in message
    (run_dir / name).write_bytes(whole)


def names_of(run_dir: Path) -> list[str]:
    names = (str(path.relative_to(run_dir)) for path in sorted(run_dir.rglob("*")) if path.is_file())
    return [name for name in names if name not in NOT_CHECKED]


@pytest.mark.parametrize(
    ("flips", "cuts"), [(80, 20), pytest.param(2000, 200, marks=[pytest.mark.slow, pytest.mark.timeout(3000)])]
)
def test_every_flipped_bit_and_every_cut_is_detected_or_harmless(
    flips: int, cuts: int, trained: Path, run_dir: Path
) -> None:
    if flips < 1000:  # one checkpoint is enough, and faster
        for name in (BEFORE, BEST):
            (run_dir / name).unlink()
    names = names_of(run_dir)
    assert {"config.json", "metrics.csv", "summary.json", NAME, "kl/000001.npz", "failed_episode.json"} <= {*names}
    rng = np.random.default_rng(flips)
    for k in range(flips + cuts):
        name = names[k % len(names)]
        damaged = bytearray((run_dir / name).read_bytes())
        if k < flips:
            damaged[int(rng.integers(len(damaged)))] ^= 1 << int(rng.integers(8))
        else:
            del damaged[int(rng.integers(len(damaged))) :]
        assert_detected_or_harmless(trained, run_dir, name, bytes(damaged))


# --- damage with a cause


def without_last_row(run_dir: Path) -> None:
    lines = (run_dir / "metrics.csv").read_bytes().splitlines(keepends=True)
    (run_dir / "metrics.csv").write_bytes(b"".join(lines[:-1]))


def other_weights(run_dir: Path) -> None:
    state = load_checkpoint(run_dir / NAME)
    state["learner"]["model"]["policy_head.bias"] += 1
    write_checkpoint(run_dir / NAME, state)


def other_summary(run_dir: Path) -> None:
    summary = json.loads((run_dir / "summary.json").read_text()) | {"weights_sha256": "0" * 64}
    del summary["checksum"]
    (run_dir / "summary.json").write_text(json.dumps(with_checksum(summary)))


def no_files(run_dir: Path) -> None:
    for path in run_dir.glob("c*"):
        path.unlink()


def no_checkpoints(run_dir: Path) -> None:
    for path in run_dir.glob("checkpoint*"):
        path.unlink()


def seed_2(run_dir: Path) -> None:
    file = run_dir / "config.json"
    file.write_text(file.read_text().replace('"seed": 1,', '"seed": 2,'))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without_last_row, r"metrics.csv has no row of iteration 4, although checkpoint.*\.pt was written after"),
        (other_weights, r"checkpoint\.pt has the weights \w+, but metrics.csv has \w+ after iteration 4; restore both"),
        (other_summary, r"summary\.json has other weights than metrics\.csv; restore both from one copy"),
        (no_files, "is not the directory of a run, because it contains no config.json; name the directory of a run"),
        (no_checkpoints, "contains no checkpoint, because the run has saved none yet; name the directory of another"),
        (seed_2, r"config\.json has changed since checkpoint\S* was written; restore it from a copy"),
        (lambda run_dir: shutil.rmtree(run_dir), "does not exist; name the directory of a run"),
    ],
)  # fmt: skip
def test_files_that_do_not_belong_together_are_named(
    damage: Callable[[Path], None], message: str, run_dir: Path
) -> None:
    damage(run_dir)
    with pytest.raises(ConfigError, match=message):
        check_run(run_dir)


# --- resume


def test_a_changed_config_is_noticed_and_a_new_directory_is_a_way_out(run_dir: Path, tmp_path: Path) -> None:
    seed_2(run_dir)
    message = (
        rf"^{run_dir / 'config.json'} has changed since the checkpoint was written; restore it, and change options "
        "with flags of --resume, or with train --init-from RUN_DIR$"
    )
    with pytest.raises(ConfigError, match=message):
        resume(run_dir, stop_at_iteration=5)
    (run_dir / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"config\.json is damaged \(No such file or directory\); restore it, or con"):
        resume(run_dir, stop_at_iteration=5)
    fork = tmp_path / "fork"
    resume(run_dir, new_run_dir=fork, stop_at_iteration=5)
    assert check_run(fork).last_iteration == 5  # also the best checkpoint belongs to the new config.json


@pytest.mark.parametrize("key", [*KEYS, *(f"learner.{name}" for name in LEARNER_KEYS)])
def test_a_checkpoint_with_a_value_of_another_type_is_refused(key: str, run_dir: Path) -> None:
    state = load_checkpoint(run_dir / NAME)
    part = state["learner"] if key.startswith("learner.") else state
    name = key.removeprefix("learner.")
    part[name] = [part[name]] if not isinstance(part[name], list) else "text"
    write_checkpoint(run_dir / NAME, state)
    with pytest.raises(ConfigError, match=rf"^the checkpoint of {run_dir} has a {key} of another type; use another"):
        resume(run_dir, stop_at_iteration=5)


def test_a_checkpoint_without_a_key_is_refused_as_a_policy_and_as_initial_weights(run_dir: Path) -> None:
    state = load_checkpoint(run_dir / NAME)
    del state["learner"]["obs_moments"]
    write_checkpoint(run_dir / NAME, state)
    message = rf"^the checkpoint of {run_dir} lacks learner\.obs_moments; use another checkpoint"
    new = from_json(json.loads(state["config"]) | {"init_from": str(run_dir), "run_dir": str(run_dir.parent / "new")})
    calls: list[Callable[[], object]] = [
        lambda: load_policy(run_dir), lambda: evaluate(run_dir, episodes=1), lambda: train(new),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(ConfigError, match=message):
            call()


def test_a_torn_last_row_is_dropped_and_a_missing_newest_checkpoint_is_replaced(run_dir: Path, trained: Path) -> None:
    (run_dir / NAME).unlink()
    assert load_checkpoint(run_dir / BEFORE)["iteration"] == 3
    whole = (run_dir / "metrics.csv").read_bytes()
    (run_dir / "metrics.csv").write_bytes(whole[:-3])
    resume(run_dir, stop_at_iteration=4)
    assert "its last row is incomplete and is removed" in (run_dir / "run.log").read_text()
    one, other = check_run(run_dir), check_run(trained)
    assert one.rows[4]["weights_hash"] == other.rows[4]["weights_hash"]
