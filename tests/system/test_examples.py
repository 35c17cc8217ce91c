"""The examples run for two short iterations, and every parameter of their networks learns."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import TESTS, summary_of
from public_helpers import python

from shmppo.config.train_config import load_config
from shmppo.envs.inspection import inspect_task
from shmppo.models.actor_critic import build_model, weights_sha256
from shmppo.storage.checkpoint_file import load_checkpoint

EXAMPLES = sorted(set((TESTS.parent / "examples").glob("*.py")) - {TESTS.parent / "examples" / "board_game_players.py"})

NEEDED = {
    "agents_with_memory": ["pettingzoo"],
    "car_racing": ["Box2D", "cv2", "pygame"],
    "lunarlander": ["Box2D"],
    "minigrid_memory": ["minigrid"],
    "pong": ["ale_py", "cv2"],
    "popgym_repeat": ["popgym"],
    "self_play": ["pettingzoo"],
    "simple_spread": ["mpe2"],
}
"""Modules of the extras that an example needs."""
SHORT = (
    "--num-envs", "4", "--rollout-steps", "32", "--minibatches", "2", "--grad-shards", "2", "--stop-at-iteration", "2",
)  # fmt: skip


LIKE_OTHERS = ("ant", "hopper", "humanoid", "walker2d")
"""Examples that differ from halfcheetah.py only in their options."""


@pytest.mark.long
@pytest.mark.parametrize(
    "example",
    [
        pytest.param(path, marks=pytest.mark.slow(reason="8 s each") if path.stem in LIKE_OTHERS else (), id=path.stem)
        for path in EXAMPLES
    ],
)
def test_an_example_trains(example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(example.parent))  # as for a script that is run
    for module in NEEDED.get(example.stem, ()):
        pytest.importorskip(module)
    run_dir = tmp_path / "run"
    result = python(example, *SHORT, "--quiet", "--run-dir", run_dir, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    summary = summary_of(run_dir)
    assert summary["iterations"] == 2
    config = load_config(run_dir)
    task = inspect_task(config)
    start = build_model(config, task.observation, task.distribution).state_dict()
    trained = load_checkpoint(run_dir / "checkpoint.pt")["learner"]["model"]
    assert weights_sha256(trained.values()) == summary["weights_sha256"]
    assert all((trained[name] != start[name]).any() for name in start), "a parameter did not learn"
