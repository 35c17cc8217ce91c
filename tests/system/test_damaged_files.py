"""Damaged files of a run: they are named in one sentence, before the run resumes or something is replayed."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from public_helpers import exit_code, refused

from shmppo import ConfigError, TrainConfig, load_policy, replay, resume, train

BASE = TrainConfig(
    env="CartPole-v1", num_envs=4, rollout_steps=32, minibatches=2, epochs=1, hidden_size=8, encoder_sizes=(8,),
    workers=0, quiet=True, total_steps=4 * 32 * 8, stop_at_iteration=4, seq_len=8, checkpoint_every=1,
)  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with the checkpoints of iterations 4 and 3. The tests do not change it."""
    run_dir = tmp_path_factory.mktemp("damaged") / "run"
    train(dataclasses.replace(BASE, run_dir=str(run_dir)))
    return run_dir


@pytest.fixture
def run_dir(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def bits_of(policy: Any) -> bytes:
    """An action, and the state after it, as a sample of what a policy does."""
    action, state = policy.act(np.array([0.1, -0.2, 0.03, 0.4]), policy.initial_state(), deterministic=False)
    return np.asarray(action).tobytes() + state.tobytes()


def test_no_flipped_bit_of_the_checkpoint_gives_another_policy(trained: Path, run_dir: Path) -> None:
    """A damaged checkpoint is refused if there is none before it."""
    expected = bits_of(load_policy(trained))
    for path in run_dir.glob("checkpoint-*.pt"):
        path.unlink()
    whole = (run_dir / "checkpoint.pt").read_bytes()
    rng = np.random.default_rng(0)
    others, refusals = 0, []
    for bit in rng.integers(len(whole) * 8, size=60).tolist():
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        (run_dir / "checkpoint.pt").write_bytes(damaged)
        try:
            policy = load_policy(run_dir)
        except Exception as error:
            refusals.append(error)
        else:
            others += bits_of(policy) != expected
    assert others == 0, "damaged checkpoints that were loaded with other content"
    assert {type(error) for error in refusals} == {ConfigError}
    assert all(re.search("is damaged or not a checkpoint|is not a checkpoint", str(error)) for error in refusals)


def test_a_missing_newest_checkpoint_is_replaced_by_the_one_before(run_dir: Path) -> None:
    (run_dir / "checkpoint.pt").unlink()
    try:
        iteration = load_policy(run_dir).iteration
    except ConfigError as error:
        raise AssertionError(error) from error
    assert iteration == 3


def rewrite(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the content of a checkpoint, and make its hash right again."""
    data = path.read_bytes()
    head = data.partition(b"\n")[0] if data.startswith(b"shmppo") else b""
    state = torch.load(io.BytesIO(data.split(b"\n", 2)[2] if head else data), weights_only=True)
    change(state)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    digest = hashlib.sha256(content).hexdigest().encode()
    path.write_bytes(b"\n".join([head, digest, content]) if head else content)


KEYS = ("config", "fingerprint", "iteration", "env_steps", "learner", "carry", "actions", "episodes", "seconds")
LEARNER_KEYS = ("model", "optimizer", "obs_moments", "return_moments", "discounted_return")


@pytest.mark.parametrize("key", [*KEYS, *(f"learner.{name}" for name in LEARNER_KEYS)])
def test_a_checkpoint_without_a_key_is_refused(key: str, run_dir: Path) -> None:
    def remove(state: dict[str, Any]) -> None:
        del (state["learner"] if "." in key else state)[key.rpartition(".")[2]]

    rewrite(run_dir / "checkpoint.pt", remove)
    with refused(rf"^the checkpoint of {run_dir} lacks {key}; use another checkpoint"):
        resume(run_dir, stop_at_iteration=5)


# --- files beside the checkpoint


def damaged_row(run_dir: Path) -> None:
    file = run_dir / "metrics.csv"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:2], lines[2].replace(b",", b",1", 1), *lines[3:]]))


def another_column(run_dir: Path) -> None:
    file = run_dir / "metrics.csv"
    header, *rows = file.read_bytes().splitlines()
    file.write_bytes(b"\r\n".join([header + b",more", *(row + b",1" for row in rows), b""]))


def headerless(run_dir: Path) -> None:
    file = run_dir / "metrics.csv"
    file.write_bytes(file.read_bytes().partition(b"\n")[2])


def directory_as(name: str) -> Callable[[Path], None]:
    def damage(run_dir: Path) -> None:
        (run_dir / name).unlink()
        (run_dir / name).mkdir()

    return damage


def content_of(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda run_dir: (run_dir / name).write_bytes(content) and None


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "row": (damaged_row, r"metrics\.csv, line 3: the row is damaged, because its checksum differs; restore the fi"),
    "no header": (headerless, r"metrics\.csv, line 1: these are not the columns that this version writes"),
    "column": (another_column, r"metrics\.csv, line 1: these are not the columns that this version writes"),
    "garbage": (content_of("metrics.csv", b"\xff\xfe\r\n" * 9), r"metrics\.csv, line 1: these are not"),
    "metrics as directory": (directory_as("metrics.csv"), r"metrics\.csv cannot be read: Is a directory"),
    "log as directory": (directory_as("run.log"), r"run\.log is a directory, but the run writes this file; remove it"),
    "list": (content_of("config.json", b"[]"), r"config\.json is damaged \(it is \[\] instead"),
    "null": (content_of("config.json", b"null"), r"config\.json is damaged \(it is null instead of an"),
    "list inside": (content_of("config.json", b'{"config": [1]}'), r"config\.json is damaged \(config is \[1\], which"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_reported_before_a_run_resumes(case: str, run_dir: Path) -> None:
    damage, message = DAMAGE[case]
    damage(run_dir)
    with refused(f"^{run_dir}/{message}"):
        resume(run_dir, stop_at_iteration=5)
    assert load_policy(run_dir).iteration == 4


# --- episodes to replay

CONFIG = json.loads(json.dumps(TrainConfig(env="CartPole-v1", num_envs=4, workers=0).to_json()))
EPISODE: dict[str, Any] = {
    "config": CONFIG, "env_index": 1, "episode": 0, "iteration": 1, "failed_iteration": 1, "seed": 7,
    "actions": [[0.0], [1.0]], "message": "a test",
}  # fmt: skip
NOT_AN_OBJECT = {"[]": r"it is \[\] instead of an object", "null": "it is null", "3": "it is 3", '"a"': 'it is "a"'}
EPISODES: list[tuple[Any, str]] = [
    *((text, rf" is damaged \({reason}") for text, reason in NOT_AN_OBJECT.items()),
    (EPISODE | {"env_index": -1}, r" is damaged \(env_index is -1, which must be a whole number of at least 0\)"),
    (EPISODE | {"env_index": 4}, ": env_index is 4, but the run has 4 environments; restore it"),
    (EPISODE | {"episode": True}, r" is damaged \(episode is true"),
    (EPISODE | {"actions": [[0.0], [1.0, 2.0]]}, r" is damaged \(actions is .* of equal length\)"),
    (EPISODE | {"actions": [[0.0], [float("nan")]]}, r" is damaged \(it contains NaN\)"),
    (EPISODE | {"actions": [[float("inf")]]}, r" is damaged \(actions is"),
    (EPISODE | {"actions": [[1e300]]}, r" is damaged \(actions is"),
    (EPISODE | {"actions": []}, " has actions that do not fit CartPole-v1"),
    (EPISODE | {"actions": [[0.0, 1.0]]}, " has actions that do not fit CartPole-v1, whose actions have 1 numbers"),
    (EPISODE | {"config": {"seed": "one"}}, ": --seed is 'one'; it must be int"),
    ({k: v for k, v in EPISODE.items() if k != "actions"}, r" is damaged \(the key actions is missing\)"),
    (EPISODE | {"checksum": "0" * 64}, r" is damaged \(its checksum differs\)"),
]


@pytest.mark.parametrize(("content", "message"), EPISODES)
def test_replay_refuses_an_episode_of_another_form(
    content: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "failed_episode.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    assert exit_code(replay.main, [file], monkeypatch) == 2
    error = capsys.readouterr().err
    assert re.match(f"error: {file}{message}", error), f"the message is: {error}"
    assert len(error.splitlines()) == 1
