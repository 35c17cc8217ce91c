"""Evaluation during training is a phase of lock-step: the same rows for any number of workers, crashes, and ranks."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rank_processes
from conftest import worker_processes
from gymnasium.envs.classic_control import CartPoleEnv
from public_helpers import SIX_ITERATIONS, evaluation_rows, train_in

from shmppo.errors import ConfigError, ShmppoError
from shmppo.loggers.metrics import EVALUATION_GLOSSARY, GLOSSARY, HASHES
from shmppo.policies.evaluation import evaluate
from shmppo.runs.evaluation import Evaluations
from shmppo.runs.launch import resume, train
from shmppo.storage.checkpoint import load_selected_checkpoint
from shmppo.utils.phase_timer import PHASES

SMALL = dataclasses.replace(SIX_ITERATIONS, total_steps=4 * 32 * 5, eval_every=2, eval_episodes=7, check_determinism=0)


def trained(directory: Path, **changes: Any) -> tuple[str, list[dict[str, float]]]:
    """Train SMALL with some changes. Return the hash of the weights and the rows of eval.csv."""
    summary = train_in(directory, SMALL, **changes)
    return summary["weights_sha256"], evaluation_rows(directory)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, list[dict[str, float]]]:
    """A run without workers."""
    run_dir = tmp_path_factory.mktemp("reference") / "run"
    return run_dir, *trained(run_dir, keep_every=2)


def test_an_evaluation_does_not_change_the_weights(reference: Any, tmp_path: Path) -> None:
    summary = train_in(tmp_path / "run", SMALL, eval_every=None)
    assert summary["weights_sha256"] == reference[1]
    assert not (tmp_path / "run" / "eval.csv").exists()


def test_a_row_contains_what_the_command_evaluate_finds(reference: Any) -> None:
    run_dir, _, rows = reference
    for row, checkpoint in zip(rows, (2, 4, "last"), strict=True):
        result = evaluate(run_dir, checkpoint=checkpoint, episodes=7, seed=SMALL.seed)
        assert row["eval/return"] == pytest.approx(np.mean(result.returns), rel=1e-9)
        assert row["eval/return_std"] == pytest.approx(np.std(result.returns), rel=1e-9)
        assert (row["eval/return_min"], row["eval/return_max"]) == (min(result.returns), max(result.returns))
        assert row["eval/length"] == pytest.approx(np.mean(result.lengths), rel=1e-9)
        assert (row["eval/episodes"], row["env_steps"]) == (7, row["iteration"] * 4 * 32)


CANDIDATES: dict[str, tuple[Sequence[float], dict[str, Any], int]] = {
    "an evaluation between two checkpoints": ([1, 3, 2], {}, 4),
    "the last evaluation": ([1, 2, 3], {}, 5),
    "no evaluation at a pause": ([1, 9], {"stop_at_iteration": 3}, 2),
    "the evaluation at the end by a condition": ([1, 9], {"stop_when": ("env_steps>=384",)}, 3),
}
"""Returns of the evaluations, changes of SMALL, and the iteration of the best checkpoint."""


def script_evaluations(monkeypatch: pytest.MonkeyPatch, returns: Sequence[float]) -> None:
    """Let the evaluations have these mean returns."""
    original, left = Evaluations.evaluate, iter(returns)
    monkeypatch.setattr(Evaluations, "evaluate", lambda *arguments: original(*arguments) | {"eval/return": next(left)})


@pytest.mark.parametrize("case", CANDIDATES)
def test_the_best_checkpoint_is_that_of_the_best_evaluation(
    case: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    returns, changes, best = CANDIDATES[case]
    script_evaluations(monkeypatch, returns)
    trained(tmp_path / "run", best_by="eval/return", **changes)
    assert load_selected_checkpoint(tmp_path / "run", "best")["iteration"] == best


def test_after_a_resume_a_worse_evaluation_does_not_replace_the_best_checkpoint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script_evaluations(monkeypatch, [9, 1, 2])
    trained(tmp_path / "run", best_by="eval/return", stop_at_iteration=2)
    assert resume(tmp_path / "run")["best_value"] == 9
    assert load_selected_checkpoint(tmp_path / "run", "best")["iteration"] == 2


def test_after_a_resume_with_other_evaluations_their_values_decide(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script_evaluations(monkeypatch, [9, 1, 2])
    trained(tmp_path / "run", best_by="eval/return", stop_at_iteration=2)
    assert resume(tmp_path / "run", eval_env_kwargs={"sutton_barto_reward": True})["best_value"] == 2
    assert load_selected_checkpoint(tmp_path / "run", "best")["iteration"] == 5


@pytest.mark.parametrize(("at", "evaluated"), [(1, []), (5, [5])])
def test_a_run_that_gets_a_signal_has_a_last_evaluation_only_if_it_has_finished(
    at: int, evaluated: list[int], tmp_path: Path
) -> None:
    def callback(row: dict[str, float]) -> None:
        if row["iteration"] == at:
            os.kill(os.getpid(), signal.SIGTERM)

    summary = train(dataclasses.replace(SMALL, eval_every=9, run_dir=str(tmp_path / "run")), callback=callback)
    assert (summary["stop_reason"], summary.interrupted) == ("finished" if evaluated else "signal", True)
    assert [row["iteration"] for row in evaluation_rows(tmp_path / "run")] == evaluated


def test_a_worker_that_dies_in_an_evaluation_changes_nothing(tmp_path: Path) -> None:
    faulty = {"env": "faulty_environments:FaultyInEvaluation", "workers": 2, "hide_obs": ()}
    expected = trained(tmp_path / "expected", **faulty)
    token = tmp_path / "token"
    assert trained(tmp_path / "run", **faulty, eval_env_kwargs={"token": str(token)}) == expected
    assert token.exists()
    assert not worker_processes()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_environment_that_raises_ends_the_run_with_its_episode(workers: int, tmp_path: Path) -> None:
    message = r"the evaluation of iteration 2 failed in episode \d: step raised ValueError\('no license'\)"
    run_dir = tmp_path / "run"
    with pytest.raises(ShmppoError, match=f"^{message}") as raised:
        trained(run_dir, env="faulty_environments:FaultyInEvaluation", workers=workers, eval_env_kwargs={"fails": True})
    assert any("To continue from the last checkpoint: " in hint for hint in raised.value.hints)
    assert not worker_processes()


def test_failed_episodes_do_not_count_with_skip_bad_episodes(tmp_path: Path) -> None:
    faulty = {"env": "faulty_environments:FaultyInEvaluation", "eval_env_kwargs": {"fails": True}}
    _, rows = trained(tmp_path / "run", **faulty, skip_bad_episodes=True)
    assert [row["eval/episodes"] for row in rows] == [0, 0, 0]
    assert all(np.isnan(row["eval/return"]) for row in rows)


def test_other_arguments_of_the_environment(tmp_path: Path) -> None:
    _, rows = trained(
        tmp_path / "longer", env="environments:Counter", env_kwargs={"length": 5}, eval_env_kwargs={"length": 9}
    )
    assert [row["eval/length"] for row in rows] == [9, 9, 9]
    with pytest.raises(ConfigError, match=r"--eval-env-kwargs is .*; its values must be finite numbers"):
        dataclasses.replace(SMALL, eval_env_kwargs={"a": float("nan")})


def test_arguments_that_do_not_fit_are_refused_before_the_run(tmp_path: Path) -> None:
    messages = {
        "wrong": r"^--env .*unexpected keyword argument 'foo'.*; it was given the arguments {'foo': 1}$",
        "shape": r"^evaluations with --eval-env-kwargs .*dict.*: observation_space is Dict, and was Box in training",
    }
    for name, (env, given, changed) in {
        "wrong": ("environments:Counter", {}, {"foo": 1}),
        "shape": ("space_environments:Shaped", {"space": "matrix"}, {"space": "dict"}),
    }.items():
        with pytest.raises(ConfigError, match=messages[name]):
            trained(tmp_path / "run", env=env, env_kwargs=given, eval_env_kwargs=changed)
    assert not (tmp_path / "run").exists()


def test_callbacks_and_loggers_get_the_evaluation_with_its_iteration(tmp_path: Path) -> None:
    seen: list[dict[str, float]] = []
    train_in(tmp_path / "run", SMALL, callback=lambda row: seen.append(row))
    evaluated = [row for row in seen if "eval/return" in row]
    assert [row["iteration"] for row in evaluated] == [2, 4]
    assert evaluated[0].keys() == (GLOSSARY.keys() | EVALUATION_GLOSSARY.keys()) - {*HASHES}
    assert evaluated[0]["evaluation_seconds"] > 0
    assert seen[0]["evaluation_seconds"] == 0
    for row in seen:
        seconds = sum(row[f"{phase}_seconds"] for phase in PHASES if phase != "evaluation")
        assert row["steps_per_second"] * seconds == pytest.approx(4 * 32)


def test_a_video_of_each_evaluation(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    trained(tmp_path / "run", eval_videos=True, eval_every=5)
    assert [file.name for file in (tmp_path / "run" / "videos").iterdir()] == ["000005.mp4"]


class Invisible(CartPoleEnv):
    def render(self) -> Any:
        return 1 / 0


def test_videos_that_cannot_be_recorded_are_refused_before_training(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    with pytest.raises(ConfigError, match=r"^\S+ cannot be rendered here \(ZeroDivisionError\(.*\); write"):
        trained(tmp_path / "run", env="test_evaluation_phase:Invisible", eval_videos=True)
    trained(tmp_path / "run")  # the directory can be used again


@pytest.mark.slow(reason="about 15 s")
def test_ranks_play_their_shares(tmp_path: Path) -> None:
    """Together they have the episodes of one process."""
    run_dir = tmp_path / "run"
    flags = ["--eval-every", "2", "--eval-episodes", "7", "--keep-every", "2", "--total-steps", 2 * 4 * 16 * 3]
    rank_processes.finish(rank_processes.start(run_dir, *flags))
    rows = evaluation_rows(run_dir)
    assert not (run_dir / "rank-1" / "eval.csv").exists()
    assert [row["iteration"] for row in rows] == [2, 3]
    result = evaluate(run_dir, checkpoint=2, episodes=7, seed=1)
    assert rows[0]["eval/return"] == pytest.approx(np.mean(result.returns), rel=1e-9)
    assert rows[0]["eval/episodes"] == 7
