"""Sampling into shared memory: who writes what, when, and that the numbers land where the table says."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import published

from shmppo.config.train_config import TrainConfig
from shmppo.envs.factory import inspect_task
from shmppo.errors import EnvError
from shmppo.models.inference import inference_slices
from shmppo.parallel.shared_buffers import SharedBuffers, total_bytes
from shmppo.ppo.learner import Learner
from shmppo.ppo.minibatches import cut_sequences
from shmppo.sampling.action_log import ActionLog
from shmppo.sampling.collector import Collector
from shmppo.sampling.worker_pool import WorkerPool
from shmppo.utils.phase_timer import PhaseTimer
from shmppo.utils.rng import action_noise_generator, episode_seed, minibatch_generator

CONFIG = TrainConfig(
    env="environments:Counter-v0", num_envs=5, rollout_steps=20, seq_len=4, minibatches=2, epochs=2, workers=2,
    hidden_size=8, encoder_sizes=(8,), grad_shards=2, tile_rows=8,
)  # fmt: skip


def make(config: TrainConfig) -> tuple[SharedBuffers, Learner, Callable[..., Collector]]:
    task = inspect_task(config)
    arena, learner = published(config, task)

    def collector(low: int, high: int) -> Collector:
        made = Collector(config, task, learner.model, arena, low=low, high=high, progress=np.zeros(1, np.int64))
        made.start()
        return made

    return arena, learner, collector


def test_episodes_land_in_their_columns() -> None:
    arena, _, collector = make(CONFIG)
    collector(0, 5).collect(0, PhaseTimer())
    obs, first = arena.array("obs"), arena.array("first")
    for n in range(5):
        for t in range(20):
            episode, step = divmod(t, 7)
            seed = episode_seed(CONFIG.seed, n, episode)
            np.testing.assert_allclose(obs[t, n], [(seed % 1000) / 1000, step / 10], rtol=1e-6)
            assert first[t, n] == (step == 0)
            assert arena.array("terminated")[t, n] == (step == 6)
    ended = arena.array("terminated")
    assert set(arena.array("ended_return")[ended]) == {7.0}
    assert set(arena.array("ended_length")[ended]) == {7}
    assert arena.array("carry_episode")[1].tolist() == [2] * 5
    assert arena.array("carry_length")[1].tolist() == [6] * 5
    assert not arena.array("truncated").any()


def test_a_truncated_step_bootstraps_from_the_final_observation_and_the_state_after_the_step() -> None:
    config = dataclasses.replace(CONFIG, env="environments:CounterTruncated-v0")
    arena, learner, collector = make(config)
    collector(0, 5).collect(0, PhaseTimer())
    obs, bootstrap, value = arena.array("obs"), arena.array("bootstrap"), arena.array("value")
    assert arena.array("truncated")[6].all()
    with torch.no_grad():
        episode = torch.from_numpy(obs[:7].copy())  # the first episode, steps 0 … 6
        _, _, state = learner.model([episode], torch.zeros(5, learner.model.state_size))
        final = episode[-1].clone()
        final[:, 1] = 0.7  # the observation after the 7th step, which the reset overwrote
        _, expected, _ = learner.model([final.unsqueeze(0)], state)
        np.testing.assert_allclose(bootstrap[6], expected[0], atol=1e-5)
        # At the rollout's end the episode goes on: V of the observation that comes next.
        _, _, state = learner.model([torch.from_numpy(obs[14:20].copy())], torch.zeros(5, learner.model.state_size))
        _, expected, _ = learner.model([torch.from_numpy(arena.array("carry_obs")[1]).unsqueeze(0)], state)
        np.testing.assert_allclose(bootstrap[-1], expected[0], atol=1e-5)
    assert np.abs(bootstrap[6] - value[7]).min() > 1e-4, "the value of the reset observation was taken"


def test_stored_states_are_those_at_row_starts() -> None:
    arena, learner, collector = make(CONFIG)
    collector(0, 5).collect(0, PhaseTimer())
    rows = cut_sequences(arena.array("first"), CONFIG.sequence_steps)
    checked = 0
    for start, n, _, slot in rows.tolist():
        if slot < 0:
            continue
        begin = max(t for t in range(start) if arena.array("first")[t, n])
        with torch.no_grad():
            obs = torch.from_numpy(arena.array("obs")[begin:start, n : n + 1].copy())
            _, _, state = learner.model([obs], torch.zeros(1, learner.model.state_size))
        np.testing.assert_allclose(arena.array("sequence_state")[slot, n], state[0], atol=1e-6)
        checked += 1
    assert checked == 15


@pytest.mark.parametrize("ranges", [[(0, 5)], [(0, 1), (1, 5)], [(0, 3), (3, 5)], [(n, n + 1) for n in range(5)]])
def test_any_split_of_the_columns_gives_the_same_bytes(ranges: list[tuple[int, int]]) -> None:
    def digest(split: list[tuple[int, int]]) -> str:
        arena, _, collector = make(CONFIG)
        collectors = [collector(low, high) for low, high in split]
        for iteration in range(3):
            for one in collectors:
                one.collect(iteration, PhaseTimer())
        return hashlib.sha256(arena.memory.numpy().tobytes()).hexdigest()

    assert digest(ranges) == digest([(0, 5)])


BROKEN = {
    "raise": r"step raised ValueError\('the simulation exploded'\)",
    "shape": r"observation has shape \(3,\), but its space has shape \(2,\)",
    "four": r"not enough values to unpack .*; step must return \(observation, reward, terminated, truncated, info\)",
    "reward": r"only .*scalar.*; step must return",
    "nan": r"returned the observation \[0\.0, nan\], which is not finite",
    "infinite": r"returned the reward inf, which is not finite",
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_contract_names_the_environment_the_rule_and_the_step(how: str) -> None:
    config = dataclasses.replace(CONFIG, env=f"environments:Faulty-{how}-v0", rollout_steps=48)
    _, learner, collector = make(config)
    before = learner.weights_sha256()
    with pytest.raises(EnvError, match=BROKEN[how]) as raised:
        collector(2, 4).collect(0, PhaseTimer())
    assert raised.value.env_index == 2
    assert "episode 5, after " in str(raised.value)
    assert learner.weights_sha256() == before


def test_environments_share_tiles_by_index_whoever_owns_them() -> None:
    tiles = inference_slices(5, 18, 8)
    assert [(t.index, t.rows, t.own) for t in tiles] == [
        (0, slice(5, 8), slice(0, 3)),
        (1, slice(0, 8), slice(3, 11)),
        (2, slice(0, 2), slice(11, 13)),
    ]


@contextmanager
def running_pool(config: TrainConfig, tmp_path: Path) -> Iterator[tuple[SharedBuffers, Learner, WorkerPool]]:
    arena, learner, _ = make(config)
    actions = ActionLog(config.num_envs, 1, limit=100)
    pool = WorkerPool(config, inspect_task(config), arena, actions, tmp_path / "run.log")
    try:
        pool.wait_ready()
        yield arena, learner, pool
    finally:
        pool.close()


def digests(arena: SharedBuffers) -> dict[str, str]:
    """Hash of every field that belongs to a phase."""
    fields = [f.name for f in arena.fields if not f.phase.startswith("any")]
    return {name: hashlib.sha256(arena.array(name).tobytes()).hexdigest() for name in fields}


def test_each_phase_writes_only_the_fields_that_the_table_gives_it(tmp_path: Path) -> None:
    with running_pool(CONFIG, tmp_path) as (arena, learner, pool):
        before = digests(arena)
        pool.collect(learner.version, 0, PhaseTimer())
        after = digests(arena)
        written = {name for name in before if before[name] != after[name]}
        allowed = {f.name for f in arena.fields if "COLLECT" in f.phase}
        assert written <= allowed, written - allowed
        assert {"obs", "actions", "value", "reward", "carry_state"} <= written

        from shmppo.ppo.minibatches import build_minibatches

        before = after
        numbers = learner.schedule.numbers(0)
        build_minibatches(CONFIG, arena, iteration=0, advantages=learner._advantages(), numbers=numbers)
        after = digests(arena)
        written = {name for name in before if before[name] != after[name]}
        assert written == {f.name for f in arena.fields if f.phase == "PLAN"}

        before = after
        pool.gradients(learner.version, 0, 0, lambda: None, PhaseTimer())
        after = digests(arena)
        written = {name for name in before if before[name] != after[name]}
        allowed = {f.name for f in arena.fields if "LEARN" in f.phase}
        assert written <= allowed, written - allowed
        assert {"gradients", "shard_statistics"} <= written


def test_a_stale_version_is_refused(tmp_path: Path) -> None:
    with (
        running_pool(CONFIG, tmp_path) as (_, learner, pool),
        pytest.raises(Exception, match=r"told to use weights version 7, but 1 is published"),
    ):
        pool.collect(learner.version + 6, 0, PhaseTimer())


def test_the_arena_is_as_large_as_its_table_and_every_field_is_aligned() -> None:
    arena, _, _ = make(CONFIG)
    assert arena.memory.is_shared()
    assert arena.memory.numel() == total_bytes(arena.fields)
    assert all(arena.tensor(f.name).data_ptr() % 64 == 0 for f in arena.fields)


def test_streams_are_told_apart_by_all_their_keys() -> None:
    draws = [
        action_noise_generator(1, 0, 0).random(),
        action_noise_generator(2, 0, 0).random(),
        action_noise_generator(1, 1, 0).random(),
        action_noise_generator(1, 0, 1).random(),
        minibatch_generator(1, 0, 0, 0).random(),
        minibatch_generator(1, 0, 0, 1).random(),
        minibatch_generator(1, 0, 1, 0).random(),
        minibatch_generator(1, 1, 0, 0).random(),
    ]
    assert len(set(draws)) == len(draws)
    seeds = {episode_seed(s, n, e) for s in range(5) for n in range(40) for e in range(40)}
    assert len(seeds) == 5 * 40 * 40
