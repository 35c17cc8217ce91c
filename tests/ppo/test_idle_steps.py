"""Idle steps of agents: the learner sees a rollout without them, as a slow reference that leaves them out does."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import planned, sampled
from helpers import KERNELS, assert_near
from test_gradients import CONFIG, in_float64, loss_of, plain_terms

from shmppo.config.train_config import TrainConfig
from shmppo.lockstep.pool import ComputeGradients
from shmppo.models.actor_critic import ActorCritic, parameter_views
from shmppo.parallel.shared_buffers import Rollout, SharedBuffers
from shmppo.sampling.idle_steps import insert_held_steps, leave_out_idle_steps

AGENTS = ("walker_0", "walker_1", "walker_2")
CROWD = dataclasses.replace(
    CONFIG, env="agent_environments:Crowd", agents=AGENTS, num_envs=2, epochs=1, minibatches=1, seq_len=5
)


@pytest.fixture
def raw(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Receives copies of the last rollout and of `acted` before idle steps are left out."""
    from shmppo.sampling import collector

    kept, original = SimpleNamespace(), collector.leave_out_idle_steps

    def record(rollout: Rollout, params: np.ndarray, acted: np.ndarray) -> None:
        kept.rollout, kept.acted = copy.deepcopy(rollout), acted.copy()
        original(rollout, params, acted)

    monkeypatch.setattr(collector, "leave_out_idle_steps", record)
    return kept


class Reference:
    """The rollout without idle steps, its sequences and advantages, from lists of Python, in float64.

    Attributes:
        rollout: the fields that `plain_terms` reads.
        sequences: [(start, row, length, slot)]; a slot below 0 begins an episode.
        steps: the number of steps of each row.
        advantages: [T, N].
    """

    def __init__(self, config: TrainConfig, raw: SimpleNamespace, model: ActorCritic, start: np.ndarray) -> None:
        """start: recurrent states [N, S] before the rollout."""
        self._config, self._raw, self._model = config, raw.rollout, model
        T, N = raw.acted.shape
        zeros = {name: np.zeros((T, N)) for name in ("value", "advantages")}
        self.advantages = zeros["advantages"]
        self.rollout = SimpleNamespace(
            obs=[np.zeros_like(raw.rollout.obs[0])], actions=np.zeros_like(raw.rollout.actions), value=zeros["value"],
            sequence_state=np.zeros((T, N, model.state_size)),
        )  # fmt: skip
        self.sequences: list[list[int]] = []
        self.steps = []
        for n in range(N):
            steps = [t for t in range(T) if raw.acted[t, n]]
            self.steps.append(len(steps))
            self._cut(n, steps, torch.from_numpy(start[n : n + 1].astype(np.float64)))
            self._estimate(n, steps)

    @torch.no_grad()
    def _cut(self, n: int, steps: list[int], state: Any) -> None:
        """Compute the values of a row, and cut it into sequences."""
        rollout, length = self.rollout, 0
        for j, t in enumerate(steps):
            rollout.obs[0][j, n], rollout.actions[j, n] = self._raw.obs[0][t, n], self._raw.actions[t, n]
            begins = bool(self._raw.first[t, n])
            state = torch.zeros_like(state) if begins else state
            if begins or j == 0 or length == self._config.seq_len:
                self.sequences.append([j, n, 0, -1 if begins else j])
                rollout.sequence_state[j, n] = state[0]
                length = 0
            length += 1
            self.sequences[-1][2] = length
            _, values, state = self._model([torch.from_numpy(rollout.obs[0][j : j + 1, n : n + 1]).double()], state)
            rollout.value[j, n] = values[0, 0]

    def _estimate(self, n: int, steps: list[int]) -> None:
        """Estimate the advantages of a row."""
        raw, gamma, following = self._raw, self._config.gamma, 0.0
        for j in reversed(range(len(steps))):
            is_last = j + 1 == len(steps)
            until = list(range(steps[j], len(raw.reward) if is_last else steps[j + 1]))  # until it acts again
            ends = [u for u in until if raw.truncated[u, n] or raw.terminated[u, n]]
            until = until[: until.index(ends[0]) + 1] if ends else until  # or until its episode ends
            cut = [u for u in until if raw.truncated[u, n]]
            terminated = any(raw.terminated[u, n] for u in until)
            after = 0.0 if terminated else raw.bootstrap[(cut or until)[-1], n] if cut or is_last else None
            if after is not None:
                following = 0.0
            after = self.rollout.value[j + 1, n] if after is None else after
            delta = sum(raw.reward[u, n] for u in until) + gamma * float(after) - self.rollout.value[j, n]
            following = delta + gamma * self._config.gae_lambda * following
            self.advantages[j, n] = following


