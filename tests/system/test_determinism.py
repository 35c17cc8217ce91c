"""The determinism guarantee: configuration and seed decide every bit of the weights; the number of workers does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import summary_of
from helpers import KERNELS, long_after

from shmppo.config.train_config import TrainConfig
from shmppo.ppo.gradients import ShardGradients
from shmppo.runs.trainer import train
from shmppo.sampling.collector import Collector
from shmppo.utils.phase_timer import PhaseTimer
from shmppo.utils.torch_utils import torch_threads

SMALL = {"num_envs": 8, "rollout_steps": 32, "minibatches": 2, "epochs": 2, "quiet": True, "stop_at_iteration": 10}
CARTPOLE = Path(__file__).parents[2] / "examples" / "trained" / "cartpole"
CASES = {
    "cartpole-lstm": TrainConfig(env="CartPole-v1", hidden_size=32, **SMALL),  # type: ignore[arg-type]
    "pendulum-gru-2": TrainConfig(
        env="Pendulum-v1", hide_obs=(2,), core="gru", num_layers=2, hidden_size=24, num_envs=6, kernel="torch",
        **{k: v for k, v in SMALL.items() if k != "num_envs"},
    ),  # type: ignore[arg-type]
    "cartpole-teacher": TrainConfig(
        env="CartPole-v1", wrappers=("shmppo.envs.wrappers:SplitObservation(all=[None], positions=[0, None, 2])",),
        separate_critic="all", actor_obs=("positions",), critic_obs=("all",), teacher=str(CARTPOLE),
        teacher_steps=8 * 32 * 7, critic_warmup_steps=8 * 32 * 3, hidden_size=24, seq_len=12, **SMALL
    ),  # type: ignore[arg-type]
    "cartpole-lru": TrainConfig(
        env="CartPole-v1", hide_obs=(1, 3), core="lru", hidden_size=24, num_layers=2, seq_len=12, **SMALL
    ),  # type: ignore[arg-type]
    "pendulum-core": TrainConfig(
        env="Pendulum-v1", separate_critic="core", core="gru", num_layers=2, hidden_size=24,
        refresh_states=True, **SMALL
    ),  # type: ignore[arg-type]
    "halfcheetah-lmu": TrainConfig(
        env="HalfCheetah-v5", core="lmu", hidden_size=24, num_layers=2, seq_len=12, kernel="torch", **SMALL
    ),  # type: ignore[arg-type]
    "cartpole-gtrxl": TrainConfig(
        env="CartPole-v1", hide_obs=(1, 3), core="gtrxl", hidden_size=24, num_layers=2, attention_window=20, seq_len=12,
        separate_critic="core", **SMALL
    ),  # type: ignore[arg-type]
    "halfcheetah-none": TrainConfig(
        env="HalfCheetah-v5", core="none", encoder_sizes=(64, 64), separate_critic="all", value_clip=True, **SMALL
    ),  # type: ignore[arg-type]
    "cartpole-auxiliary": TrainConfig(
        env="CartPole-v1", hide_obs=(1, 3), hidden_size=24, auxiliary="networks:Predict", **SMALL
    ),  # type: ignore[arg-type]
    "halfcheetah-lstm": TrainConfig(env="HalfCheetah-v5", hidden_size=64, grad_shards=3, seq_len=8, **SMALL),  # type: ignore[arg-type]
}  # fmt: skip


@pytest.mark.parametrize("case", long_after(3, CASES))
def test_the_hash_does_not_depend_on_the_number_of_workers(case: str, tmp_path: Path) -> None:
    hashes = {}
    for workers in (0, 1, 3, 4):
        config = dataclasses.replace(CASES[case], workers=workers, run_dir=str(tmp_path / str(workers)))
        summary = train(config)
        assert summary["iterations"] == 10
        assert summary["exact"]
        written = summary_of(tmp_path / str(workers))
        assert summary == written
        hashes[workers] = summary["weights_sha256"]
    assert len(set(hashes.values())) == 1, hashes


def test_divided_sums_and_optimizer_steps_change_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MIN_DIVIDED_SUM", "MIN_DIVIDED_STEP"):
        monkeypatch.setattr(f"shmppo.sampling.worker_pool.{name}", 0)
    hashes = set()
    for workers in (0, 2, 3, 4):
        config = dataclasses.replace(CASES["halfcheetah-lstm"], workers=workers, learning="auto", grad_shards=4)
        summary = train(dataclasses.replace(config, run_dir=str(tmp_path / str(workers)), stop_at_iteration=5))
        hashes.add(summary["weights_sha256"])
    assert len(hashes) == 1


@KERNELS
@pytest.mark.parametrize("workers", long_after(1, [2, 1, 4]))
def test_central_and_sharded_learning_give_the_same_hash(workers: int, kernel: Any, tmp_path: Path) -> None:
    hashes = set()
    for learning in ("central", "sharded"):
        config = dataclasses.replace(
            CASES["halfcheetah-lstm"],
            kernel=kernel,
            workers=workers,
            learning=learning,  # type: ignore[arg-type]
            stop_at_iteration=5,
            run_dir=str(tmp_path / learning),
        )
        hashes.add(train(config)["weights_sha256"])
    assert len(hashes) == 1


def test_seed_and_configuration_change_the_hash(tmp_path: Path) -> None:
    base = dataclasses.replace(CASES["cartpole-lstm"], workers=0, stop_at_iteration=2)
    variants = {
        "same": base,
        "again": base,
        "seed": dataclasses.replace(base, seed=2),
        "gamma": dataclasses.replace(base, gamma=0.98),
        "shards": dataclasses.replace(base, grad_shards=4),
    }
    hashes = {
        name: train(dataclasses.replace(config, run_dir=str(tmp_path / name)))["weights_sha256"]
        for name, config in variants.items()
    }
    assert hashes["same"] == hashes["again"]
    assert len(set(hashes.values())) == 4


def test_the_steps_of_the_annealing_decide_and_not_where_the_run_stops(tmp_path: Path) -> None:
    base = dataclasses.replace(CASES["cartpole-lstm"], workers=0, total_steps=2560, stop_at_iteration=None)
    short = dataclasses.replace(base, total_steps=1024, anneal_steps=2560, run_dir=str(tmp_path / "short"))
    stopped = dataclasses.replace(base, stop_at_iteration=4, run_dir=str(tmp_path / "stopped"))
    assert train(short)["weights_sha256"] == train(stopped)["weights_sha256"]


def test_acting_and_gradients_use_one_thread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    acting, learning = set(), set()
    collect, compute = Collector.collect, ShardGradients.compute

    def watched_collect(collector: Collector, iteration: int, timer: PhaseTimer) -> None:
        acting.add(torch.get_num_threads())
        collect(collector, iteration, timer)

    def watched_compute(gradients: ShardGradients, epoch: int, minibatch: int, shards: Iterable[int]) -> None:
        learning.add(torch.get_num_threads())
        compute(gradients, epoch, minibatch, shards)

    monkeypatch.setattr(Collector, "collect", watched_collect)
    monkeypatch.setattr(ShardGradients, "compute", watched_compute)
    config = dataclasses.replace(CASES["cartpole-lstm"], kernel="torch", workers=0, stop_at_iteration=1)
    with torch_threads(3):
        train(dataclasses.replace(config, run_dir=str(tmp_path / "run")))
        assert (acting, learning, torch.get_num_threads()) == ({1}, {1}, 3)


@pytest.mark.parametrize("auxiliary", [None, "networks:Predict"])
def test_minibatches_with_fewer_sequences_than_shards_are_possible(auxiliary: str | None, tmp_path: Path) -> None:
    """Sequences have 32 or 8 steps, and minibatches 160. So some minibatches have fewer than 8 sequences."""
    hashes = set()
    for workers in (0, 2):
        config = TrainConfig(
            env="Pendulum-v1", rollout_steps=40, num_envs=16, minibatches=4, grad_shards=8, epochs=2, hidden_size=8,
            encoder_sizes=(8,), workers=workers, quiet=True, stop_at_iteration=3, run_dir=str(tmp_path / str(workers)),
            auxiliary=auxiliary,
        )  # fmt: skip
        hashes.add(train(config)["weights_sha256"])
    assert len(hashes) == 1


def test_an_environment_cannot_switch_denormal_numbers_off(tmp_path: Path) -> None:
    """Gradients of 1e-21 have squares that are denormal numbers, which Adam divides by."""
    fields: dict[str, Any] = {"max_grad_norm": 1e-20, "adam_eps": 1e-30, "hidden_size": 8, "encoder_sizes": (8,)}
    hashes = set()
    for env, workers in (("Counter", 0), ("Flushing", 0), ("Flushing", 2)):
        run_dir = str(tmp_path / f"{env}{workers}")
        config = TrainConfig(env=f"environments:{env}", workers=workers, run_dir=run_dir, **(SMALL | fields))
        hashes.add(train(dataclasses.replace(config, stop_at_iteration=2))["weights_sha256"])
    assert len(hashes) == 1


def test_a_callback_cannot_change_the_threads_of_torch(tmp_path: Path) -> None:
    """The torch kernels may add the terms of a sum in another order with more threads."""

    def callback(_: Any) -> None:
        torch.set_num_threads(2)

    config = TrainConfig(kernel="torch", workers=0, total_steps=4 * 128 * 64, num_envs=64, grad_shards=1, quiet=True)
    hashes = {
        train(dataclasses.replace(config, run_dir=str(tmp_path / str(k))), callback=one)["weights_sha256"]
        for k, one in enumerate((None, callback))
    }
    assert len(hashes) == 1
