"""Stored recurrent states: burn-in, and refreshing with the present weights. The determinism guarantee still holds."""

from __future__ import annotations

import dataclasses
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import planned, sampled
from helpers import KERNELS, Saboteur, make_collectors, memory_digest

from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.lockstep.learner import Learner
from shmppo.lockstep.local_pool import LocalPool
from shmppo.lockstep.pool import Command, RefreshStates
from shmppo.parallel.shared_buffers import SharedBuffers
from shmppo.ppo.minibatches import cut_sequences
from shmppo.runs.trainer import train
from shmppo.sampling.actor import Actor
from shmppo.sampling.collector import Collector
from shmppo.utils.phase_timer import PhaseTimer

CONFIG = TrainConfig(
    env="environments:Counter-v0", num_envs=5, rollout_steps=20, seq_len=4, minibatches=2, epochs=3, workers=2,
    hidden_size=8, encoder_sizes=(8,), grad_shards=2, refresh_states=True, quiet=True,
    total_steps=5 * 20 * 4,
)  # fmt: skip


def sixth_rollout(config: TrainConfig) -> tuple[SharedBuffers, Learner]:
    """The sixth rollout. It begins two steps into episodes of seven."""
    buffers, learner, start_collector = make_collectors(config)
    collector = start_collector(0, 5)
    for iteration in range(6):
        collector.collect(iteration, PhaseTimer())
    return buffers, learner


def expected_states(
    buffers: SharedBuffers, learner: Learner, config: TrainConfig
) -> dict[tuple[int, int], torch.Tensor]:
    """Stored states by (slot, environment), computed with the learning network for one environment at a time."""
    found = {}
    first, (obs,) = buffers.rollout.first, buffers.rollout.obs
    for start, n, _, slot in cut_sequences(first, config.sequence_steps).tolist():
        if slot < 0 or start == 0:
            continue
        begin = max([t for t in range(start) if first[t, n]], default=0)
        state = torch.zeros(1, learner.model.state_size)
        if not first[begin, n]:
            state[0] = torch.from_numpy(buffers.carries[1].state[n])
        seen = torch.from_numpy(obs[begin : start - config.burn_in, n : n + 1].copy())
        with torch.no_grad():
            found[slot, n] = learner.model([seen], state)[2][0]
    return found


@KERNELS
@pytest.mark.parametrize("burn_in", [0, 1, 3])
def test_stored_states_are_those_where_the_burn_in_begins(burn_in: int, kernel: Any) -> None:
    config = dataclasses.replace(CONFIG, burn_in=burn_in, kernel=kernel)
    buffers, learner = sixth_rollout(config)
    expected = expected_states(buffers, learner, config)
    assert len(expected) == 15
    for (slot, n), state in expected.items():
        np.testing.assert_allclose(buffers.rollout.sequence_state[slot, n], state, atol=1e-6)


def refresh(config: TrainConfig, buffers: SharedBuffers, learner: Learner, low: int, high: int) -> None:
    progress = np.zeros(2, np.int64)
    collector = Collector(config, inspect_task(config), learner.model, buffers, range(low, high), progress)
    collector.refresh_states()


@KERNELS
@pytest.mark.parametrize("burn_in", [0, 3])
def test_a_refresh_computes_the_states_of_the_present_weights_and_their_drift(burn_in: int, kernel: Any) -> None:
    config = dataclasses.replace(CONFIG, burn_in=burn_in, kernel=kernel)
    buffers, learner = sixth_rollout(config)
    after, first = buffers.rollout.sequence_state, buffers.rollout.first
    before = after.copy()
    refresh(config, buffers, learner, 0, 5)
    np.testing.assert_allclose(after, before, atol=1e-6)
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
    refresh(config, buffers, learner, 0, 5)
    expected = expected_states(buffers, learner, config)
    for (slot, n), state in expected.items():
        np.testing.assert_allclose(after[slot, n], state, atol=1e-6)
        assert np.abs(after[slot, n] - before[slot, n]).max() > 1e-3
    continues = ~first[0]
    np.testing.assert_array_equal(after[0, continues], before[0, continues])  # from the rollout before
    changed = [(after[place] - before[place]).astype(np.float64) for place in expected]
    drift = buffers.rollout.state_drift.sum(axis=0)
    assert drift[1] == sum(change.size for change in changed)
    np.testing.assert_allclose(drift[0], sum(float(np.square(change).sum()) for change in changed), rtol=1e-4)


