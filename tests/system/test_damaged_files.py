"""Damaged files of a run: they are named in one sentence, before the run resumes or something is replayed."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from public_helpers import SIX_ITERATIONS, exit_code, refused, run_fixture, train_in

from shmppo import TrainConfig, evaluate, export, load_policy, replay, resume

BASE = dataclasses.replace(SIX_ITERATIONS, epochs=1, total_steps=4 * 32 * 8, stop_at_iteration=4, checkpoint_every=1)


trained = run_fixture(BASE)
"""A run with the checkpoints of iterations 4 and 3. The tests do not change it."""


@pytest.fixture
def run_dir(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def flip_a_byte(path: Path) -> None:
    """Damage a file, but not the other names that it may have."""
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.unlink()
    path.write_bytes(damaged)


def test_a_damaged_newest_checkpoint_is_not_used_and_the_message_names_another_one(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip_a_byte(run_dir / "checkpoint.pt")
    message = rf"^{run_dir}/checkpoint\.pt is damaged or not a checkpoint \(its SHA-256 differs\); use another one with"
    with refused(f"{message} --checkpoint checkpoint-1.pt$"):
        load_policy(run_dir)
    for main, flags in ((evaluate.main, []), (export.main, ["--out", tmp_path / "policy.onnx"])):
        assert exit_code(main, [run_dir, *flags]) == 2
        assert capsys.readouterr().err.splitlines()[-1].endswith("; use another one with --checkpoint checkpoint-1.pt")
    assert not (tmp_path / "policy.onnx").exists()
    with refused(f"{message} --init-from {run_dir}/checkpoint-1.pt$"):
        train_in(tmp_path / "new", BASE, init_from=str(run_dir))
    assert load_policy(run_dir, checkpoint="checkpoint-1.pt").iteration == 3
    (run_dir / "checkpoint-1.pt").write_bytes(b"")
    with refused(f"{message} --checkpoint checkpoint-best.pt$"):
        load_policy(run_dir)
    (run_dir / "checkpoint-best.pt").unlink()
    with refused(r"is damaged or not a checkpoint \(its SHA-256 differs\); restore it from a copy$"):
        load_policy(run_dir)


# --- files beside the checkpoint


def test_metrics_that_are_shorter_than_at_the_checkpoint_are_refused(run_dir: Path) -> None:
    whole = (run_dir / "metrics.csv").read_bytes()
    (run_dir / "metrics.csv").write_bytes(whole[:-3])
    message = rf"^{run_dir}/metrics\.csv has {{}} of the 4 rows that it had when the checkpoint was written; restore"
    with refused(message.format(3)):
        resume(run_dir, stop_at_iteration=5)
    (run_dir / "metrics.csv").unlink()
    with refused(message.format(0)):
        resume(run_dir, stop_at_iteration=5, new_run_dir=run_dir.parent / "fork")
    (run_dir / "metrics.csv").write_bytes(whole.replace(b"\n2,", b"\nx2,"))
    with refused(rf"^{run_dir}/metrics\.csv is damaged \(invalid literal .*'x2'\); restore it from a copy"):
        resume(run_dir, stop_at_iteration=5)


def test_what_was_written_after_the_checkpoint_is_removed(run_dir: Path, trained: Path) -> None:
    whole = (run_dir / "metrics.csv").read_bytes()
    last = whole.splitlines(keepends=True)[-1]
    (run_dir / "metrics.csv").write_bytes(whole + last.replace(b"4,", b"5,", 1) + b"6,12")
    resume(run_dir, stop_at_iteration=5)
    rows = (run_dir / "metrics.csv").read_bytes()
    assert rows.startswith(whole)
    assert [row.partition(b",")[0] for row in rows.splitlines()[1:]] == [b"1", b"2", b"3", b"4", b"5"]


# --- episodes to replay

CONFIG = json.loads(json.dumps(TrainConfig(env="CartPole-v1", num_envs=4, workers=0).to_json()))
EPISODE: dict[str, Any] = {
    "config": CONFIG, "env_index": 1, "episode": 0, "iteration": 1, "failed_iteration": 1, "seed": 7,
    "actions": [[0.0], [1.0]], "message": "a test",
}  # fmt: skip
NOT_A_RUN = " is not the failed_episode.json of a run "
EPISODES: list[tuple[Any, str]] = [
    *((text, r" is damaged \(it contains no object\); name the failed") for text in ("[]", "null", "3", '"a"')),
    (EPISODE | {"env_index": None}, NOT_A_RUN),
    (EPISODE | {"actions": [[0.0], [1.0, 2.0]]}, NOT_A_RUN),
    (EPISODE | {"actions": [[0.0], [float("nan")]]}, " has actions that do not fit CartPole-v1"),
    (EPISODE | {"actions": []}, " has actions that do not fit CartPole-v1"),
    (EPISODE | {"actions": [[0.0, 1.0]]}, " has actions that do not fit CartPole-v1, whose actions have 1 numbers"),
    (EPISODE | {"config": {"seed": "one"}}, rf"{NOT_A_RUN}\(--seed is 'one'; it must be int\)"),
    ({k: v for k, v in EPISODE.items() if k != "actions"}, rf"{NOT_A_RUN}\('actions'\)"),
]


@pytest.mark.parametrize(("content", "message"), EPISODES)
def test_replay_refuses_an_episode_of_another_form(
    content: Any, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "failed_episode.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    assert exit_code(replay.main, [file]) == 2
    error = capsys.readouterr().err
    assert re.match(f"error: {file}{message}", error), f"the message is: {error}"
    assert len(error.splitlines()) == 1