def test_a_carry_has_nothing_of_the_steps_that_earlier_rollouts_have_held_back() -> None:
    """Otherwise, the checkpoint of a resumed run would differ from that of an undisturbed one."""
    buffers, _, _ = sampled(CROWD, rollouts=6)
    for carry in buffers.carries:
        is_held = carry.held[:, 0] > 0
        assert 0 < is_held.sum() < len(is_held)
        assert all(not leaf[~is_held].any() for leaf in carry.held_obs)


@KERNELS
@pytest.mark.parametrize("core", ["gru", "none"])
def test_gradients_are_those_of_a_reference_without_idle_steps(core: Any, kernel: Any, raw: SimpleNamespace) -> None:
    config = dataclasses.replace(CROWD, core=core, kernel=kernel, normalize_obs=False)
    buffers, learner, pool = sampled(config, rollouts=2)
    advantages = planned(buffers, learner)
    old_model = in_float64(learner.model)
    carry, size = buffers.carries[1], learner.model.state_size
    is_held = carry.held[:, :1] > 0  # the row begins with the step that the first rollout has held back
    assert is_held.any()
    start = np.where(is_held, carry.held[:, carry.held.shape[1] - size :], carry.state)
    reference = Reference(config, raw, old_model, start)
    valid = buffers.rollout.valid_steps
    assert valid.tolist() == reference.steps
    assert 0 < valid.min() < valid.max() < config.rollout_steps
    for n, count in enumerate(reference.steps):
        np.testing.assert_allclose(buffers.rollout.value[:count, n], reference.rollout.value[:count, n], atol=2e-6)
        np.testing.assert_allclose(advantages[:count, n], reference.advantages[:count, n], atol=1e-5)
    with torch.no_grad():  # a policy other than the one that sampled, so that ratios differ from 1
        for parameter in learner.model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
    pool.execute(ComputeGradients(0, 0))
    summed = torch.from_numpy(buffers.shard_results.gradients).sum(0)
    model, expected_buffers = in_float64(learner.model), SimpleNamespace(rollout=reference.rollout)
    terms = plain_terms(
        config, expected_buffers, model, old_model, reference.sequences, reference.advantages  # type: ignore[arg-type]
    )  # fmt: skip
    expected = torch.autograd.grad(loss_of(config, terms) / sum(reference.steps), list(model.parameters()))
    for found, wanted in zip(parameter_views(summed, learner.model), expected, strict=True):
        assert_near(found.numpy(), wanted.numpy(), 1e-6)


