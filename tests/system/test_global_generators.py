"""Environments that draw from `np.random`, `random`, and torch get generators of their own.

`tests/cases.py` has runs of such environments with other workers, killed workers, and stops.
"""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from public_helpers import train_in

from shmppo import TrainConfig, load_policy
from shmppo.errors import EnvError
from shmppo.policies.evaluation import evaluate
from shmppo.utils.global_generators import NAMES, OwnGenerators, kept_generators

BASE = TrainConfig(
    env="environments:Draws", num_envs=4, rollout_steps=24, minibatches=2, epochs=1, hidden_size=8, encoder_sizes=(8,),
    workers=0, quiet=True, total_steps=4 * 24 * 2, seq_len=8, check_determinism=0,
)  # fmt: skip


def numbers() -> list[float]:
    """The next numbers of all global generators, also of the normal one that NumPy draws in advance."""
    return [np.random.normal(), np.random.normal(), random.random(), random.gauss(0, 1), torch.rand(1).item()]  # noqa: NPY002


def seed_all() -> None:
    np.random.seed(3)  # noqa: NPY002
    np.random.normal()  # noqa: NPY002
    random.seed(3)
    torch.manual_seed(3)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.long
def test_each_environment_and_episode_and_seed_has_other_numbers(workers: int, tmp_path: Path) -> None:
    drawn: list[list[str]] = []
    for seed in (1, 2):
        log = tmp_path / f"log-{seed}"
        log.touch()
        kwargs: dict[str, Any] = {"env_kwargs": {"log": str(log)}, "seed": seed, "workers": workers}
        summary = train_in(tmp_path / str(seed), BASE, **kwargs)
        assert summary["inexact_reasons"] == []
        lines = [line.split() for line in log.read_text().splitlines()][3:]  # without the checks before the run
        drawn += [words[1:] for words in lines]
        assert len({tuple(words[1:4]) for words in lines}) == 4, "each environment draws in its constructor"
    resets = [number for words in drawn for number in words[3:]]
    assert len(set(resets)) == len(resets) >= 2 * 4 * 2 * 3


def test_the_check_of_the_environment_passes(tmp_path: Path) -> None:
    summary = train_in(tmp_path / "run", BASE, check_determinism=100, total_steps=4 * 24 * 40)
    assert (summary["inexact_reasons"], summary["environment_check"] == "failed") == ([], False)


@pytest.mark.parametrize("env", ["Draws", "DrawsNested"])  # `close` of the second one draws, too
def test_the_generators_of_the_caller_are_as_before(env: str, tmp_path: Path) -> None:
    seed_all()
    expected = numbers()
    seed_all()
    train_in(tmp_path / "run", BASE, env=f"environments:{env}")
    assert numbers() == expected
    seed_all()
    evaluate(tmp_path / "run", episodes=2, trust=("environments",))
    load_policy(tmp_path / "run", trust=("environments",))
    assert numbers() == expected
    seed_all()
    with pytest.raises(EnvError):
        train_in(tmp_path / "raises", BASE, env="environments:DrawsAndRaises")
    assert numbers() == expected


@pytest.mark.parametrize("seed", [2, 3, 4])
def test_own_numbers_may_lead_to_another_generator(seed: int, tmp_path: Path) -> None:
    hashes = set()
    for workers in (0, 3):
        config = dataclasses.replace(BASE, env="environments:DrawsNested", seed=seed, workers=workers)
        config = dataclasses.replace(config, rollout_steps=16, total_steps=4 * 16 * 6)
        summary = train_in(tmp_path / str(workers), config)
        assert summary["inexact_reasons"] == []
        hashes.add(summary["weights_sha256"])
    assert len(hashes) == 1


def test_a_failure_is_that_of_a_run_that_knows_the_generators_from_its_start(tmp_path: Path) -> None:
    failures = set()
    for early in (False, True):
        kwargs: dict[str, Any] = {"then": "raise", "rare": 0.15, "early": early}
        config = dataclasses.replace(BASE, env="environments:DrawsNested", seed=8, env_kwargs=kwargs)
        with pytest.raises(EnvError) as raised:
            train_in(tmp_path / str(early), config, total_steps=4 * 24 * 3)
        failures.add(raised.value.message)
    assert len(failures) == 1


def test_an_evaluation_may_be_the_first_that_draws(tmp_path: Path) -> None:
    train_in(tmp_path / "run", BASE, env_kwargs={"where": ""})
    kwargs: dict[str, Any] = {"env_kwargs": {"where": "step", "late": 10}, "trust": ("environments",)}
    returns = [evaluate(tmp_path / "run", episodes=n, **kwargs).returns for n in (1, 3)]
    assert returns[0] == returns[1][:1]


def test_a_vector_environment_that_draws_is_not_exact(tmp_path: Path) -> None:
    reasons = train_in(tmp_path / "run", BASE, env="vector_environments:Draws", env_backend="vector")["inexact_reasons"]
    assert len(reasons) == 1
    assert reasons[0].endswith("draws from np.random, which its environments share or its snapshots lack")


def test_several_agents_share_the_generators_of_their_environment(tmp_path: Path) -> None:
    hashes = set()
    for workers in (0, 2):
        summary = train_in(tmp_path / str(workers), BASE, env="agent_environments:Drawing", workers=workers)
        assert summary["inexact_reasons"] == []
        hashes.add(summary["weights_sha256"])
    assert len(hashes) == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_draw_is_noticed(name: str) -> None:
    draw = {"np.random": np.random.random, "random": random.random, "torch": lambda: torch.rand(1)}[name]
    with kept_generators() as drawn:
        pass
    assert drawn == set()
    with kept_generators() as drawn:
        draw()
    assert drawn == {name}
    own = OwnGenerators((name,))
    own.seed((1,))
    with kept_generators() as drawn, own:
        draw()
    assert drawn == set()
