"""Teachers: what they compute, that a run with one is reproducible and needs no other directory, and its messages."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import published, summary_of
from helpers import KERNELS, assert_refused
from public_helpers import csv_rows, train_in
from rank_processes import directories, finish, start

from shmppo import load_policy
from shmppo.config.flags import parse_start
from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.errors import ConfigError
from shmppo.extensions.teaching.start import TaughtStart
from shmppo.parallel.process_group import SINGLE_PROCESS
from shmppo.policies.evaluation import evaluate
from shmppo.policies.policy import load_trained
from shmppo.runs.launch import resume, train
from shmppo.sampling.actor import Actor
from shmppo.sampling.collector import Collector
from shmppo.storage.checkpoint import NAME, load_selected_checkpoint
from shmppo.storage.checkpoint_file import load_checkpoint
from shmppo.tools.export_policy import export_policy
from shmppo.tools.verify import verify_run
from shmppo.utils.phase_timer import PhaseTimer

CARTPOLE = Path(__file__).parents[2] / "examples" / "trained" / "cartpole"
SPLIT = "shmppo.envs.wrappers:SplitObservation(everything=[None], positions=[0, None, 2])"
BASE = TrainConfig(
    env="CartPole-v1", wrappers=(SPLIT,), separate_critic="all", actor_obs=("positions",), critic_obs=("everything",),
    teacher=str(CARTPOLE), num_envs=4, rollout_steps=32, seq_len=8, minibatches=2, epochs=2, hidden_size=16,
    encoder_sizes=(16,), workers=0, quiet=True, total_steps=4 * 32 * 4,
)  # fmt: skip


def rows_of(run_dir: Path, *columns: str) -> list[list[float]]:
    """Some columns of metrics.csv."""
    return [[float(row[name]) for name in columns] for row in csv_rows(run_dir / "metrics.csv")]


@KERNELS
@pytest.mark.parametrize("hidden", [(), (1, 3)])
def test_the_teacher_acts_as_load_policy_does_over_whole_episodes(
    hidden: tuple[int, ...], kernel: Any, tmp_path: Path
) -> None:
    """Also a teacher that was trained with --hide-obs sees zeros there, whatever the student sees."""
    source = CARTPOLE
    if hidden:
        source = tmp_path / "hidden"
        train(
            TrainConfig(env="CartPole-v1", hide_obs=hidden, workers=0, quiet=True, total_steps=1, run_dir=str(source))
        )
    config = dataclasses.replace(BASE, kernel=kernel, rollout_steps=64, teacher=str(source))
    task = TaughtStart(config, SINGLE_PROCESS, (), None).complete(config, inspect_task(config))
    buffers, learner = published(config, task)
    collector = Collector(config, task, learner.model, buffers, range(4), np.zeros(2, np.int64))
    collector.start()
    policy, states = load_policy(source), np.zeros((4, buffers.carries[0].added["teacher_state"].shape[1]), np.float32)
    trained, seen = load_trained(source), np.zeros((1, 4), np.float32)
    actor = Actor(trained.config, trained.model, trained.task.distribution, [seen], low=0)
    actor.load(trained.obs_mean, trained.obs_scale)
    episodes = 0
    for iteration in range(2):
        collector.collect(iteration, PhaseTimer())
        rollout = buffers.rollout
        for t, n in np.ndindex(64, 4):
            episodes += int(rollout.first[t, n])
            state = np.zeros_like(states[n]) if rollout.first[t, n] else states[n]
            seen[0], actor.states[0] = rollout.obs[0][t, n], state
            seen[0, hidden] = 0
            _, states[n] = policy.act(rollout.obs[0][t, n], state)
            actor.act(None)
            np.testing.assert_array_equal(actor.states[0], states[n])
            np.testing.assert_allclose(rollout.added["teacher_params"][t, n], actor.params[0], rtol=1e-5, atol=1e-5)
            assert kernel == "torch" or np.array_equal(rollout.added["teacher_params"][t, n], actor.params[0])
        after = buffers.carries[(iteration + 1) % 2].added["teacher_state"]
        np.testing.assert_allclose(after, states, rtol=1e-5, atol=1e-5)
    assert episodes > 8
    collector.close()


@pytest.mark.slow(reason="4 s")
def test_a_distilled_student_without_velocities_balances_the_pole(tmp_path: Path) -> None:
    config = TrainConfig(
        env="CartPole-v1", wrappers=(SPLIT,), separate_critic="all", actor_obs=("positions",),
        critic_obs=("everything",), objective="distill", teacher=str(CARTPOLE), workers=2, quiet=True,
        learning_rate=3e-3, total_steps=12 * 2048, run_dir=str(tmp_path / "run"),
    )  # fmt: skip
    train(config)
    rows = rows_of(tmp_path / "run", "teacher_kl", "policy_loss", "policy_coef", "value_loss")
    assert rows[-1][0] < 0.6 * rows[0][0]
    assert {(row[1], row[2]) for row in rows} == {(0.0, 0.0)}
    returns = evaluate(tmp_path / "run", episodes=10).returns
    assert sum(returns) / len(returns) > 200, "a policy without memory reaches about 50"


@pytest.mark.parametrize("objective", ["clip", "penalty"])
def test_the_critic_warm_up_changes_only_the_critic(objective: Any, tmp_path: Path) -> None:
    config = TrainConfig(
        env="Pendulum-v1", separate_critic="all", objective=objective, lr_schedule="kl-adaptive", entropy_coef=0.01,
        critic_warmup_steps=4 * 32 * 2, num_envs=4, rollout_steps=32, seq_len=8, minibatches=2, hidden_size=8,
        encoder_sizes=(8,), workers=0, quiet=True, total_steps=4 * 32 * 3, keep_every=1, run_dir=str(tmp_path),
    )  # fmt: skip
    train(config)
    weights = [load_selected_checkpoint(tmp_path, i)["learner"]["model"] for i in (1, 2, 3)]
    changed = [
        {name for name, tensor in new.items() if not torch.equal(tensor, old[name])}
        for old, new in itertools.pairwise(weights)
    ]
    critic = {name for name in weights[0] if name.startswith(("trunks.1.", "value_head."))}
    assert changed == [critic, weights[0].keys()]
    columns = rows_of(tmp_path, "policy_coef", "entropy_coef", "learning_rate", "penalty_coef")
    rate, penalty = config.learning_rate, float(objective == "penalty")
    assert columns[:2] == [[0.0, 0.0, rate, 0.0]] * 2, "neither the learning rate nor β adapts to a KL of 0"
    assert columns[2][:3] == [1.0, 0.01, rate]
    steps = [load_selected_checkpoint(tmp_path, i)["learner"]["optimizer"]["state"][0]["step"] for i in (1, 2, 3)]
    assert steps == [8, 16, 8], "Adam starts anew"
    assert columns[2][3] == 1.0 or not penalty


@pytest.mark.long
def test_a_run_needs_no_other_directory_and_is_verified_from_its_start(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(CARTPOLE, source)
    straight = train_in(tmp_path / "straight", BASE)["weights_sha256"]
    run_dir, target = tmp_path / "run", tmp_path / "target"
    train_in(run_dir, BASE, teacher=str(source), keep_every=1, stop_at_iteration=2)
    shutil.rmtree(source)
    for flags in (["--init-from", str(run_dir)], ["--config", str(run_dir / "config.json")]):
        assert parse_start(flags)[0].teacher == str(run_dir / "teacher")
    assert resume(run_dir, checkpoint=1, new_run_dir=target)["weights_sha256"] == straight
    assert resume(run_dir, workers=2)["weights_sha256"] == straight
    for name, begin in ((run_dir, 0), (target, 1)):
        assert load_policy(name / "teacher").iteration == load_policy(CARTPOLE).iteration
        assert verify_run(name, from_iteration=2).equal
        assert verify_run(name, from_iteration=begin).equal
    exported = export_policy(run_dir)
    assert str(tmp_path) not in (exported / "config.json").read_text()
    assert parse_start(["--init-from", str(exported)])[0].teacher == str(exported / "teacher")
    shutil.rmtree(run_dir / "teacher")
    assert verify_run(exported).equal
    with pytest.raises(ConfigError, match=r"teacher does not exist"):
        resume(run_dir, total_steps=4 * 32 * 5, anneal_steps=4 * 32 * 5)


@pytest.mark.slow(reason="about 15 s")
def test_each_rank_has_the_teacher(tmp_path: Path) -> None:
    finish(start(tmp_path / "run", "--total-steps", 512, "--teacher", CARTPOLE))
    first, second = (summary_of(path) for path in directories(tmp_path / "run"))
    assert first["weights_sha256"] == second["weights_sha256"]
    for path in directories(tmp_path / "run"):
        assert load_checkpoint(path / "teacher" / NAME)["iteration"] == load_checkpoint(CARTPOLE / NAME)["iteration"]


def test_a_teacher_that_torch_computes_ties_the_bits_to_the_processor(tmp_path: Path) -> None:
    own = {"env": "CartPole-v1", "network": "networks:leaky", "workers": 0, "quiet": True, "total_steps": 1}
    teacher = train(TrainConfig(**own, run_dir=str(tmp_path / "teacher")))
    taught = train(
        dataclasses.replace(BASE, teacher=teacher["run_dir"], run_dir=str(tmp_path / "run")), trust=("networks",)
    )
    assert taught["same_bits_on"] == teacher["same_bits_on"]
    assert taught["same_bits_on"] != train_in(tmp_path / "own", BASE)["same_bits_on"]


ONLY_POSITIONS = "shmppo.envs.wrappers:SplitObservation(positions=[0, None, 2])"
TWICE = "shmppo.envs.wrappers:SplitObservation(one=[None], other=[None], positions=[0, None, 2])"
PLAIN: dict[str, Any] = {"wrappers": (), "actor_obs": None, "critic_obs": None}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "none": ({"teacher": "nowhere"}, r"^\S+nowhere does not exist; name the directory of a run$"),
    "actions": (PLAIN | {"env": "Pendulum-v1"},
     r"^--teacher \S+cartpole has other actions than this run; choose one with the same action space, --action-mask"),
    "masks": (PLAIN | {"env": "space_environments:Masked-v0", "env_kwargs": {"sizes": [2]}, "action_masks": True},
     r"cartpole has other actions than this run; choose one with the same action space, --action-mask"),
    "missing": (
        {"wrappers": (ONLY_POSITIONS,), "critic_obs": None},
        r"^--teacher \S+cartpole sees obs with shape \(4,\) and type float32, but the observation of this run has no "
        r"such part, or several; use an environment or a wrapper with one$",
    ),
    "several": ({"wrappers": (TWICE,), "critic_obs": ("one",)}, "has no such part, or several"),
    "hidden": (PLAIN | {"hide_obs": (1, 3)},
     r"^--hide-obs hides \[1, 3\] from --teacher \S+cartpole, which needs them; use --actor-obs with "
     "SplitObservation$"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_teacher_that_does_not_fit_is_refused_in_one_sentence(case: str, tmp_path: Path) -> None:
    changes, message = REFUSED[case]
    assert_refused(BASE, changes, message, tmp_path)