class Measuring:
    """A pool that measures by how much each refresh changes the stored states."""

    def __init__(self, pool: LocalPool, states: np.ndarray) -> None:
        self.pool, self.states, self.timer = pool, states, pool.timer
        self.drifts: list[float] = []

    def execute(self, command: Command) -> None:
        before = self.states.copy()
        self.pool.execute(command)
        if isinstance(command, RefreshStates):
            changes = (self.states - before)[(self.states != before).any(-1)]
            self.drifts.append(float(np.sqrt(np.mean(np.square(changes)))))


def test_the_state_drift_of_an_update_is_the_mean_root_mean_square_of_the_changes_over_its_refreshes() -> None:
    buffers, learner, pool = sampled(dataclasses.replace(CONFIG, workers=0))
    planned(buffers, learner)
    pool.start(learner.model)  # `sampled` has closed it
    measuring = Measuring(pool, buffers.rollout.sequence_state)
    statistics = learner.update(0, measuring)  # type: ignore[arg-type]
    pool.close()
    assert len(set(measuring.drifts)) == 2
    assert statistics.state_drift == pytest.approx(np.mean(measuring.drifts), rel=1e-5)


def test_a_refresh_that_is_repeated_after_a_failure_measures_the_whole_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    def drift(fails_at: int) -> tuple[str, np.ndarray]:
        buffers, learner = sixth_rollout(CONFIG)
        buffers.published.weights[:] *= 1.1
        calls, advance = 0, Actor.advance

        def failing(actor: Actor, *arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == fails_at:
                raise ZeroDivisionError
            return advance(actor, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(Actor, "advance", failing)
            if fails_at:
                with pytest.raises(ZeroDivisionError):
                    refresh(CONFIG, buffers, learner, 0, 5)
            refresh(CONFIG, buffers, learner, 0, 5)
        return memory_digest(buffers), buffers.rollout.state_drift.copy()

    whole, again = drift(fails_at=0), drift(fails_at=12)
    assert again[0] == whole[0]
    np.testing.assert_array_equal(again[1], whole[1])
    assert (whole[1] > 0).all()


@KERNELS
def test_any_division_of_the_environments_refreshes_to_the_same_bytes(kernel: Any) -> None:
    config = dataclasses.replace(CONFIG, kernel=kernel)

    def digest(ranges: list[tuple[int, int]]) -> str:
        buffers, learner = sixth_rollout(config)
        buffers.published.weights[:] *= 1.1
        for low, high in ranges:
            refresh(config, buffers, learner, low, high)
        return memory_digest(buffers)

    whole = digest([(0, 5)])
    assert digest([(0, 2), (2, 5)]) == whole
    assert digest([(n, n + 1) for n in range(5)]) == whole


def test_a_worker_that_is_killed_during_a_refresh_does_not_change_the_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = dataclasses.replace(CONFIG, env="CartPole-v1", burn_in=2, stop_at_iteration=2)
    undisturbed = train(dataclasses.replace(config, workers=0, run_dir=str(tmp_path / "a")))
    # Round 1 is the first COLLECT, 2 and 3 are the first epoch's minibatches, 4 is the first REFRESH.
    saboteur = Saboteur(monkeypatch, at_round=4, number=signal.SIGKILL, delay=0.0)
    summary = train(dataclasses.replace(config, learning="sharded", run_dir=str(tmp_path / "b")))
    assert saboteur.hit
    assert summary["worker_restarts"] == 1
    assert summary["weights_sha256"] == undisturbed["weights_sha256"]
