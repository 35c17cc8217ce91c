"""Action masks: forbidden actions are never chosen, and results do not depend on workers or on a stop."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces
from helpers import collected
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import Leaky
from public_helpers import train_in
from space_environments import Masked

from shmppo import load_policy
from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.envs.wrappers import ActionMaskWrapper
from shmppo.errors import ConfigError, EnvError
from shmppo.policies.evaluation import evaluate
from shmppo.spaces.action_spaces import distribution_for
from shmppo.spaces.distributions import mask_logits

BASE = TrainConfig(
    env="space_environments:Masked-v0", num_envs=5, rollout_steps=20, seq_len=5, minibatches=2, epochs=2, hidden_size=8,
    encoder_sizes=(8,), grad_shards=3, workers=0, quiet=True, total_steps=5 * 20 * 6, entropy_coef=0.01,
    action_masks=True,
)  # fmt: skip
DISCRETE: dict[str, Any] = {}
MULTI: dict[str, Any] = {"sizes": [3, 2, 4]}
KINDS = {"discrete": DISCRETE, "multi": MULTI, "row": MULTI | {"mask": "row"}}


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.data())
def test_a_masked_action_is_never_selected(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    distribution = distribution_for(spaces.MultiDiscrete(sizes), "a test")
    logits = data.draw(st.lists(st.floats(-1e4, 1e4, width=32), min_size=sum(sizes), max_size=sum(sizes)))
    others = data.draw(st.lists(st.floats(-30, 30, width=32), min_size=sum(sizes), max_size=sum(sizes)))
    mask = [data.draw(st.lists(st.booleans(), min_size=n, max_size=n).filter(any)) for n in sizes]
    allowed = torch.tensor([one for part in mask for one in part])
    p, q = (mask_logits(torch.tensor(values), allowed).numpy() for values in (logits, others))
    noise = distribution.noise(np.random.default_rng(data.draw(st.integers(0, 2**32))), 1)[0]
    for actions in (distribution.sample(p, noise), distribution.sample(q, noise), distribution.mode(p)):
        assert all(part[int(a)] for a, part in zip(actions.tolist(), mask, strict=True))
    p, q = distribution.normalized(p), distribution.normalized(q)
    for number in (distribution.entropy(q), distribution.kl(q, p), distribution.kl(p, q)):
        assert np.isfinite(number), number
        assert number >= -1e-3
    # It equals the distribution over the allowed actions.
    left = distribution_for(spaces.MultiDiscrete([sum(part) for part in mask]), "a test")
    few = np.array(others, np.float32)[allowed.numpy()]
    np.testing.assert_allclose(distribution.entropy(q), left.entropy(left.normalized(few)), atol=1e-5, rtol=1e-4)


def test_a_forbidden_logit_has_no_gradient() -> None:
    distribution = distribution_for(spaces.Discrete(3), "a test")
    params = mask_logits(torch.zeros(3), torch.tensor([1, 0, 1], dtype=torch.uint8)).numpy()
    p = distribution.normalized(params)
    by_log_prob = distribution.log_prob_grad(p, np.array([2.0], np.float32), np.ones(1, np.float32))
    assert by_log_prob.tolist() == pytest.approx([-0.5, 0.0, 0.5])
    assert by_log_prob[1] == distribution.entropy_grad(p)[1] == distribution.kl_grad(p, p)[1] == 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_a_rollout_contains_the_masks_and_only_actions_that_they_allow(kind: str) -> None:
    buffers = collected(dataclasses.replace(BASE, env_kwargs=KINDS[kind]), (0, 2), (2, 5))
    mask, actions = buffers.arrays["rollout.obs/action_mask"], buffers.rollout.actions
    begins = np.cumsum([0, *KINDS[kind].get("sizes", [4])[:-1]])
    assert np.take_along_axis(mask, actions.astype(np.int64) + begins, axis=-1).all()
    assert 0.4 < mask.mean() < 0.9


@pytest.mark.long
def test_a_policy_learns_good_allowed_actions_and_evaluation_and_policy_use_the_mask(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train_in(run_dir, BASE, env_kwargs=MULTI, learning_rate=0.02, total_steps=100 * 40)
    assert np.mean(evaluate(run_dir, episodes=5).returns) > 16  # of 18; at random about 10
    policy = load_policy(run_dir)
    env = ActionMaskWrapper(Masked(**MULTI), "a test")
    observation, _ = env.reset(seed=0)
    state, ended, total = policy.initial_state(), False, 0.0
    while not ended:
        action, state = policy.act(observation, state)
        observation, reward, _, ended, _ = env.step(action)
        total += reward
    assert total > 15


FAULTS = {
    "missing": r"environment \d: step raised ValueError\('info has no action_mask, which --action-masks requires'\)",
    "empty": r"environment \d: step raised ValueError\(.*info\['action_mask'\] allows no action",
    "size": r"environment \d: step raised ValueError\(.*has 3 numbers, but there are 9 actions",
}


@pytest.mark.parametrize("how", FAULTS)
def test_the_error_for_an_invalid_mask_names_the_environment_and_the_step(how: str, tmp_path: Path) -> None:
    with pytest.raises(EnvError, match=FAULTS[how] + r".*\(episode 0 with seed \d+, after 2 steps\)"):
        train_in(tmp_path / "run", BASE, env_kwargs=MULTI | {"mask": how})


def test_an_environment_without_masks_is_refused_before_the_run() -> None:
    with pytest.raises(ConfigError, match=r"reset\(seed=0\) raised ValueError\('info has no action_mask"):
        inspect_task(TrainConfig(env="CartPole-v1", action_masks=True))
    with pytest.raises(ConfigError, match=r"--action-masks needs Discrete or .* --env Pendulum-v1 has Box"):
        inspect_task(TrainConfig(env="Pendulum-v1", action_masks=True))


def test_masks_do_not_change_hidden_and_added_observations() -> None:
    config = dataclasses.replace(BASE, hide_obs=(1,), prev_action=True)
    task = inspect_task(config)
    assert [leaf.field for leaf in task.observation.leaves] == [
        "obs/obs/obs", "obs/obs/prev_action", "obs/action_mask",
    ]  # fmt: skip
    assert [leaf.kind for leaf in task.observation.network_leaves] == ["vector", "bits"]
    obs = collected(config, (0, 5)).arrays["rollout.obs/obs/obs"]
    assert not obs[..., 1].any()
    assert obs[..., 2].any()


class Seeing(Leaky):
    """Notes the names of what it observes."""

    seen: ClassVar[set[str]] = set()

    def forward(self, obs: Mapping[str, torch.Tensor], *others: torch.Tensor) -> Any:
        self.seen.update(obs)
        return super().forward(obs, *others)


def seeing(shapes: Mapping[str, tuple[int, ...]], config: Any) -> torch.nn.Module:
    return Seeing(shapes)


def test_a_custom_network_does_not_get_the_mask() -> None:
    collected(dataclasses.replace(BASE, network="test_action_masks:seeing"), (0, 5))
    assert Seeing.seen == {"obs/obs"}
