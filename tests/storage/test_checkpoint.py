"""Checkpoints: which are refused, and the files that show why a run has failed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from conftest import summary_of
from networks import Leaky
from public_helpers import SIX_ITERATIONS as BASE

from shmppo import load_policy
from shmppo.errors import ConfigError, EnvError, TrainingError
from shmppo.runs.launch import resume, train
from shmppo.storage.checkpoint import BEFORE, NAME, load_selected_checkpoint
from shmppo.storage.checkpoint_file import FORMAT, load_checkpoint, write_checkpoint


def test_a_checkpoint_of_other_spaces_is_refused_with_the_difference(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train(dataclasses.replace(BASE, stop_at_iteration=1, run_dir=str(run_dir)))
    state = load_checkpoint(run_dir / NAME)

    def in_environment(env: str) -> None:
        """Change the environment of the checkpoint, as a new version of the environment would."""
        state["config"] = json.dumps(json.loads(state["config"]) | {"env": env})
        write_checkpoint(run_dir / NAME, state)

    in_environment("Pendulum-v1")
    with pytest.raises(ConfigError, match=r"carry obs has the shape \(4, 4\), but \(4, 3\) is needed; the environ"):
        resume(run_dir)
    in_environment("environments:FourNumbersThreeActions-v0")
    with pytest.raises(ConfigError, match=r"parameter policy_head.bias has the shape \(2,\), but \(3,\) is"):
        resume(run_dir, trust=["environments"])


def test_a_checkpoint_of_another_format_is_refused_in_one_sentence(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train(dataclasses.replace(BASE, stop_at_iteration=1, run_dir=str(run_dir)))
    state = load_checkpoint(run_dir / NAME)
    for name in (NAME, BEFORE):
        write_checkpoint(run_dir / name, state | {"format": FORMAT + 1, "fingerprint": {"shmppo": "9.9"}})
    message = (
        rf"^{run_dir / NAME} has checkpoint format {FORMAT + 1}, but this version reads format {FORMAT}; "
        r"use the version of shmppo that wrote it \(9\.9\)"
    )
    for use in (resume, load_policy):
        with pytest.raises(ConfigError, match=message):
            use(run_dir)


class Breaks(Leaky):
    """Its features are NaN from its `left`-th pass with gradients on. None: never."""

    left: ClassVar[int | None] = None

    def forward(self, obs: Any, first: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features, state = super().forward(obs, first, state)
        if Breaks.left is not None and torch.is_grad_enabled():
            Breaks.left -= 1
            features = features if Breaks.left > 0 else features * torch.nan
        return features, state


def breaks(shapes: Any, config: Any) -> torch.nn.Module:
    return Breaks(shapes)


def test_a_run_can_resume_after_a_minibatch_that_is_not_finite(tmp_path: Path) -> None:
    def break_in_the_third_minibatch(row: dict[str, float]) -> None:
        if row["iteration"] == 2:
            Breaks.left = 3

    run_dir = tmp_path / "run"
    config = dataclasses.replace(BASE, network="test_checkpoint:breaks", grad_shards=1, run_dir=str(run_dir))
    try:
        with pytest.raises(
            TrainingError,
            match=r"minibatch 0 of epoch 1: the loss is not finite .*nan.*; this minibatch has not changed",
        ):
            train(config, callback=break_in_the_third_minibatch)
    finally:
        Breaks.left = None
    summary = summary_of(run_dir)
    assert (summary["iterations"], summary["weights_sha256"]) == (2, None)
    assert summary["error"].startswith("minibatch 0 of epoch 1: the loss is not finite")
    straight = train(dataclasses.replace(config, run_dir=str(tmp_path / "straight")))
    assert resume(run_dir, trust=["test_checkpoint"])["weights_sha256"] == straight["weights_sha256"]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_an_environment_ends_the_run_and_saves_the_iteration_before(workers: int, tmp_path: Path) -> None:
    """Environment 4, which the second worker has, raises in the second rollout, at the fifth step of an episode."""
    env, run_dir = "faulty_environments:FaultyStream-v0", tmp_path / "run"
    config = dataclasses.replace(BASE, env=env, num_envs=6, workers=workers, run_dir=str(run_dir))
    with pytest.raises(
        EnvError, match=r"^environment 4: step raised ValueError\('the simulation exploded'\)"
    ) as caught:
        train(config)
    assert load_selected_checkpoint(run_dir)["iteration"] == 1
    assert len(json.loads((run_dir / "failed_episode.json").read_text())["actions"]) == 5
    summary = summary_of(run_dir)
    assert (summary["error"], summary["iterations"], summary["stop_reason"]) == (str(caught.value), 1, "error")
