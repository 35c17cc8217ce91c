"""Custom networks: reproducible as the built-in ones, and refused if they break a rule."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import planned, sampled
from helpers import assert_refused
from public_helpers import SIX_ITERATIONS, train_in

from shmppo.envs.inspection import inspect_task
from shmppo.lockstep.pool import ComputeGradients
from shmppo.models.actor_critic import build_model, parameter_views
from shmppo.ppo.gae import compute_advantages
from shmppo.ppo.gradients import ShardGradients
from shmppo.sampling.actor import TorchActing
from shmppo.utils.torch_utils import numeric_modes

BASE = dataclasses.replace(SIX_ITERATIONS, network="networks:leaky", rollout_steps=16, seq_len=5, grad_shards=2)
PLAIN = dataclasses.replace(BASE, network="networks:Plain", core="none")


def test_acting_computes_what_learning_does_and_first_marks_episode_starts() -> None:
    config = dataclasses.replace(BASE, separate_critic="all")
    task = inspect_task(config)
    model = build_model(config, task.observation, task.distribution)
    obs = torch.randn(5, 8, 4, generator=torch.Generator().manual_seed(0))
    now = np.zeros((8, 4), np.float32)
    network = TorchActing(model, [now], [None], low=0, rows=8)
    acted = []
    firsts: list[np.ndarray] = []
    module = model.trunk_list[0].module
    module.register_forward_hook(lambda _, inputs, __: firsts.append(inputs[1].numpy().copy()))
    with torch.inference_mode():
        for t in range(5):
            if t == 3:
                network.state[2] = 0.0  # an episode begins in row 2
            now[:] = obs[t]
            network.forward()
            acted.append(torch.from_numpy(network.params.copy()))
    first = np.array(firsts)[:, 0]
    assert first[0].all()
    assert first[3].tolist() == [n == 2 for n in range(8)]
    assert not first[[1, 2, 4]].any()
    with torch.no_grad():
        whole, _, _ = model([obs], torch.zeros(8, model.state_size))
        again, _, _ = model([obs[3:, 2:3]], torch.zeros(1, model.state_size))
    keep = [0, 1, 3, 4, 5, 6, 7]
    torch.testing.assert_close(torch.stack(acted)[:, keep], whole[:, keep], atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(torch.stack(acted)[3:, 2], again[:, 0], atol=2e-6, rtol=1e-5)


def test_a_network_without_state_gets_no_episode_starts() -> None:
    config = PLAIN
    task = inspect_task(config)
    model = build_model(config, task.observation, task.distribution)
    firsts: list[bool] = []
    module = model.trunk_list[0].module
    module.register_forward_hook(lambda _, inputs, __: firsts.append(bool(inputs[1].any())))
    model([torch.zeros(3, 8, 4)], torch.zeros(8, 0))
    assert firsts == [False]


def test_a_parameter_that_matters_from_the_second_step_on_has_no_gradient_in_sequences_of_one_step() -> None:
    config = dataclasses.replace(BASE, network="networks:delayed", seq_len=1)
    buffers, learner, pool = sampled(config)
    planned(buffers, learner)
    buffers.shard_results.gradients[:] = 1
    pool.execute(ComputeGradients(0, 0))
    for shard in torch.from_numpy(buffers.shard_results.gradients):
        views = dict(zip(dict(learner.model.named_parameters()), parameter_views(shard, learner.model), strict=True))
        assert not views["trunks.0.module.inputs.0.weight"].any()
        assert views["value_head.bias"] != 1


def test_a_network_changes_the_numeric_modes_only_while_it_computes() -> None:
    """The KL profile computes it in the learner, whose next statistics must not depend on that."""
    config = dataclasses.replace(BASE, network="networks:many_threads")
    buffers, learner, _ = sampled(config)
    planned(buffers, learner)
    gradients = ShardGradients(config, inspect_task(config).distribution, learner.model, buffers)
    with numeric_modes():
        gradients.outputs(buffers.minibatches.sequences[:4])
        assert torch.get_num_threads() == 1


def test_a_network_that_acts_in_the_learner_does_not_change_its_numeric_modes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    threads = []

    def compute(*arguments: Any) -> Any:
        threads.append(torch.get_num_threads())
        return compute_advantages(*arguments)

    monkeypatch.setattr("shmppo.runs.loop.compute_advantages", compute)
    where: dict[str, Any] = {"device": "cpu:0", "act_on": "device", "grad_shards": None, "workers": 1}
    train_in(tmp_path / "run", BASE, network="networks:many_threads", stop_at_iteration=1, **where)
    assert threads == [1]


def test_a_network_may_compute_with_numbers_while_it_is_made_and_return_float64(tmp_path: Path) -> None:
    assert train_in(tmp_path / "run", PLAIN, network="networks:Scaled", stop_at_iteration=1)["exact"]


@pytest.mark.parametrize("where", [{}, {"device": "cpu:0", "act_on": "device", "grad_shards": None}])
def test_a_network_that_mixes_rows_makes_the_run_inexact(where: dict[str, Any], tmp_path: Path) -> None:
    summary = train_in(tmp_path / "run", BASE, network="networks:Mixing", core="none", stop_at_iteration=1, **where)
    reason = "an environment's actions depend on the other environments of its inference batch, on this processor"
    assert summary["inexact_reasons"][0] == f"{reason} and build of torch or because of --network or --encoder"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"network": "networks:absent"}, r"--network networks:absent: module networks has no absent"),
    ({"network": "networks"}, r"--network networks is not of the form module:attribute; name a class"),
    ({"network": "networks:nothing"}, r"--network networks:nothing must return an nn.Module with the attributes f"),
    ({"network": "networks:Modular"}, r"Modular must return .* attributes features and state_size, two integers$"),
    ({"network": "networks:Stateless"}, r"Stateless must return .* attributes features and state_size, two integers$"),
    ({"network": "networks:Detached", "core": "none"},
     r"failed in forward: RuntimeError\('element 0 of tensors does not require grad"),
    ({"network": "networks:Wide"}, r"--network networks:Wide returned features and state of shapes .*4.*; .* be .*5"),
    ({"network": "networks:Normed"}, r"--network networks:Normed has buffers \(norm.num_batches_tracked, norm"),
    ({"network": "networks:double"}, r"--network networks:double has parameters that are not float32"),
    ({"network": "networks:frozen"}, r"networks:frozen has parameters that are not trained \(layer.bias\); make them"),
    ({"network": "networks:Idle"},
     r"networks:Idle has parameters that its features do not depend on \(idle\); remove them"),
    ({"core": "none"}, r"--network networks:leaky has a recurrent state of size 6, but --core none is set; remove"),
    ({"network": "networks:Plain", "env": "space_environments:Shaped", "env_kwargs": {"space": "dict"}},
     r"could not be made: KeyError\('obs'\) at .*networks.py:\d+; correct it \(shapes has 'obs/camera' \(1, .*\)$"),
    ({"network": "networks:Lost", "core": "none"},
     r"failed in forward: KeyError\('image'\) at .*networks.py:\d+; correct it \(obs has 'obs' \(2, 8, 4\)\)$"),
    ({"network": "networks:Dropping", "core": "none"}, r"different features for the same input; remove dropout and"),
    ({"network": "networks:DroppingPixels", "core": "none", "env": "space_environments:Shaped",
     "env_kwargs": {"space": "image"}}, r"different features for the same input; remove dropout and"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "message"), REFUSED)
def test_a_custom_network_that_breaks_a_rule_is_refused_before_anything_starts(
    fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    assert_refused(BASE, fields, message, tmp_path)
