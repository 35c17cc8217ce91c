"""`shmppo verify --dump`: the README's lines compute the loss and the gradient that training used."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import assert_near, torch_distribution
from public_helpers import train_in

from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.errors import ConfigError
from shmppo.models.actor_critic import build_model
from shmppo.tools.verify import verify_run

BASE = TrainConfig(
    env="Pendulum-v1", hide_obs=(2,), num_envs=4, rollout_steps=32, minibatches=2, epochs=2, hidden_size=16,
    encoder_sizes=(16,), workers=0, quiet=True, total_steps=4 * 32 * 4, seq_len=8, keep_every=2, check_determinism=0,
    grad_shards=2, learning_rate=3e-3,
)  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "discrete": {"env": "CartPole-v1", "hide_obs": (1, 3), "entropy_coef": 0.01, "core": "gru", "kernel": "torch"},
    "per-dimension": {
        "env": "HalfCheetah-v5", "hide_obs": (), "ratio": "per-dimension", "value_clip": True, "clip": 0.01,
    },
}  # fmt: skip


@pytest.fixture(params=CONFIGS)
def dumped(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[TrainConfig, Path]:
    """A run, and a dump of its third iteration."""
    config = dataclasses.replace(BASE, **CONFIGS[request.param])
    train_in(tmp_path / "run", config)
    verdict = verify_run(tmp_path / "run", dump=tmp_path / "dump", from_iteration=2)
    assert verdict.equal, verdict.text
    names = ["README.md", *(f"000003-minibatch-{e}-{m}.npz" for e in (0, 1) for m in (0, 1)), "000003-rollout.npz"]
    assert sorted(path.name for path in (tmp_path / "dump").iterdir()) == sorted(names)
    return config, tmp_path / "dump"


def readme_lines(dump: Path, name: str) -> list[str]:
    """The lines of NumPy in README.md, for the file `name`."""
    lines = (dump / "README.md").read_text().partition("import numpy as np")[2].splitlines()
    return [line.strip().replace("000001-minibatch-0-0.npz", str(dump / name)) for line in lines if line.strip()]


def test_the_lines_of_the_readme_compute_loss_and_gradient(dumped: tuple[TrainConfig, Path]) -> None:
    config, dump = dumped
    rollout = dict(np.load(dump / "000003-rollout.npz"))
    for name in ("000003-minibatch-0-0.npz", "000003-minibatch-1-1.npz"):
        load, *lines = readme_lines(dump, name)
        found: dict[str, Any] = {"np": np}
        exec("\n".join([load, *lines]), found)
        m = found["m"]
        used = m["policy_coef"] * m["training/policy_loss"] + m["value_coef"] * m["training/value_loss"]
        used -= m["entropy_coef"] * m["training/entropy"]
        assert found["loss"].mean() == pytest.approx(used, rel=1e-5)

        model, again = float64_network(config, rollout, m)
        traced: dict[str, Any] = {"np": torch, "m": {key: torch.from_numpy(array) for key, array in m.items()} | again}
        exec("\n".join(lines), traced)
        assert traced["loss"].mean().item() == pytest.approx(used, rel=1e-5)
        traced["loss"].mean().backward()
        for parameter, tensor in model.named_parameters():
            place = rollout[f"index/{parameter}"]
            assert tensor.grad is not None
            scale = np.abs(m["gradient"]).max()
            assert np.abs(tensor.grad.numpy() - m["gradient"][place]).max() <= 1e-5 * scale, parameter
        assert_near(m["shard_gradients"].sum(0), m["gradient"], 1e-6)


def float64_network(
    config: TrainConfig, rollout: dict[str, np.ndarray], m: dict[str, np.ndarray]
) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """Compute the outputs of the network of a minibatch by torch in float64, from the weights in its file."""
    task = inspect_task(config)
    model = build_model(config, task.observation, task.distribution).double()
    for name, parameter in model.named_parameters():
        parameter.data = torch.from_numpy(m["weights"][rollout[f"index/{name}"]])
    scaled = (rollout["obs"].astype("f8") - rollout["obs_mean"]) * rollout["obs_scale"]
    obs = np.clip(scaled, -10, 10).reshape(-1, scaled.shape[-1])
    sequence, step = m["sequence"].astype(int), m["step"].astype(int)
    environments = len(rollout["obs"][0])
    offset = step // environments - m["sequences"][sequence, 0].astype(int)
    assert (step % environments == m["sequences"][sequence, 1]).all()
    padded = np.zeros((offset.max() + 1, len(m["states"]), obs.shape[1]))
    padded[offset, sequence] = obs[step]
    params, values, _ = model([torch.from_numpy(padded)], torch.from_numpy(m["states"]))
    params, values = params[offset, sequence], values[offset, sequence]
    assert_near(params.detach(), m["params"], 1e-5)
    distribution: Any = torch_distribution(task.distribution, params)
    actions = torch.from_numpy(m["actions"])
    if isinstance(distribution, torch.distributions.Categorical):
        log_prob = distribution.log_prob(actions[:, 0])[:, None]
    else:
        log_prob = distribution.base_dist.log_prob(actions)
    return model, {"params": params, "value": values, "log_prob": log_prob, "entropy": distribution.entropy()}


def test_weights_before_and_after_follow_each_other(dumped: tuple[TrainConfig, Path]) -> None:
    _, dump = dumped
    files = [f"000003-minibatch-{e}-{m}.npz" for e in (0, 1) for m in (0, 1)]
    weights = [np.load(dump / name)["weights"] for name in [*files, "000003-rollout.npz"]]
    assert len({array.tobytes() for array in weights}) == 5
    shards = [np.load(dump / name)["shards"].tolist() for name in files]
    assert all(first == 0 < middle < last for first, middle, last in shards)


def test_other_losses_are_refused(tmp_path: Path) -> None:
    train_in(tmp_path / "run", BASE, objective="penalty")
    with pytest.raises(ConfigError, match=r"^--dump needs a run with --device cpu, --objective clip, and no further "):
        verify_run(tmp_path / "run", dump=tmp_path / "dump")