def test_moments_of_observations_do_not_see_idle_steps(raw: SimpleNamespace) -> None:
    buffers, *_ = sampled(CROWD)
    for n in np.flatnonzero(buffers.rollout.valid_steps):
        seen = raw.rollout.obs[0][raw.acted[:, n], n].astype(np.float64)
        np.testing.assert_allclose(buffers.rollout.obs_moments[n, 0], seen.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(buffers.rollout.obs_moments[n, 1], seen.var(axis=0) * len(seen), rtol=1e-12)


def test_a_row_that_never_acts_has_no_sequence_and_changes_no_statistic() -> None:
    """Agent 1 joins after step 3."""
    config = dataclasses.replace(CROWD, rollout_steps=3, normalize_reward=True)
    buffers, learner, _ = sampled(config)
    never = [1, 4]
    assert [n for n in range(config.rows) if buffers.rollout.valid_steps[n] == 0] == never
    planned(buffers, learner)
    assert not set(never) & set(used_rows(buffers))
    learner.update_obs_normalizer(buffers.rollout)
    acted = int(buffers.rollout.valid_steps.sum())
    assert learner.obs_moments.count == acted
    assert learner.reward_normalizer.moments.count == acted
    assert not learner.reward_normalizer.discounted_return[never].any()
    assert all(np.isfinite(leaf).all() for leaf in (learner.obs_moments.mean, learner.obs_moments.m2))


def used_rows(buffers: SharedBuffers) -> list[int]:
    """The rows of all sequences of the update."""
    plan = buffers.minibatches
    rows: list[int] = plan.sequences[: plan.bounds[0, -1, -1], 1].tolist()
    return rows


@pytest.mark.parametrize(
    ("env", "agents", "masks"),
    [("agent_environments:Crowd", AGENTS, False), ("agent_environments:Nim", ("one", "two"), True)],
)
def test_rewards_while_a_row_waits_belong_to_its_last_step_in_any_rollout(
    env: str, agents: tuple[str, ...], masks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together, short rollouts contain the steps and rewards of one long rollout, except what is held back at last."""
    from shmppo.sampling import collector

    played: list[tuple[Rollout, np.ndarray]] = []
    learned: list[Rollout] = []

    def insert(rollout: Rollout, params: np.ndarray, acted: np.ndarray, *carry: Any) -> None:
        played.append((copy.deepcopy(rollout), acted.copy()))
        insert_held_steps(rollout, params, acted, *carry)

    def leave_out(rollout: Rollout, params: np.ndarray, acted: np.ndarray) -> None:
        leave_out_idle_steps(rollout, params, acted)
        learned.append(copy.deepcopy(rollout))

    monkeypatch.setattr(collector, "insert_held_steps", insert)
    monkeypatch.setattr(collector, "leave_out_idle_steps", leave_out)
    config = dataclasses.replace(CROWD, env=env, agents=agents, action_masks=masks, rollout_steps=3)
    buffers, *_ = sampled(config, rollouts=40)
    acted = np.concatenate([acted for _, acted in played])
    names = ("obs", "actions", "value", "first", "reward", "terminated", "truncated")
    late = 0
    for n in range(config.rows):
        wanted = {name: np.concatenate([leaf(rollout, name)[:, n] for rollout, _ in played]) for name in names}
        ended = np.flatnonzero(wanted["terminated"] | wanted["truncated"])
        steps = np.flatnonzero(acted[:, n])
        for t, following in zip(steps, [*steps[1:], len(acted)], strict=True):
            until = min([following - 1, *ended[ended >= t]])
            late += any(wanted["reward"][t - t % 3 + 3 : until + 1])  # a reward of a later rollout
            for name in ("reward", "terminated", "truncated"):
                wanted[name][t] = wanted[name][t : until + 1].sum()
        for name in names:
            found = np.concatenate([leaf(rollout, name)[: rollout.valid_steps[n], n] for rollout in learned])
            expected = wanted[name][steps]
            if buffers.carries[0].held[n, 0]:
                expected = expected[:-1]
            np.testing.assert_allclose(found, expected, rtol=1e-12, err_msg=name)
        for rollout, later in itertools.pairwise(learned):
            count = rollout.valid_steps[n]
            goes_on = count and not rollout.terminated[count - 1, n] | rollout.truncated[count - 1, n]
            if goes_on and later.valid_steps[n] and rollout.bootstrap[count - 1, n] != later.value[0, n]:
                assert acted[3 * learned.index(later), n], "the value of the step that is held back follows"
    assert late > 10


def leaf(rollout: Rollout, name: str) -> np.ndarray:
    """An array of a rollout, for "obs" the first leaf."""
    return rollout.obs[0] if name == "obs" else getattr(rollout, name)  # type: ignore[no-any-return]


def test_what_follows_the_end_of_an_episode_does_not_belong_to_its_last_action() -> None:
    """A row acts at steps 0 and 1, wins at step 2, is idle for a whole episode that ends at step 4, and acts again."""
    steps, shape = 7, (7, 1)
    acted = np.array([[True], [True], [False], [False], [False], [True], [True]])
    rollout = SimpleNamespace(
        obs=(np.zeros((*shape, 1)),), actions=np.zeros((*shape, 1)), value=np.zeros(shape), bootstrap=np.zeros(shape),
        reward=np.array([[0.0], [1], [2], [4], [8], [16], [32]]), first=np.zeros(shape, bool),
        terminated=np.zeros(shape, bool), truncated=np.zeros(shape, bool), valid_steps=np.zeros(1, int),
    )  # fmt: skip
    rollout.truncated[2], rollout.terminated[4], rollout.bootstrap[2], rollout.bootstrap[6] = True, True, 3.0, 5.0
    leave_out_idle_steps(rollout, np.zeros((steps, 1, 1)), acted)  # type: ignore[arg-type]
    assert rollout.valid_steps.tolist() == [4]
    assert rollout.reward[:, 0].tolist() == [0, 3, 16, 32, 0, 0, 0]
    assert rollout.truncated[:, 0].tolist() == [False, True, *[False] * 5]
    assert not rollout.terminated.any()
    assert (rollout.bootstrap[1, 0], rollout.bootstrap[3, 0]) == (3, 5)
