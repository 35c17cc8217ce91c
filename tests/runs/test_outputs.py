"""Files of a run that is resumed: what later iterations had written is removed, and what does not fit is named."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from public_helpers import csv_rows

from shmppo.config.train_config import TrainConfig
from shmppo.extensions.kl_profile.profile import read_profiles
from shmppo.runs.launch import resume, train

BASE = TrainConfig(
    env="CartPole-v1", num_envs=4, rollout_steps=16, minibatches=2, epochs=1, hidden_size=16, encoder_sizes=(16,),
    workers=0, quiet=True, total_steps=4 * 16 * 8, seq_len=8, checkpoint_every=2, kl_profile_every=1,
)  # fmt: skip


def test_profiles_of_iterations_that_are_trained_again_are_removed(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"

    def fail(row: dict[str, float]) -> None:
        if row["iteration"] == 3:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):  # after iteration 3, whose checkpoint is not written
        train(dataclasses.replace(BASE, run_dir=str(run_dir)), callback=fail)
    assert sorted(read_profiles(run_dir)) == [1, 2, 3]

    def refuse(row: dict[str, float]) -> None:
        assert sorted(read_profiles(run_dir)) == [1, 2, 3], "written again"
        raise ZeroDivisionError

    (run_dir / "kl" / "000008.npz").write_bytes(b"of a later iteration")
    with pytest.raises(ZeroDivisionError):
        resume(run_dir, callback=refuse)
    assert [row["iteration"] for row in csv_rows(run_dir / "kl.csv")] == ["1", "2", "3"]
