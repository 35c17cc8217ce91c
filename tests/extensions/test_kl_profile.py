"""KL profiles: closed forms against samples, the recorder against every policy, and unchanged weights."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import planned, sampled
from helpers import KERNELS
from public_helpers import SIX_ITERATIONS, csv_rows, train_in
from torch import distributions as torch_distributions

from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.extensions.kl_profile.profile import KLProfile, KLRecorder, probe_sequences, read_profiles, recorded_steps
from shmppo.ppo.gradients import ShardGradients
from shmppo.runs.launch import resume

SMALL = dataclasses.replace(SIX_ITERATIONS, hide_obs=(1, 3), epochs=3, stop_at_iteration=2)
NONE = dataclasses.replace(SMALL, env="HalfCheetah-v5", hide_obs=(), core="none")


def test_recorded_steps_are_all_or_logarithmically_spaced() -> None:
    assert recorded_steps(5).tolist() == [0, 1, 2, 3, 4, 5]
    many = recorded_steps(10_000)
    assert len(many) <= 256
    assert (many[0], many[-1]) == (0, 10_000)
    assert many[:10].tolist() == list(range(10))
    late = many[many > 1000]
    np.testing.assert_allclose(late[1:] / late[:-1], (late[1:] / late[:-1]).mean(), rtol=2e-3)


def test_the_probe_has_complete_sequences_from_the_whole_rollout() -> None:
    sequences = np.stack([np.arange(400), np.arange(400), np.full(400, 8), np.zeros(400)], axis=1).astype(int)
    probe = probe_sequences(sequences)
    assert probe[:, 2].sum() == 512
    assert probe[0, 0] == 0
    assert set(np.diff(probe[:, 0])) == {6, 7}
    assert len(probe_sequences(sequences[:3])) == 3


def test_the_fitted_factor_and_the_monotonic_share() -> None:
    steps = np.arange(41)
    reference = 0.01 * 0.9**steps
    reference[-1] = 0.0
    profile = KLProfile(steps, np.append(np.full(40, 1e-5), np.nan), reference, 512, 0.0)
    assert profile.gamma == pytest.approx(0.9)
    assert profile.slope == pytest.approx(40 * np.log10(0.9))
    assert profile.monotonic_share == 1
    assert profile.sequential_mean == pytest.approx(1e-5)
    with_hump = dataclasses.replace(profile, reference=np.where(steps == 4, 1.0, reference))
    assert with_hump.monotonic_share == pytest.approx(39 / 40)


@pytest.mark.parametrize("config", [SMALL, NONE], ids=["lstm", "none"])
def test_recording_does_not_change_the_weights(config: TrainConfig, tmp_path: Path) -> None:
    plain = train_in(tmp_path / "plain", config)
    recorded = train_in(tmp_path / "kl", config, kl_profile_every=1, workers=2)
    assert recorded["weights_sha256"] == plain["weights_sha256"]
    assert list(read_profiles(tmp_path / "kl")) == [1, 2]
    assert not (tmp_path / "plain" / "kl.csv").exists()


class Keeping:
    """Gradients that keep each policy that they evaluate."""

    def __init__(self, gradients: ShardGradients) -> None:
        self.gradients = gradients
        self.policies: list[torch_distributions.Distribution] = []

    def outputs(self, sequences: np.ndarray) -> tuple[np.ndarray, ...]:
        outputs = self.gradients.outputs(sequences)
        self.policies.append(torch_distributions.Categorical(logits=torch.from_numpy(outputs[0]).double()))
        return outputs


@KERNELS
def test_the_recorder_agrees_with_every_policy(kernel: Any) -> None:
    config = dataclasses.replace(SMALL, kernel=kernel)
    buffers, learner, _ = sampled(config)
    planned(buffers, learner)
    distribution = inspect_task(config).distribution
    gradients = Keeping(ShardGradients(config, distribution, learner.model, buffers))
    recorder = KLRecorder(config, distribution, gradients)  # type: ignore[arg-type]
    recorder.begin(buffers.minibatches)
    weights, draw = buffers.published.weights, np.random.default_rng(0)
    for step in range(6):
        weights += 0.1 * draw.standard_normal(weights.shape, np.float32)
        recorder.record(step + 1)
    profile, policies = recorder.end(6), gradients.policies
    assert profile.steps.tolist() == [0, 1, 2, 3, 4, 5, 6]
    kl: Callable[..., torch.Tensor] = torch_distributions.kl_divergence
    sequential = [float(kl(b, a).mean()) for a, b in itertools.pairwise(policies)]
    reference = [float(kl(policies[-1], a).mean()) for a in policies]
    np.testing.assert_allclose(profile.sequential[:-1], sequential, rtol=1e-6)
    np.testing.assert_allclose(profile.reference, reference, rtol=1e-6, atol=1e-15)
    assert np.isnan(profile.sequential[-1])
    assert profile.reference[-1] == pytest.approx(0, abs=1e-12)


def test_the_profile_ends_with_an_update_that_a_target_kl_stops(tmp_path: Path) -> None:
    train_in(tmp_path / "run", SMALL, target_kl=1e-9, kl_profile_every=1)
    metrics, table = (csv_rows(tmp_path / "run" / name) for name in ("metrics.csv", "kl.csv"))
    assert [row["optimizer_steps"] for row in table] == [row["optimizer_steps"] for row in metrics]
    assert all(
        profile.reference[-1] == pytest.approx(0, abs=1e-12) for profile in read_profiles(tmp_path / "run").values()
    )


PROFILED = dataclasses.replace(SMALL, stop_at_iteration=None, checkpoint_every=2, kl_profile_every=1)


def test_profiles_of_iterations_that_are_trained_again_are_removed(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"

    def fail(row: dict[str, float]) -> None:
        if row["iteration"] == 3:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):  # after iteration 3, whose checkpoint is not written
        train_in(run_dir, PROFILED, callback=fail)
    assert sorted(read_profiles(run_dir)) == [1, 2, 3]

    def refuse(row: dict[str, float]) -> None:
        assert sorted(read_profiles(run_dir)) == [1, 2, 3], "written again"
        raise ZeroDivisionError

    (run_dir / "kl" / "000008.npz").write_bytes(b"of a later iteration")
    with pytest.raises(ZeroDivisionError):
        resume(run_dir, callback=refuse)
    assert [row["iteration"] for row in csv_rows(run_dir / "kl.csv")] == ["1", "2", "3"]
