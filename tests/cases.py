"""The table of cases that no disturbance may change, and runs that tests share.

A row of `CASES` is a configuration. `test_reference_hashes.py` records the weights of the rows in its own part of the
table; `system/test_disturbances.py` repeats all rows with other workers, killed workers, and stops.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from conftest import worker_processes
from helpers import clone_of_recording
from public_helpers import csv_rows, shared_run, summary_of
from test_reference_hashes import BY_TORCH, SMALL
from test_reference_hashes import CASES as RECORDED

from shmppo.config.train_config import TrainConfig
from shmppo.loggers.metrics import TIMED_COLUMNS
from shmppo.runs.launch import resume, train

KNOWN_SIZES: dict[str, Any] = {
    "env": "CartPole-v1", "num_envs": 12, "rollout_steps": 16, "minibatches": 1, "separate_critic": "all",
    "hidden_size": 64, "encoder_sizes": (64,),
}  # fmt: skip
"""Other numbers of workers once gave other bits for these sizes."""
SHAPED: dict[str, Any] = {"env": "space_environments:Shaped", "env_kwargs": {"space": "dict"}, "prev_action": True}
UNRECORDED: dict[str, dict[str, Any]] = {
    "torch": {"env": "Pendulum-v1", "hide_obs": (2,), "core": "gru", "num_layers": 2, "kernel": "torch"},
    "own-encoder": SHAPED | {"encoder": "networks:look_at_image", "separate_critic": "core", "num_envs": 12},
    "bf16": {"env": "HalfCheetah-v5", "autocast": "bf16", "kl_profile_every": 2},
    "sizes": KNOWN_SIZES,
    "few-sequences": {
        "env": "Pendulum-v1", "rollout_steps": 40, "num_envs": 16, "minibatches": 4, "grad_shards": 8, "hidden_size": 8,
        "auxiliary": "networks:Predict",
    },
    "auxiliary": {"env": "CartPole-v1", "hide_obs": (1, 3), "auxiliary": "networks:Projected"},
    "auxiliary-with-masks": {
        "env": "space_environments:Masked-v0", "env_kwargs": {"sizes": [3, 4]}, "action_masks": True, "kernel": "torch",
        "separate_critic": "all", "prev_action": True, "auxiliary": "networks:Predict", "rollout_steps": 16,
    },
    "joint-actions": {
        "env": "space_environments:Echo-v0", "env_kwargs": {"actions": "nested"}, "distribution": "beta",
        "ratio": "per-dimension",
    },
    "device": {
        "env": "Pendulum-v1", "hide_obs": (2,), "device": "cpu:0", "grad_shards": None, "squash_actions": True,
        "entropy_coef": 0.01, "auxiliary": "networks:Predict",
    },
    "acting-on-device": SHAPED | {
        "device": "cpu:0", "act_on": "device", "grad_shards": None, "rollout_steps": 20,
    },
    "clone": {"env": "CartPole-v1"},
    "snapshots": {"env": "environments:PutsBack-v0"},
    "global-generators": {"env": "environments:Draws", "eval_every": 2, "eval_episodes": 3},
    "late-global-generators": {"env": "environments:Draws", "env_kwargs": {"where": "step", "late": 18}},
    "vector": {"env": "vector_environments:Walk", "env_backend": "vector", "env_kwargs": {"space": "dict"}},
    "vector-that-resets-itself": {"env": "vector_environments:NextStep", "env_backend": "vector"},
    "failed-episodes": {"env": "faulty_environments:FailsSometimes-raise-v0", "skip_bad_episodes": True},
    "evaluations": {
        "env": "environments:Reach", "env_kwargs": {"rare": 0.05}, "eval_every": 2, "eval_episodes": 7,
        "info_keys": ("reward/distance:sum", "reward/control:mean", "far:max", "nothing"),
    },
    "evaluations-of-mujoco": {
        "env": "Hopper-v5", "eval_every": 2, "eval_episodes": 9, "info_keys": ("x_velocity:mean",),
    },
    "decisions": {
        "env": "schedules:Scored", "env_schedule": "schedules:by_success", "learning_rate": 0.01, "eval_every": 2,
        "eval_episodes": 5, "best_by": "eval/info/is_success",
    },
    "pettingzoo": {
        "env": "mpe2.simple_spread_v3:parallel_env", "num_envs": 4, "critic_state": True, "separate_critic": "all",
    },
}  # fmt: skip
"""Cases that need no recorded hash: another test compares their numbers with a reference, or torch computes them."""
CASES = RECORDED | UNRECORDED
SEEDED_ONCE = "vector-that-resets-itself"
"""Its environments cannot be restored, so only the number of workers may vary."""
LAST = 4
"""Iteration in which disturbed runs end."""


@dataclasses.dataclass(frozen=True)
class Disturbance:
    """What differs from the undisturbed run, which has two workers.

    Attributes:
        workers: number of workers.
        changes: other options that must not matter.
        killed: iteration after which a worker is killed. None: no worker is.
        stop: iteration after which the run is stopped. None: it is not.
        resumed_workers: number of workers after the stop.
    """

    workers: int
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    killed: int | None = None
    stop: int | None = None
    resumed_workers: int = 0


DISTURBANCES = {
    "no worker": Disturbance(0),
    "one worker": Disturbance(1),
    "four workers": Disturbance(4),
    "central learning": Disturbance(2, {"learning": "central"}),
    "sharded learning": Disturbance(3, {"learning": "sharded"}),
    "a killed worker": Disturbance(2, killed=2),
    "a stop": Disturbance(1, stop=3, resumed_workers=3),
    "a stop without workers": Disturbance(0, stop=2, resumed_workers=0),
    "several": Disturbance(3, {"learning": "sharded"}, killed=2, stop=3, resumed_workers=1),
    "all of them": Disturbance(1, {"learning": "sharded"}, killed=1, stop=2, resumed_workers=0),
}


def configuration(case: str, run_dir: Path, **changes: Any) -> TrainConfig:
    """The configuration of a case, whose packages must be installed."""
    fields = SMALL | CASES[case]
    if "." in fields["env"]:
        pytest.importorskip(fields["env"].partition(".")[0])
    config = TrainConfig(**fields, run_dir=str(run_dir))
    if case == "clone":
        run_dir.parent.mkdir(parents=True, exist_ok=True)
        config = clone_of_recording(config, run_dir.parent / "episodes.npz")
    if config.device != "cpu":  # its update is not divided
        changes.pop("learning", None)
    return dataclasses.replace(config, **changes)


def undisturbed(case: str, root: Path) -> Path:
    """The directory of the run of a case with two workers, which all tests share."""
    last = {} if case in RECORDED and case not in BY_TORCH else {"stop_at_iteration": LAST}
    return shared_run(root, case, lambda run_dir: configuration(case, run_dir, **last))


def disturb(case: str, how: Disturbance, run_dir: Path, parent: Path | None = None, **branched: Any) -> dict[str, Any]:
    """Train a case up to iteration LAST with a disturbance, and return the summary.

    With `parent`, the run is a branch of that run, and `branched` the options that it changes.
    """

    def callback(row: dict[str, float]) -> None:
        if row["iteration"] == how.killed:
            worker_processes()[0].kill()

    changes = {"workers": how.workers, "stop_at_iteration": how.stop or LAST, **how.changes}
    config = configuration(case, run_dir, **changes)
    if parent is None:
        summary = train(config, callback=callback)
    else:
        summary = resume(parent, new_run_dir=run_dir, callback=callback, **changes, **branched)
    assert summary["worker_restarts"] == (how.killed is not None)
    if how.stop is None:
        return summary
    trust = [config.env.partition(":")[0]]
    return resume(run_dir, workers=how.resumed_workers, learning="auto", stop_at_iteration=LAST, trust=trust)


def numbers_of(run_dir: Path, table: str = "metrics.csv") -> list[dict[str, str]]:
    """The rows of a table, without what depends on the clock."""
    return [
        {name: value for name, value in row.items() if name not in TIMED_COLUMNS} for row in csv_rows(run_dir / table)
    ]


def assert_same_numbers(found: Path, expected: Path) -> None:
    """Assert that a disturbed run has the numbers of the undisturbed one up to LAST, also those of its episodes.

    Also the value of the best checkpoint, if the undisturbed run ends there.
    """
    rows = numbers_of(found)
    assert [row["iteration"] for row in rows] == [str(iteration) for iteration in range(1, LAST + 1)]
    for row, other in zip(rows, numbers_of(expected), strict=False):
        different = {name: (value, other.get(name)) for name, value in row.items() if value != other.get(name)}
        assert not different, (row["iteration"], different)
        assert row.keys() == other.keys()
    if summary_of(expected)["iterations"] == LAST:
        assert summary_of(found)["best_value"] == summary_of(expected)["best_value"]
    episodes = numbers_of(expected, "episodes.csv")
    assert numbers_of(found, "episodes.csv") == [row for row in episodes if int(row["iteration"]) <= LAST]
    if (expected / "eval.csv").exists():
        evaluated = {row["iteration"]: row for row in numbers_of(found, "eval.csv")}
        due = [row for row in numbers_of(expected, "eval.csv") if int(row["iteration"]) <= LAST]
        assert due
        assert [evaluated[row["iteration"]] for row in due] == due
