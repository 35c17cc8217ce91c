"""Stored states: warmed up by burn-in, computed anew by refresh, and still exact."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import published
from test_rollout import digests, running_pool
from test_survival import Saboteur

from shmppo.config.train_config import TrainConfig
from shmppo.envs.factory import inspect_task
from shmppo.errors import ConfigError
from shmppo.parallel.shared_buffers import SharedBuffers
from shmppo.ppo.learner import Learner
from shmppo.ppo.minibatches import cut_sequences, step_indices
from shmppo.runs.trainer import resume, train
from shmppo.sampling.collector import Collector
from shmppo.sampling.state_refresh import StateRefresh
from shmppo.utils.phase_timer import PhaseTimer

CONFIG = TrainConfig(
    env="environments:Counter-v0", num_envs=5, rollout_steps=20, seq_len=4, minibatches=2, epochs=3, workers=2,
    hidden_size=8, encoder_sizes=(8,), grad_shards=2, tile_rows=8, refresh_states=True, quiet=True,
    total_steps=5 * 20 * 4,
)  # fmt: skip


def sampled(config: TrainConfig) -> tuple[SharedBuffers, Learner]:
    """The sixth rollout, which begins two steps into episodes of seven."""
    task = inspect_task(config)
    arena, learner = published(config, task)
    collector = Collector(config, task, learner.model, arena, low=0, high=5, progress=np.zeros(2, np.int64))
    collector.start()
    for iteration in range(6):
        collector.collect(iteration, PhaseTimer())
    return arena, learner


def expected_states(arena: SharedBuffers, learner: Learner, config: TrainConfig) -> dict[tuple[int, int], torch.Tensor]:
    """Stored states by (slot, environment), column by column through the learning network."""
    found = {}
    first = arena.array("first")
    for start, n, _, slot in cut_sequences(first, config.sequence_steps).tolist():
        if slot < 0 or start == 0:
            continue
        begin = max([t for t in range(start) if first[t, n]], default=0)
        state = torch.zeros(1, learner.model.state_size)
        if not first[begin, n]:
            state[0] = arena.tensor("carry_state")[1, n]
        obs = torch.from_numpy(arena.array("obs")[begin : start - config.burn_in, n : n + 1].copy())
        with torch.no_grad():
            found[slot, n] = learner.model([obs], state)[2][0]
    return found


@pytest.mark.parametrize("burn_in", [0, 1, 3])
def test_stored_states_are_those_where_the_burn_in_begins(burn_in: int) -> None:
    config = dataclasses.replace(CONFIG, burn_in=burn_in)
    arena, learner = sampled(config)
    expected = expected_states(arena, learner, config)
    assert len(expected) == 15
    for (slot, n), state in expected.items():
        np.testing.assert_allclose(arena.array("sequence_state")[slot, n], state, atol=1e-6)


def test_steps_of_rows_with_burn_in_by_hand() -> None:
    rows = np.array([[0, 1, 2, 0], [5, 2, 3, 1], [4, 0, 2, -1]])
    indices, real = step_indices(rows, sequence_steps=3, num_envs=10, burn_in=2)
    assert (indices.T // 10).tolist() == [[0, 1, 1, 1, 1], [3, 4, 5, 6, 7], [4, 5, 5, 5, 5]]
    assert (indices.T % 10)[:, 0].tolist() == [1, 2, 0]
    expected = [[1, 1, 0, 0, 0], [0, 0, 1, 1, 1], [1, 1, 0, 0, 0]]
    assert real.T.astype(int).tolist() == expected


def refresh(config: TrainConfig, arena: SharedBuffers, learner: Learner, low: int, high: int) -> None:
    distribution = inspect_task(config).distribution
    progress = np.zeros(2, np.int64)
    StateRefresh(config, distribution, learner.model, arena, low=low, high=high, progress=progress).refresh()


@pytest.mark.parametrize("burn_in", [0, 3])
def test_refreshed_states_are_those_of_the_present_weights_and_the_drift_is_told(burn_in: int) -> None:
    config = dataclasses.replace(CONFIG, burn_in=burn_in)
    arena, learner = sampled(config)
    before = arena.array("sequence_state").copy()
    refresh(config, arena, learner, 0, 5)
    np.testing.assert_allclose(arena.array("sequence_state"), before, atol=1e-6)
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
    refresh(config, arena, learner, 0, 5)
    after = arena.array("sequence_state")
    expected = expected_states(arena, learner, config)
    for (slot, n), state in expected.items():
        np.testing.assert_allclose(after[slot, n], state, atol=1e-6)
        assert np.abs(after[slot, n] - before[slot, n]).max() > 1e-3
    went_on = ~arena.array("first")[0]
    np.testing.assert_array_equal(after[0, went_on], before[0, went_on])  # carried over from the rollout before
    changed = [(after[place] - before[place]).astype(np.float64) for place in expected]
    drift = arena.array("state_drift").sum(axis=0)
    assert drift[1] == sum(change.size for change in changed)
    np.testing.assert_allclose(drift[0], sum(float(np.square(change).sum()) for change in changed), rtol=1e-4)


def test_any_split_of_the_columns_refreshes_to_the_same_bytes() -> None:
    def digest(ranges: list[tuple[int, int]]) -> str:
        arena, learner = sampled(CONFIG)
        with torch.no_grad():
            for parameter in learner.model.parameters():
                parameter.mul_(1.1)
        for low, high in ranges:
            refresh(CONFIG, arena, learner, low, high)
        return hashlib.sha256(arena.memory.numpy().tobytes()).hexdigest()

    whole = digest([(0, 5)])
    assert digest([(0, 2), (2, 5)]) == whole
    assert digest([(n, n + 1) for n in range(5)]) == whole


def test_a_refresh_writes_only_the_fields_that_the_table_gives_it(tmp_path: Path) -> None:
    with running_pool(CONFIG, tmp_path) as (arena, learner, pool):
        pool.collect(learner.version, 0, PhaseTimer())
        with torch.no_grad():
            arena.tensor("weights").mul_(1.1)
        before = digests(arena)
        pool.refresh(learner.version, PhaseTimer())
        after = digests(arena)
        written = {name for name in before if before[name] != after[name]}
        allowed = {field.name for field in arena.fields if "REFRESH" in field.phase}
        assert written <= allowed, written - allowed
        assert {"sequence_state", "state_drift"} <= written


CASES = {
    "refresh-burn-in": dataclasses.replace(CONFIG, env="CartPole-v1", burn_in=2),
    "burn-in-gru": dataclasses.replace(CONFIG, env="CartPole-v1", burn_in=3, refresh_states=False, core="gru"),
    "refresh-dict": dataclasses.replace(
        CONFIG, env="environments:Shaped", env_kwargs={"space": "dict"}, separate_critic=True, prev_reward=True
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_stop_resume_and_workers_cost_no_bit(case: str, tmp_path: Path) -> None:
    config = dataclasses.replace(CASES[case], workers=0)
    straight = train(dataclasses.replace(config, run_dir=str(tmp_path / "straight")))
    begun = dataclasses.replace(config, workers=3, learning="sharded", stop_at_iteration=2, run_dir=str(tmp_path / "r"))
    train(begun)
    assert resume(tmp_path / "r", workers=2, learning="central")["weights_sha256"] == straight["weights_sha256"]
    off = dataclasses.replace(config, burn_in=0, refresh_states=False, run_dir=str(tmp_path / "off"))
    assert train(off)["weights_sha256"] != straight["weights_sha256"]
    with open(tmp_path / "straight" / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    assert max(float(row["first_log_ratio"]) for row in rows) < 1e-5
    assert all((float(row["state_drift"]) > 0) == config.refresh_states for row in rows)


def test_a_worker_killed_while_it_refreshes_costs_no_bit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = dataclasses.replace(CASES["refresh-burn-in"], stop_at_iteration=2)
    undisturbed = train(dataclasses.replace(config, workers=0, run_dir=str(tmp_path / "a")))
    # Round 1 is the first COLLECT, 2 and 3 are the first epoch's minibatches, 4 is the first REFRESH.
    saboteur = Saboteur(monkeypatch, at_round=4, number=signal.SIGKILL, delay=0.0)
    summary = train(dataclasses.replace(config, learning="sharded", run_dir=str(tmp_path / "b")))
    assert saboteur.hit
    assert summary["worker_restarts"] == 1
    assert summary["weights_sha256"] == undisturbed["weights_sha256"]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"burn_in": 4}, r"--burn-in is 4; it must be 0 or more, and less than --seq-len 4"),
    ({"burn_in": -1}, r"--burn-in is -1; it must be"),
    ({"core": "none"}, r"--burn-in and --refresh-states need recurrent states, but --core is none"),
]


@pytest.mark.parametrize(("fields", "message"), REFUSED)
def test_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(CONFIG, **fields)
