"""Gradients and loss terms of shards: their sums are those of a plain loss over the whole minibatch."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import planned, sampled
from gymnasium import spaces
from helpers import clone_of_recording, torch_distribution
from torch import Tensor
from torch.distributions import kl_divergence

from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.lockstep.pool import ComputeGradients
from shmppo.models.actor_critic import ActorCritic, parameter_views
from shmppo.models.user_module import CustomEncoder
from shmppo.parallel.shared_buffers import SharedBuffers
from shmppo.ppo.gradients import ShardGradients
from shmppo.ppo.loss import Loss
from shmppo.ppo.minibatches import cut_sequences
from shmppo.spaces.action_spaces import distribution_for

CONFIG = TrainConfig(
    env="CartPole-v1", num_envs=4, rollout_steps=48, seq_len=6, minibatches=3, epochs=2, workers=0, hidden_size=16,
    encoder_sizes=(16,), grad_shards=2, entropy_coef=0.01, normalize_reward=False,
)  # fmt: skip


SHAPED = {"env": "space_environments:Shaped", "env_kwargs": {"space": "dict"}, "prev_action": True}
PENALTY_COEF = 3.0  # as after some updates
AUXILIARY = {"auxiliary": "networks:Predict"}
VARIANTS: dict[str, dict[str, Any]] = {
    "lstm": {},
    "none": {"core": "none"},
    "lmu": {"core": "lmu", "num_layers": 2},
    "lru": {"core": "lru", "num_layers": 2},
    "gtrxl": {"core": "gtrxl", "num_layers": 2, "attention_window": 4},
    "dict": SHAPED,
    "dict-none": SHAPED | {"core": "none", "seed": 2},
    "own-encoder": SHAPED | {"encoder": "networks:look"},
    "own-encoder-of-a-part": SHAPED | {"encoder": "networks:look_at_image", "separate_critic": "core"},
    "two-own-encoders": SHAPED | {"encoder": "networks:look_at_image", "separate_critic": "all", "core": "gru"},
    "own-encoder-without-core": SHAPED | AUXILIARY | {"encoder": "networks:look_at_image", "core": "none"},
    "penalty": {"objective": "penalty"},
    "clone": {"objective": "clone"},
    "clone-dict": SHAPED | {"objective": "clone", "encoder": "mlp"},
    "per-dimension": {"env": "HalfCheetah-v5", "normalize_obs": False, "ratio": "per-dimension", "clip": 0.02},
    "beta": {"env": "Pendulum-v1", "normalize_obs": False, "distribution": "beta"},
    "beta-penalty": {"env": "Pendulum-v1", "objective": "penalty", "distribution": "beta"},
    "teacher": {"teacher": "runs/teacher", "teacher_coef": 0.7},
    "distill": {"teacher": "runs/teacher", "objective": "distill", "env": "Pendulum-v1"},
    "warm-up": {"teacher": "runs/teacher", "critic_warmup_steps": 1, "separate_critic": "all"},
    "value-clip": {"value_clip": True, "clip": 0.02},
    "auxiliary": AUXILIARY,
    "auxiliary-none": AUXILIARY | {"core": "none"},
    "auxiliary-lmu": AUXILIARY | {"core": "lmu", "num_layers": 2, "separate_critic": "core"},
    "auxiliary-input": AUXILIARY | {"env": "Pendulum-v1", "core": "none", "encoder_sizes": ()},
    "auxiliary-dict": SHAPED | AUXILIARY | {"separate_critic": "all"},
}

BY_TORCH = ("lstm", "dict", "own-encoder-of-a-part", "per-dimension", "distill", "auxiliary-dict")
"""The variants whose gradients torch computes in the fast tests, too."""


def log_prob_of(policy: torch.distributions.Distribution, actions: Tensor) -> Tensor:
    """The log-probability of each action dimension, [..., A]."""
    if isinstance(policy, torch.distributions.Independent):
        return policy.base_dist.log_prob(actions)
    return policy.log_prob(actions[..., 0]).unsqueeze(-1)


def in_float64(model: ActorCritic) -> ActorCritic:
    """A copy that computes in float64."""
    copied = copy.deepcopy(model).double()
    for module in copied.modules():
        if isinstance(module, torch.nn.Conv2d):  # images are float32
            module.register_forward_pre_hook(lambda _, inputs: (inputs[0].double(),))
        if isinstance(module, CustomEncoder):  # its features are float32
            module.register_forward_hook(lambda _, __, features: features.double())
    return copied


PLAIN = (
    "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "auxiliary_loss", "teacher_kl",
)  # fmt: skip
"""The metrics of the terms that `plain_terms` computes."""


def plain_terms(
    config: TrainConfig,
    buffers: SharedBuffers,
    model: ActorCritic,
    old_model: ActorCritic,
    sequences: list[list[int]],
    advantages: np.ndarray,
) -> Tensor:
    """The terms, summed over the steps of sequences, in float64, one sequence after the other, without padding.

    models: in float64.
    """
    distribution, rollout = inspect_task(config).distribution, buffers.rollout
    steps = [(t, n) for start, n, length, _ in sequences for t in range(start, start + length)]
    chosen = np.array([advantages[t, n] for t, n in steps], np.float64)
    mean, std = chosen.mean(), chosen.std()
    total = torch.zeros(len(PLAIN), dtype=torch.float64)
    for start, n, length, slot in sequences:
        span = slice(start, start + length)
        state = torch.zeros(1, model.state_size, dtype=torch.float64)
        if slot >= 0 and model.state_size:
            state[0] = torch.from_numpy(rollout.sequence_state[slot, n])
        obs = [torch.from_numpy(leaf[span, n].copy()).unsqueeze(1) for leaf in rollout.obs]
        obs = [leaf.double() if leaf.is_floating_point() else leaf for leaf in obs]
        with torch.no_grad():
            before = old_model(obs, state)[0]
        params, values = model(obs, state)[:2]
        actions = torch.from_numpy(rollout.actions[span, n].copy())
        policy, old_policy = (torch_distribution(distribution, p[:, 0]) for p in (params, before))
        log_ratios = log_prob_of(policy, actions) - log_prob_of(old_policy, actions)
        scaled = torch.from_numpy((advantages[span, n] - mean) / (std + 1e-8))
        target = torch.from_numpy(advantages[span, n] + rollout.value[span, n])
        log_ratio = log_ratios.sum(-1)
        ratio = log_ratio.exp()
        low, high = 1 - config.clip, 1 + config.clip
        kl = ratio - 1 - log_ratio if config.objective == "clip" else kl_divergence(old_policy, policy)
        clipped = ((ratio < low) | (ratio > high)).double()
        if config.objective == "penalty":
            objective = ratio * scaled - PENALTY_COEF * kl
        elif config.objective == "clone":
            objective = log_prob_of(policy, actions).sum(-1)
        elif config.ratio == "per-dimension":
            ratios = log_ratios.exp()
            clipped = ((ratios < low) | (ratios > high)).double().mean(-1)
            bounded = torch.where(scaled.unsqueeze(-1) > 0, ratios.clamp(max=high), ratios.clamp(min=low))
            objective = scaled * bounded.prod(-1)
        else:
            objective = torch.min(ratio * scaled, ratio.clamp(low, high) * scaled)
        errors = (values[:, 0] - target).square()
        if config.value_clip:
            old_values = torch.from_numpy(rollout.value[span, n])
            near = old_values + (values[:, 0] - old_values).clamp(-config.clip, config.clip)
            errors = torch.max(errors, (near - target).square())
        teacher_kl = auxiliary = torch.zeros(length, dtype=torch.float64)
        if config.teacher is not None:
            of_teacher = rollout.added["teacher_params"][span, n].copy()
            teacher = torch_distribution(distribution, torch.from_numpy(of_teacher))
            teacher_kl = kl_divergence(teacher, policy)
        if model.feature_losses:
            features = model.features(obs, state)[0][0][:, 0]
            auxiliary = model.auxiliary(features, [leaf[:, 0] for leaf in obs], actions, target)
        actor = 0.0 if config.critic_warmup_steps or config.objective == "distill" else 1.0
        entropy = policy.entropy() + (np.log(4.0) if config.distribution == "beta" else 0.0)  # actions in −2 … 2
        terms = [-actor * objective, errors / 2, entropy, kl, clipped, auxiliary, teacher_kl]
        total = total + torch.stack([term.sum() for term in terms])
    return total


def loss_of(config: TrainConfig, terms: Tensor) -> Tensor:
    """The loss, given the terms."""
    policy, value, entropy, _, _, auxiliary, teacher_kl = terms
    actor = 0.0 if config.critic_warmup_steps else 1.0
    entropy_coef = 0.0 if config.objective == "distill" else config.entropy_coef
    by_actor = policy - actor * entropy_coef * entropy + actor * config.teacher_coef * teacher_kl
    return by_actor + config.value_coef * value + auxiliary


@pytest.mark.parametrize(
    ("variant", "kernel"),
    [
        *((variant, kernel) for variant in VARIANTS for kernel in ("native", "device")),
        *((variant, "torch") for variant in BY_TORCH),
        *(
            pytest.param(v, "torch", marks=pytest.mark.slow(reason="about 10 s on 2 cores"))
            for v in VARIANTS
            if v not in BY_TORCH
        ),
    ],
)
def test_the_shards_add_up_to_the_gradient_and_the_terms_of_a_plain_loss_over_the_minibatch(
    variant: str, kernel: Any, tmp_path: Path
) -> None:
    changes = VARIANTS[variant] | {"kernel": kernel}
    if kernel == "device":
        changes |= {"kernel": "torch", "device": "cpu:0", "grad_shards": None}
    if clones := changes.get("objective") == "clone":
        del changes["objective"]
    config = dataclasses.replace(CONFIG, **changes)
    if clones:
        config = clone_of_recording(config, tmp_path / "episodes.npz")
    buffers, learner, pool = sampled(config)
    learner.schedule.penalty_coef = PENALTY_COEF
    learner.set_rates(0)
    of_teacher = buffers.rollout.added["teacher_params"]
    of_teacher[:] = np.random.default_rng(0).standard_normal(of_teacher.shape)
    advantages = planned(buffers, learner)
    old_model = in_float64(learner.model)
    with torch.no_grad():  # a policy other than the one that sampled, so that ratios differ from 1
        for parameter in learner.model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
    epoch, minibatch = 1, 2
    for of_minibatch in [(0, 0), (epoch, minibatch)]:  # a device copies its inputs at the first minibatch
        pool.execute(ComputeGradients(*of_minibatch))
    summed = torch.from_numpy(buffers.shard_results.gradients).sum(0)
    reported = buffers.shard_results.loss_terms.sum(0)

    plan = buffers.minibatches
    bounds = plan.bounds[epoch, minibatch]
    sequences = plan.sequences[plan.order[epoch, bounds[0] : bounds[-1]]].tolist()
    steps = sum(length for _, _, length, _ in sequences)
    model = in_float64(learner.model)
    terms = plain_terms(config, buffers, model, old_model, sequences, advantages) / steps
    plain = torch.autograd.grad(loss_of(config, terms), list(model.parameters()))
    assert plan.steps[epoch, minibatch] == steps
    used = [PLAIN.index(metric) for metric in Loss(config).metrics]
    np.testing.assert_allclose(reported, terms.detach()[used], atol=2e-6, rtol=2e-4)
    if config.value_clip:
        unclipped = dataclasses.replace(config, value_clip=False)
        without = plain_terms(unclipped, buffers, model, old_model, sequences, advantages) / steps
        value_loss = PLAIN.index("value_loss")
        assert terms[value_loss] > 1.001 * without[value_loss], "the clip is reached"
    for actual, expected in zip(parameter_views(summed, learner.model), plain, strict=True):
        torch.testing.assert_close(actual, expected.float(), atol=2e-6, rtol=2e-4)


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
def test_the_entropy_of_each_part_of_an_action_is_measured(device: str) -> None:
    echo = {"env": "space_environments:Echo-v0", "env_kwargs": {"actions": "nested"}, "normalize_obs": False}
    shards = 2 if device == "cpu" else None
    config = dataclasses.replace(CONFIG, **echo, device=device, grad_shards=shards)
    buffers, learner, pool = sampled(config)
    planned(buffers, learner)
    with torch.no_grad():  # so that no distribution is uniform
        for parameter in learner.model.network_parameters:
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
    for of_minibatch in [(0, 0), (1, 2)]:  # a device copies its inputs at the first minibatch
        pool.execute(ComputeGradients(*of_minibatch))
    distribution, plan = inspect_task(config).distribution, buffers.minibatches
    names = Loss(config, distribution).metrics
    found = dict(zip(names, buffers.shard_results.loss_terms.sum(0).tolist(), strict=True))
    sequences = plan.sequences[plan.order[1, plan.bounds[1, 2, 0] : plan.bounds[1, 2, -1]]].astype(np.int64)
    params = ShardGradients(config, distribution, learner.model, buffers).outputs(sequences)[0]
    _, bits, gear, one, two, log_std = torch.from_numpy(params).double().split([2, 3, 3, 2, 3, 2], -1)
    one, two, gear = (torch.distributions.Categorical(logits=logits).entropy() for logits in (one, two, gear))
    arm = torch.distributions.Normal(0, log_std.exp()).entropy(), torch.distributions.Bernoulli(logits=bits).entropy()
    parts = [part.mean().item() for part in (torch.cat(arm, -1).sum(-1), gear, one + two)]
    assert parts[1] < 0.9 * np.log(3), "this part is far from uniform"
    assert names[5:] == ["entropy/arm", "entropy/gear", "entropy/keys"]
    assert [found[name] for name in names[5:]] == pytest.approx(parts, rel=1e-6)
    assert found["entropy"] == pytest.approx(sum(parts), rel=1e-6)


def test_no_name_of_a_part_breaks_the_file_of_metrics() -> None:
    keys = ["a,b", 'a"b', "a%2Cb", " ", "a/b", "größe\r\n"]
    space = spaces.Dict({key: spaces.Discrete(2) for key in keys})
    names = Loss(CONFIG, distribution_for(space, "a test")).metrics[5:]
    assert len({*names}) == 6
    assert "entropy/a/b" in names
    assert not {*"".join(names)} & {*',"\r\n '}


@pytest.mark.parametrize(("kernel", "batches"), [("torch", 3), ("native", 1)])
def test_a_process_that_computes_gradients_shows_progress(kernel: Any, batches: int) -> None:
    config = dataclasses.replace(CONFIG, kernel=kernel, grad_shards=3, encoder="mlp")
    buffers, learner, _ = sampled(config)
    planned(buffers, learner)
    progress = np.zeros(1, np.int64)
    distribution = inspect_task(config).distribution
    ShardGradients(config, distribution, learner.model, buffers, progress=progress).compute(0, 0, range(3))
    assert progress[0] == batches


@pytest.mark.parametrize("changes", [{"kernel": "torch"}, AUXILIARY])
def test_the_code_of_an_environment_may_have_disabled_gradients(changes: dict[str, Any]) -> None:
    buffers, learner, pool = sampled(dataclasses.replace(CONFIG, **changes))
    planned(buffers, learner)
    with torch.no_grad():
        pool.execute(ComputeGradients(0, 0))
    assert buffers.shard_results.gradients.any(axis=1).all()


def test_the_outputs_for_sequences_have_each_of_their_steps_once() -> None:
    buffers, learner, _ = sampled(CONFIG, rollouts=2)
    gradients = ShardGradients(CONFIG, inspect_task(CONFIG).distribution, learner.model, buffers)
    sequences = cut_sequences(buffers.rollout.first, CONFIG.sequence_steps).astype(np.int64)
    params, values = gradients.outputs(sequences)
    assert len(params) == len(values) == sequences[:, 2].sum() == CONFIG.batch_steps
