"""Auxiliary losses: reproducible, not needed by a trained policy, and refused if the module breaks a rule.

`tests/ppo/test_gradients.py` compares their gradients with autograd.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import planned, sampled
from helpers import KERNELS, assert_refused
from public_helpers import run_fixture, train_in

from shmppo import load_policy
from shmppo.config import trust
from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.errors import ConfigError
from shmppo.lockstep.pool import ComputeGradients
from shmppo.models.actor_critic import build_model, network_weights
from shmppo.policies.evaluation import evaluate
from shmppo.policies.policy import load_trained
from shmppo.ppo.loss import Loss
from shmppo.runs.launch import train
from shmppo.storage.checkpoint import load_selected_checkpoint
from shmppo.tools.export_policy import export_policy
from shmppo.tools.verify import verify_run

BASE = TrainConfig(
    env="CartPole-v1", hide_obs=(1, 3), auxiliary="networks:Predict", num_envs=4, rollout_steps=16,
    seq_len=5, minibatches=2, epochs=2, grad_shards=2, hidden_size=8, encoder_sizes=(8,), quiet=True,
    total_steps=4 * 16 * 4, workers=0, keep_every=2, check_determinism=0,
)  # fmt: skip


@KERNELS
def test_the_metric_is_the_mean_loss_of_the_steps(kernel: Any) -> None:
    buffers, learner, pool = sampled(dataclasses.replace(BASE, core="none", kernel=kernel))
    planned(buffers, learner)
    pool.execute(ComputeGradients(1, 0))
    plan, rollout, model = buffers.minibatches, buffers.rollout, learner.model
    t, n, length, _ = plan.sequences[plan.order[1, : plan.bounds[1, 0, -1]]].T
    assert (length == 1).all()
    obs, actions = (torch.from_numpy(array[t, n]) for array in (rollout.obs[0], rollout.actions))
    returns = torch.from_numpy(plan.step_targets.reshape(*rollout.reward.shape, -1)[t, n, 1])
    assert model.feature_losses
    with torch.no_grad():
        features = model.features([obs.unsqueeze(0)], torch.zeros(len(obs), 0))[0][0][0]
        losses = model.auxiliary(features, [obs], actions, returns)
    position = Loss(learner.config).metrics.index("auxiliary_loss")
    assert buffers.shard_results.loss_terms[:, position].sum() == pytest.approx(float(losses.mean()), rel=1e-5)


run = run_fixture(BASE)
"""A run with an auxiliary loss. The tests do not change it."""


def test_the_module_is_saved_with_the_network_and_the_run_can_be_verified(run: Path) -> None:
    weights = load_selected_checkpoint(run)["learner"]["model"]
    assert sorted(weights.keys() - network_weights(weights).keys()) == [
        "auxiliary.module.layer.bias",
        "auxiliary.module.layer.weight",
    ]
    assert verify_run(run, from_iteration=2).equal


def test_a_trained_policy_does_not_need_the_module(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "SAFE_MODULES", ())
    monkeypatch.setattr("networks.Predict", None)
    weights = load_selected_checkpoint(run)["learner"]["model"]
    for directory in (run, export_policy(run, out=tmp_path / "policy")):
        policy, model = load_policy(directory), load_trained(directory).model
        assert not model.feature_losses
        for name, value in model.state_dict().items():
            assert torch.equal(value, weights[name])
        action, _ = policy.act(np.zeros(4, np.float32))
        assert action in (0, 1)
    assert len(evaluate(run, episodes=2).returns) == 2
    taught = dataclasses.replace(
        BASE, auxiliary=None, hide_obs=(1, 3), teacher=str(run), run_dir=str(tmp_path / "taught")
    )
    train(dataclasses.replace(taught, stop_at_iteration=1))
    with pytest.raises(ConfigError, match=r"names code to import: --auxiliary networks:Predict; .* --trust networks "):
        verify_run(run)


@pytest.mark.parametrize("auxiliary", [None, "networks:Predict"])
def test_a_run_can_start_from_the_network_of_a_run_with_or_without_a_module(
    auxiliary: str | None, run: Path, tmp_path: Path
) -> None:
    plain = tmp_path / "plain"
    train_in(plain, BASE, auxiliary=None)
    for i, source in enumerate((run, plain)):
        new = dataclasses.replace(
            BASE, init_from=str(source), auxiliary=auxiliary, seed=3, checkpoint_every=1, stop_at_iteration=1,
            run_dir=str(tmp_path / f"new{i}"),
        )  # fmt: skip
        train(new)
        task = inspect_task(new)
        initial = build_model(new, task.observation, task.distribution).state_dict()
        expected = initial | network_weights(load_selected_checkpoint(source)["learner"]["model"])
        found = load_selected_checkpoint(tmp_path / f"new{i}", 0)["learner"]["model"]
        assert found.keys() == expected.keys() == initial.keys()
        assert all(torch.equal(found[name], expected[name]) for name in found)


def test_a_module_that_detaches_the_features_does_not_change_the_network(run: Path, tmp_path: Path) -> None:
    weights = {}
    for auxiliary in (None, "networks:Probe"):
        # Without clipping, the gradient of the module does not scale that of the network.
        train_in(tmp_path / f"{auxiliary}", BASE, auxiliary=auxiliary, max_grad_norm=1e9)
        weights[auxiliary] = network_weights(load_selected_checkpoint(tmp_path / f"{auxiliary}")["learner"]["model"])
    assert all(torch.equal(value, weights["networks:Probe"][name]) for name, value in weights[None].items())
    with_loss = load_selected_checkpoint(run)["learner"]["model"]
    assert not all(torch.equal(value, with_loss[name]) for name, value in weights[None].items())


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"auxiliary": "networks:absent"}, r"--auxiliary networks:absent: module networks has no absent"),
    ({"auxiliary": "networks"}, r"--auxiliary networks is not of the form module:attribute; name a class"),
    ({"auxiliary": "networks:no_module"}, r"networks:no_module must return an nn.Module, not an object of type NoneT"),
    ({"auxiliary": "networks:camera"},
     r"camera could not be made: KeyError\('obs/camera'\) at .*networks.py:\d+; correct it \(shapes has 'obs' \(4,"),
    ({"auxiliary": "networks:leaky"}, r"leaky could not be made: TypeError\(.*\); correct it"),
    ({"auxiliary": "networks:Halved"},
     r"--auxiliary networks:Halved returned losses of shapes \(4,\); they must be \(8,\)$"),
    ({"auxiliary": "networks:Forgetful"},
     r"parameters that its losses do not depend on \(layer.weight, layer.bias\); "),
    ({"auxiliary": "networks:Noisy"}, r"returned different losses for the same input; remove dropout and randomness"),
    ({"auxiliary": "networks:Undefined"}, r"returned losses with NaN, although the input has none$"),
    ({"auxiliary": "networks:Total"}, r"failed in forward: AttributeError\(.*; correct it \(obs has 'obs' \(8, 4\)\)$"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "message"), REFUSED)
def test_a_module_that_breaks_a_rule_is_refused_before_anything_starts(
    fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    assert_refused(BASE, fields, message, tmp_path)


def test_an_auxiliary_loss_gets_no_action_mask(tmp_path: Path) -> None:
    masked = {"env": "space_environments:Masked-v0", "env_kwargs": {"sizes": [3, 4]}, "action_masks": True}
    assert train_in(tmp_path / "run", BASE, **masked, hide_obs=(), stop_at_iteration=1)["iterations"] == 1
