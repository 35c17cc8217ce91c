"""Random configurations: each trains one iteration, or is refused in one sentence before anything starts."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError, EnvError, TrainingError
from shmppo.runs.launch import train

SIZE = st.integers(-1, 40)
NUMBER = st.floats(allow_nan=True, allow_infinity=True) | st.floats(0, 1)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "env": st.sampled_from(
        ["CartPole-v1", "Pendulum-v1", "environments:Counter-v0", "FrozenLake-v1", "Nothing-v0", "Blackjack-v1"]
    ),
    "hide_obs": st.none() | st.lists(st.integers(-1, 4), max_size=3).map(tuple),
    "num_envs": st.integers(-1, 12),
    "seed": st.integers(-1, 2**64),
    "total_steps": st.integers(-1, 300),
    "core": st.sampled_from(["lstm", "gru", "lmu", "lru", "gtrxl", "none"]),
    "hidden_size": SIZE,
    "attention_window": SIZE,
    "num_layers": st.integers(0, 3),
    "encoder_sizes": st.lists(SIZE, max_size=2).map(tuple),
    "separate_critic": st.sampled_from(["none", "core", "all"]),
    "log_std_init": NUMBER,
    "rollout_steps": st.integers(-1, 64),
    "seq_len": st.integers(0, 80),
    "epochs": st.integers(0, 3),
    "minibatches": st.integers(0, 40),
    "learning_rate": NUMBER,
    "adam_eps": NUMBER,
    "gamma": NUMBER,
    "gae_lambda": NUMBER,
    "clip": NUMBER,
    "value_clip": st.booleans(),
    "entropy_coef": NUMBER,
    "auxiliary": st.sampled_from([None, "networks:Predict"]),
    "value_coef": NUMBER,
    "max_grad_norm": NUMBER,
    "target_kl": st.none() | NUMBER,
    "objective": st.sampled_from(["clip", "penalty"]),
    "ratio": st.sampled_from(["joint", "per-dimension"]),
    "desired_kl": NUMBER,
    "lr_schedule": st.sampled_from(["linear", "constant", "kl-adaptive"]),
    "optimizer": st.sampled_from(["adam", "sgd"]),
    "log_std_min": st.none() | NUMBER,
    "clip_reward": st.none() | NUMBER,
    "autocast": st.sampled_from(["none", "bf16"]),
    "advantage_norm": st.sampled_from(["minibatch", "global", "none"]),
    "normalize_obs": st.booleans(),
    "normalize_reward": st.booleans(),
    "grad_shards": st.none() | st.integers(0, 5),
    "stop_at_iteration": st.none() | st.integers(0, 3),
    "wrappers": st.sampled_from(
        [(), ("TimeLimit(max_episode_steps=9)",), ("FlattenObservation",), ("Nothing",), ("TimeLimit(",)]
    ),
    "skip_bad_episodes": st.booleans(),
    "encoder": st.sampled_from(["auto", "mlp", "nature", "a3c", "impala"]),
    "action_masks": st.booleans(),
    "squash_actions": st.booleans(),
    "distribution": st.sampled_from(["gaussian", "beta"]),
    "std": st.sampled_from(["parameter", "state"]),
    "truncation_is_termination": st.booleans(),
    "anneal_entropy": st.booleans(),
    "kl_profile_every": st.none() | st.integers(0, 3),
    "kernel": st.sampled_from(["auto", "native", "torch"]),
}
# A few fields at a time, and always the kernel. With all of them, nearly every configuration would be refused.
SEVERAL = st.lists(st.sampled_from(sorted(FIELDS)), max_size=5, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: FIELDS[name] for name in {*names, "kernel"}})
)


def outcome(fields: dict[str, Any]) -> str:
    """Train one iteration: "trained", "refused", or "ended", or a description of an outcome that is wrong."""
    base: dict[str, Any] = {"num_envs": 4, "rollout_steps": 16, "minibatches": 2, "hidden_size": 8, "workers": 0}
    base["total_steps"] = 200
    with tempfile.TemporaryDirectory() as directory:
        run_dir = Path(directory) / "run"
        try:
            config = TrainConfig(**base | {"stop_at_iteration": 1} | fields, quiet=True, run_dir=str(run_dir))
            summary = train(config)
        except ConfigError as error:
            return "refused" if "\n" not in str(error) and not run_dir.exists() else f"refused badly: {error}"
        except (EnvError, TrainingError) as error:
            # Large values, for example a learning rate of 1e20, may end a run by numbers that are not finite.
            known = ("not finite", "log ratio")
            return "ended" if any(words in str(error) for words in known) else f"ended badly: {error}"
        assert summary["iterations"] >= 1
        assert math.isfinite(summary["steps_per_second"])
        return "trained"


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(SEVERAL)
def test_a_random_configuration_trains_or_is_refused(fields: dict[str, Any]) -> None:
    assert outcome(fields) in ("trained", "refused", "ended")


@pytest.mark.slow(reason="about 10 min")
@pytest.mark.timeout(3600)
@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
@given(SEVERAL)
def test_a_thousand_random_configurations(fields: dict[str, Any]) -> None:
    assert outcome(fields) in ("trained", "refused", "ended")
