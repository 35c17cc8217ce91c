"""Actor and critic that see different parts of the observation (--actor-obs, --critic-obs)."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import assert_refused
from public_helpers import run_fixture, train_in

from shmppo import load_policy
from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.errors import ConfigError
from shmppo.models.actor_critic import build_model

BASE = TrainConfig(
    env="space_environments:Shaped", env_kwargs={"space": "dict"}, separate_critic="all",
    actor_obs=("flags", "inner/2"), num_envs=4, rollout_steps=16, seq_len=5, minibatches=2, epochs=2, grad_shards=2,
    hidden_size=8, encoder_sizes=(8,), quiet=True, total_steps=4 * 16 * 4, workers=0, checkpoint_every=1,
)  # fmt: skip


@pytest.mark.parametrize(("core", "critic_obs"), [("lstm", None), ("none", ("camera",))])
def test_each_network_sees_only_its_parts(core: Any, critic_obs: tuple[str, ...] | None) -> None:
    config = dataclasses.replace(BASE, core=core, critic_obs=critic_obs)
    task = inspect_task(config)
    model = build_model(config, task.observation, task.distribution)
    torch.nn.init.normal_(model.policy_head.weight)
    generator = torch.Generator().manual_seed(0)
    names = [leaf.field for leaf in task.observation.leaves]
    obs = [
        torch.randint(0, 2, (3, 2, *leaf.shape), generator=generator).to(getattr(torch, leaf.dtype))
        for leaf in task.observation.leaves
    ]
    state = torch.zeros(2, model.state_size)
    params, values, _ = model(obs, state)
    for index, name in enumerate(names):
        changed = list(obs)
        changed[index] = 1 - obs[index]
        other_params, other_values, _ = model(changed, state)
        assert (not torch.equal(params, other_params)) == (name in ("obs/flags", "obs/inner/2/x")), name
        assert (not torch.equal(values, other_values)) == (critic_obs is None or name == "obs/camera"), name


run = run_fixture(BASE)


def test_the_policy_needs_only_what_the_actor_sees(run: Path) -> None:
    policy = load_policy(run)
    seen: dict[str, Any] = {"flags": np.array([0, 1, 1]), "inner": (None, None, {"x": np.array([0.5])})}
    full = seen | {"camera": np.zeros((36, 36), np.uint8), "inner": (3, np.ones(2), {"x": np.array([0.5])})}
    (action, state), (same, same_state) = policy.act(seen, None), policy.act(full, None)
    assert action == same
    assert np.array_equal(state, same_state)
    assert np.abs(state).max() > 0
    with pytest.raises(ValueError, match="has no part 'flags'"):
        policy.act({"camera": full["camera"]}, None)


def test_weights_for_other_parts_are_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="was trained with --actor-obs flags inner/2; add this flag"):
        train_in(tmp_path / "new", BASE, init_from=str(run), actor_obs=("flags",))


REFUSED = {
    "a shared network": ({"separate_critic": "core"}, "select different parts .*; add --separate-critic all"),
    "an unknown key": (
        {"critic_obs": ("flag",)},
        "--critic-obs flag selects no part of the observation, which has camera, flags, inner/0, inner/1, inner/2/x;",
    ),
    "no key": ({"actor_obs": ()}, "--actor-obs must name a part of the observation, which has camera, "),
    "a vector": (
        {"env": "CartPole-v1", "env_kwargs": {}},
        "--actor-obs flags inner/2 selects no part of the observation, which is not a Dict; ",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_parts_are_refused_in_one_sentence(case: str, tmp_path: Path) -> None:
    fields, message = REFUSED[case]
    assert_refused(BASE, fields, message, tmp_path)
