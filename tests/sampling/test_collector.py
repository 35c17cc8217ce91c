"""Collecting rollouts into shared memory: the numbers are right, and do not depend on how environments are divided."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from conftest import published
from helpers import COUNTERS as CONFIG
from helpers import make_collectors, memory_digest

from shmppo.envs.inspection import inspect_task
from shmppo.errors import EnvError
from shmppo.ppo.minibatches import cut_sequences
from shmppo.sampling.collector import Collector, EpisodeInProgress, SequenceStarts
from shmppo.utils.phase_timer import PhaseTimer
from shmppo.utils.rng import episode_seed


def test_the_steps_of_each_environment_are_in_its_column() -> None:
    buffers, _, collector = make_collectors(CONFIG)
    collector(0, 5).collect(0, PhaseTimer())
    rollout, carry = buffers.rollout, buffers.carries[1]
    (obs,) = rollout.obs
    for n in range(5):
        for t in range(20):
            episode, step = divmod(t, 7)
            seed = episode_seed(CONFIG.seed, n, episode)
            np.testing.assert_allclose(obs[t, n], [(seed % 1000) / 1000, step / 10], rtol=1e-6)
            assert rollout.first[t, n] == (step == 0)
            assert rollout.terminated[t, n] == (step == 6)
    assert set(rollout.ended_return[rollout.terminated]) == {7.0}
    assert set(rollout.ended_length[rollout.terminated]) == {7}
    assert carry.episode.tolist() == [2] * 5
    assert carry.episode_length.tolist() == [6] * 5
    assert not rollout.truncated.any()


def test_a_truncated_step_bootstraps_from_the_final_observation_and_the_state_after_the_step() -> None:
    config = dataclasses.replace(CONFIG, env="environments:CounterTruncated-v0")
    buffers, learner, collector = make_collectors(config)
    collector(0, 5).collect(0, PhaseTimer())
    (obs,), bootstrap, value = buffers.rollout.obs, buffers.rollout.bootstrap, buffers.rollout.value
    assert buffers.rollout.truncated[6].all()
    with torch.no_grad():
        episode = torch.from_numpy(obs[:7].copy())  # the first episode, steps 0 … 6
        _, _, state = learner.model([episode], torch.zeros(5, learner.model.state_size))
        final = episode[-1].clone()
        final[:, 1] = 0.7  # the observation after the 7th step, which the reset overwrote
        _, expected, _ = learner.model([final.unsqueeze(0)], state)
        np.testing.assert_allclose(bootstrap[6], expected[0], atol=1e-5)
        # The episode continues after the rollout: V of the observation that comes next.
        _, _, state = learner.model([torch.from_numpy(obs[14:20].copy())], torch.zeros(5, learner.model.state_size))
        _, expected, _ = learner.model([torch.from_numpy(buffers.carries[1].obs[0]).unsqueeze(0)], state)
        np.testing.assert_allclose(bootstrap[-1], expected[0], atol=1e-5)
    assert np.abs(bootstrap[6] - value[7]).min() > 1e-4, "it is the value of the observation after the reset"


def test_a_failed_step_has_no_bootstrap_of_an_earlier_rollout() -> None:
    env: dict[str, Any] = {"env": "faulty_environments:FailsSometimes", "env_kwargs": {"how": "raise"}}
    buffers, _, collector = make_collectors(dataclasses.replace(CONFIG, skip_bad_episodes=True, **env))
    buffers.rollout.bootstrap[:] = 9.0
    collector(0, 5).collect(0, PhaseTimer())
    failed = buffers.rollout.truncated & (buffers.rollout.ended_length == 0)
    assert failed.any()
    assert not buffers.rollout.bootstrap[failed].any()


def test_stored_states_are_those_at_the_starts_of_sequences() -> None:
    buffers, learner, collector = make_collectors(CONFIG)
    collector(0, 5).collect(0, PhaseTimer())
    first, (obs,) = buffers.rollout.first, buffers.rollout.obs
    checked = 0
    for start, n, _, slot in cut_sequences(first, CONFIG.sequence_steps).tolist():
        if slot < 0:
            continue
        begin = max(t for t in range(start) if first[t, n])
        with torch.no_grad():
            seen = torch.from_numpy(obs[begin:start, n : n + 1].copy())
            _, _, state = learner.model([seen], torch.zeros(1, learner.model.state_size))
        np.testing.assert_allclose(buffers.rollout.sequence_state[slot, n], state[0], atol=1e-6)
        checked += 1
    assert checked == 15


@pytest.mark.parametrize("ranges", [[(0, 5)], [(0, 1), (1, 5)], [(0, 3), (3, 5)], [(n, n + 1) for n in range(5)]])
def test_any_division_of_the_environments_gives_the_same_bytes(ranges: list[tuple[int, int]]) -> None:
    def digest(division: list[tuple[int, int]]) -> str:
        buffers, _, collector = make_collectors(CONFIG)
        collectors = [collector(low, high) for low, high in division]
        for iteration in range(3):
            for one in collectors:
                one.collect(iteration, PhaseTimer())
        return memory_digest(buffers)

    assert digest(ranges) == digest([(0, 5)])


BROKEN = {
    "raise": r"step raised ValueError\('the simulation exploded'\)",
    "shape": r"step returned an invalid observation: obs has shape \(3,\), but its space has shape \(2,\)",
    "four": r"step returned .*\(not enough values to unpack.*\); it must return \(observation, reward",
    "reward": r"step returned .*array\(\[0., 0.\]\).*; it must return \(observation, reward",
    "nan": r"returned an invalid observation: obs is not finite: \[1\] is nan",
    "infinite": r"returned the reward inf, which is not finite",
}


@pytest.mark.parametrize("how", BROKEN)
def test_the_error_names_the_environment_the_violated_rule_and_the_step(how: str) -> None:
    config = dataclasses.replace(CONFIG, env=f"faulty_environments:Faulty-{how}-v0", rollout_steps=48)
    _, learner, collector = make_collectors(config)
    before = learner.weights_sha256()
    with pytest.raises(EnvError, match=BROKEN[how]) as raised:
        collector(2, 4).collect(0, PhaseTimer())
    assert raised.value.env_index == 2
    assert "episode 5 with seed " in str(raised.value)
    assert learner.weights_sha256() == before


# --- SequenceStarts, with L = 4, T = 10, and one environment, whose state before step t is the number t

STARTS: list[tuple[list[int], list[int], list[int]]] = [
    # Steps at which episodes begin, steps at which the states are stored (by slot), steps of `update`
    # Sequences begin at 0, 4, and 6. The one at 6 begins an episode. The next would begin at step 10.
    ([6], [0, 4], [0, 4, 6]),
    # Sequences begin at 0, 4, 8, and 9; those at 0 and 9 begin episodes.
    ([0, 9], [4, 8], [0, 4, 8, 9]),
    # Sequences begin at 0, 4, and 8.
    ([], [0, 4, 8], [0, 4, 8]),
]


@pytest.mark.parametrize(("episodes", "stored_at", "updated_at"), STARTS)
def test_sequence_starts_by_hand(episodes: list[int], stored_at: list[int], updated_at: list[int]) -> None:
    config = dataclasses.replace(CONFIG, num_envs=1, workers=0, rollout_steps=10, grad_shards=1)
    assert config.state_slots == 3
    starts = SequenceStarts(config, np.zeros((1, 1), np.float32))
    for _ in range(2):  # the second rollout does not depend on the first
        starts.reset()
        stored, updates = np.full((3, 1, 1), -1.0, np.float32), []
        for t in range(10):
            if t in episodes:
                starts.next_step = t  # as the collector does when an episode ends
            if t == starts.next_step:
                updates.append(t)
                starts.update(t, np.array([t in episodes]), np.full((1, 1), t, np.float32), stored)
        assert stored[:, 0, 0].tolist() == stored_at + [-1] * (3 - len(stored_at))
        assert updates == updated_at


def test_sequence_starts_of_two_environments_by_hand() -> None:
    """L = 4. Environment 0 continues an episode, and one begins at 6; in environment 1 episodes begin at 0 and 9."""
    config = dataclasses.replace(CONFIG, num_envs=2, rollout_steps=10, grad_shards=1)
    starts, stored = SequenceStarts(config, np.zeros((2, 1), np.float32)), np.full((3, 2, 1), -1.0, np.float32)
    first = np.zeros((10, 2), bool)
    first[6, 0] = first[[0, 9], 1] = True
    starts.reset()
    next_steps = {}
    for t in range(10):
        if t == starts.next_step or first[t].any():
            starts.update(t, first[t], np.array([[t], [100 + t]], np.float32), stored)
            next_steps[t] = starts.next_step
    assert stored[..., 0].tolist() == [[0, 104], [4, 108], [-1, -1]]
    assert next_steps == {0: 4, 4: 8, 6: 8, 8: 10, 9: 10}


def test_without_a_recurrent_core_no_state_is_stored() -> None:
    config = dataclasses.replace(CONFIG, core="none", num_envs=2, rollout_steps=10)
    starts, stored = SequenceStarts(config, np.zeros((2, 0), np.float32)), np.full((10, 2, 0), -1.0, np.float32)
    starts.reset()
    for t in range(10):
        assert starts.next_step == t  # every step is a sequence
        starts.update(t, np.array([t == 3, False]), np.zeros((2, 0), np.float32), stored)


@pytest.mark.parametrize(("seeding", "known"), [("episode", True), ("once", False)])
def test_an_episode_without_a_seed_of_its_own_is_not_replayed(seeding: Any, known: bool) -> None:
    """Not even before its first step: its first observation may be that of every episode."""

    config = dataclasses.replace(CONFIG, env="CartPole-v1", workers=0)
    task = dataclasses.replace(inspect_task(config), seeding=seeding)
    buffers, learner = published(config, task)
    first, second = (Collector(config, task, learner.model, buffers, range(5), np.zeros(2, np.int64)) for _ in range(2))
    first.start()
    lost = second.restore(0, [EpisodeInProgress(n, 0, np.zeros((0, 1), np.float32), 1) for n in range(5)])
    assert lost == (() if known else tuple(range(5)))
    for one in (first, second):
        one.close()
