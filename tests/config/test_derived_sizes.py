"""Sizes that a configuration derives from its fields: they do not outlive a change."""

from __future__ import annotations

import dataclasses
import os
import pickle
from functools import cached_property

import pytest

from shmppo.config.train_config import TrainConfig

CONFIG = TrainConfig(
    env="CartPole-v1", num_envs=6, rollout_steps=50, seq_len=8, minibatches=3, grad_shards=2, workers=2
)
DERIVED = [name for name, value in vars(TrainConfig).items() if isinstance(value, cached_property)]


def with_derived_values(config: TrainConfig) -> TrainConfig:
    """The same object, after every derived value has been read."""
    for name in DERIVED:
        getattr(config, name)
    assert len(DERIVED) > 15
    assert set(DERIVED) <= set(vars(config))
    return config


def test_sizes_by_hand() -> None:
    # N·T = 6·50 = 300; sequences of 8 steps: ⌈50 / 8⌉ = 7 per environment
    assert (CONFIG.rank_steps, CONFIG.batch_steps, CONFIG.state_slots) == (300, 300, 7)
    assert (CONFIG.min_sequences, CONFIG.shards) == (42, 2)
    early = dataclasses.replace(CONFIG, preempt_fraction=0.5)
    assert (early.min_steps, early.min_sequences) == (13, 12)
    ranks = dataclasses.replace(CONFIG, ranks=3, rank=2)
    assert (ranks.rank_steps, ranks.batch_steps, ranks.first_env) == (300, 900, 12)
    assert dataclasses.replace(CONFIG, total_steps=301).iterations == 2
    none = dataclasses.replace(CONFIG, core="none")
    assert (none.recurrent, none.sequence_steps, none.state_slots, none.min_sequences) == (False, 1, 50, 300)


def test_default_sizes_by_hand() -> None:
    # 8192 steps / 4 minibatches = 2048: 2048 / 64 = 32 shards, but at most 16, as 2048 / 256 = 8 is less.
    config = TrainConfig(num_envs=64, rollout_steps=128, seq_len=16, minibatches=4)
    assert config.shards == 16
    assert dataclasses.replace(config, kernel="torch").shards == 8
    assert dataclasses.replace(config, kernel="torch", convolutions=True).shards == 16
    assert dataclasses.replace(config, device="cuda", convolutions=True).shards == 1
    assert dataclasses.replace(config, minibatches=1).shards == 32  # one shard per 256 steps
    assert dataclasses.replace(config, minibatches=64).shards == 2  # 128 steps
    # Few and long sequences: 4·2 / 4 minibatches = 2 at most.
    assert TrainConfig(num_envs=4, rollout_steps=4096, seq_len=2048, minibatches=4).shards == 2


def test_a_changed_copy_computes_its_values_again() -> None:
    config = with_derived_values(dataclasses.replace(CONFIG, grad_shards=None))
    changes = {"num_envs": 36, "rollout_steps": 64, "seq_len": 4, "core": "gru", "workers": 1}
    changed = dataclasses.replace(config, **changes)  # type: ignore[arg-type]
    fresh = TrainConfig(**(config.fields() | changes))
    for name in DERIVED:
        assert getattr(changed, name) == getattr(fresh, name), name
    assert (config.rank_steps, changed.rank_steps) == (300, 2304)
    assert (config.num_workers, changed.num_workers) == (2, 1)
    assert (config.inference_rows, changed.inference_rows) == (8, 16)


def test_a_worker_divides_the_work_among_as_many_workers_as_the_learner(request: pytest.FixtureRequest) -> None:
    """Also if it may use fewer cores."""
    cores = os.sched_getaffinity(0)
    request.addfinalizer(lambda: os.sched_setaffinity(0, cores))
    config = TrainConfig(num_envs=1024, workers=None)
    assert config.num_workers == len(cores)
    os.sched_setaffinity(0, [min(cores)])
    assert TrainConfig(num_envs=1024, workers=None).num_workers == 1
    assert pickle.loads(pickle.dumps(config)).num_workers == len(cores)
