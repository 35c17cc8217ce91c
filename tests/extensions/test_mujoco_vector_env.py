"""The MuJoCo tasks stepped together give the same bits as Gymnasium's own environments."""

from __future__ import annotations

import dataclasses
import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
import pytest
import torch
from gymnasium.wrappers import TimeLimit
from public_helpers import python

from shmppo.config.train_config import TrainConfig
from shmppo.envs.factory import make_environment
from shmppo.envs.inspection import inspect_task
from shmppo.envs.spec import EnvSpec
from shmppo.envs.sync_vector_env import SyncVectorEnv
from shmppo.errors import ConfigError
from shmppo.extensions.mujoco.tasks import reported, time_limit
from shmppo.extensions.mujoco.vector_env import MujocoVectorEnv
from shmppo.models.actor_critic import ActorCritic
from shmppo.sampling.evaluation import EpisodePlayer

RUNNER = {"forward_reward_weight": 2.5, "ctrl_cost_weight": 0.3, "reset_noise_scale": 0.05, "frame_skip": 3}
HEALTHY = {"healthy_reward": 0.7, "healthy_z_range": [0.5, 1.5]}
HUMANOID = {"ctrl_cost_weight": 0.3, "reset_noise_scale": 0.02, "frame_skip": 4}
WITHOUT_PARTS = {f"include_{part}_in_observation": False for part in ("cinert", "cvel", "qfrc_actuator", "cfrc_ext")}
NO_TERMINATION = {"terminate_when_unhealthy": False, "exclude_current_positions_from_observation": False}
CASES: dict[str, list[dict[str, Any]]] = {
    "Ant-v5": [{}, {**RUNNER, **HEALTHY, "contact_cost_weight": 0.01, "contact_force_range": [-0.5, 2.0],
     "main_body": 2}, {**NO_TERMINATION, "include_cfrc_ext_in_observation": False, "main_body": "torso"}],
    "HalfCheetah-v5": [{}, {**RUNNER, "exclude_current_positions_from_observation": False}],
    "Hopper-v5": [{}, {**RUNNER, **HEALTHY, "healthy_state_range": [-5.0, 5.0], "healthy_angle_range": [-0.5, 0.5]},
     NO_TERMINATION],
    "Humanoid-v5": [{}, {**HUMANOID, **HEALTHY, "forward_reward_weight": 2, "contact_cost_weight": 1e-5,
     "contact_cost_range": [0, 1]}, {**WITHOUT_PARTS, **NO_TERMINATION}],
    "HumanoidStandup-v5": [{}, {**HUMANOID, "uph_cost_weight": 2, "impact_cost_weight": 1e-5, "impact_cost_range": [0,
     1]}, {**WITHOUT_PARTS, "exclude_current_positions_from_observation": False}],
    "InvertedDoublePendulum-v5": [{}, {"healthy_reward": 3.0, "reset_noise_scale": 0.05, "frame_skip": 2}],
    "InvertedPendulum-v5": [{}, {"reset_noise_scale": 0.1, "frame_skip": 3}],
    "Pusher-v5": [{}, {"reward_near_weight": 0.2, "reward_dist_weight": 2.0, "reward_control_weight": 0.5,
     "frame_skip": 3}],
    "Reacher-v5": [{}, {"reward_dist_weight": 2.0, "reward_control_weight": 0.5, "frame_skip": 3}],
    "Swimmer-v5": [{}, {**RUNNER, "exclude_current_positions_from_observation": False}],
    "Walker2d-v5": [{}, {**RUNNER, **HEALTHY, "healthy_angle_range": [-0.5, 0.5]}, NO_TERMINATION],
}  # fmt: skip
"""Arguments by task. Together, the cases give every argument that affects the results another value."""


def restored(envs: MujocoVectorEnv, task: EnvSpec, i: int) -> None:
    """Create environment i again, and restore it from a snapshot of itself."""
    assert task.snapshot is not None
    snapshot = np.zeros(task.snapshot.bytes, np.uint8)
    envs.handles[i].save_snapshot(snapshot)
    carried = envs.lengths[i], envs.returns[i], envs.hashes[i], envs.obs[0][i].copy(), envs.info.combined[i].copy()
    envs._remake(i)
    envs.reset_env(i, envs.handles[i].episode)
    envs.handles[i].restore_snapshot(snapshot)
    envs.lengths[i], envs.returns[i], envs.hashes[i], envs.obs[0][i], envs.info.combined[i] = carried


def keys_of(config: TrainConfig) -> Iterator[str]:
    """Values of --info-keys for all numbers that the task reports."""
    made = make_environment(config)
    for name, how in zip(reported(made), itertools.cycle(("last", "sum", "mean", "max")), strict=False):
        yield f"{name}:{how}"
    made.close()


def compare(env: str, arguments: dict[str, Any], steps: int, *, num_envs: int = 3) -> int:
    """Step both vector environments with the same actions. Return the number of episodes that ended."""
    limit = ("TimeLimit(max_episode_steps=40)",)
    config = TrainConfig(
        minibatches=1, env=env, env_kwargs=arguments, num_envs=num_envs, workers=0, wrappers=limit, env_backend="mujoco"
    )
    config = dataclasses.replace(config, info_keys=tuple(keys_of(config)))
    task = inspect_task(config)
    reference, native = SyncVectorEnv(config, task, 0, num_envs), MujocoVectorEnv(config, task, 0, num_envs)
    rng = np.random.default_rng(1)
    outcomes = [(np.zeros(num_envs), np.zeros(num_envs, bool), np.zeros(num_envs, bool)) for _ in range(2)]
    ended = 0
    try:
        for envs in (reference, native):
            envs.reset_all(0)
        for step in range(steps):
            scale = rng.choice([0.3, 1.0, 3.0])
            sampled = scale * rng.standard_normal((num_envs, task.distribution.action_size))
            actions = task.distribution.to_env(sampled.astype(np.float32))
            ends = [envs.step(actions, *arrays) for envs, arrays in zip((reference, native), outcomes, strict=True)]
            for expected, found in zip(*outcomes, strict=True):
                assert np.array_equal(expected, found), step
            assert np.array_equal(reference.obs[0], native.obs[0]), step
            assert reference.hashes == native.hashes  # of the rewards and observations in double precision
            assert np.array_equal(reference.returns, native.returns)
            assert np.array_equal(reference.lengths, native.lengths)
            for expected_end, end in zip(*ends, strict=True):
                assert np.array_equal(expected_end.final[0], end.final[0])
                assert expected_end._replace(final=()) == end._replace(final=())
                assert len(end.info) == len(config.info_keys)
            ended += len(ends[0])
            if step % 30 == 20:
                restored(native, task, step // 30 % num_envs)
    finally:
        reference.close()
        native.close()
    return ended


ALL_CASES = [pytest.param(env, case, id=f"{env}-{k}") for env, cases in CASES.items() for k, case in enumerate(cases)]


@pytest.mark.parametrize(("env", "arguments"), ALL_CASES)
def test_results_are_those_of_gymnasium(env: str, arguments: dict[str, Any]) -> None:
    assert compare(env, arguments, 45) >= 3


def test_a_model_and_a_time_limit_of_the_user_give_the_results_of_gymnasium(tmp_path: Path) -> None:
    text = (Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets" / "half_cheetah.xml").read_text()
    assert "0 0 -9.81" in text
    (tmp_path / "own.xml").write_text(text.replace("0 0 -9.81", "0 0 -3.7"))
    arguments = {"xml_file": str(tmp_path / "own.xml"), "max_episode_steps": 15}
    assert compare("HalfCheetah-v5", arguments, 45) == 9


@pytest.mark.slow(reason="about 1 min per case")
@pytest.mark.parametrize(("env", "arguments"), ALL_CASES)
def test_results_are_those_of_gymnasium_for_20000_steps(env: str, arguments: dict[str, Any]) -> None:
    assert compare(env, arguments, 20_000, num_envs=1) >= 500


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"env": "CartPole-v1"}, "it is not a MuJoCo task"),
        ({"wrappers": ("FlattenObservation",)}, "it has the wrapper FlattenObservation"),
        ({"prev_action": True}, "it has the wrapper PreviousStepWrapper"),
        ({"info_keys": ("reward_ctrl", "x_position:max")}, "--info-keys names x_position"),
    ],
)
def test_other_environments_use_gymnasium(change: dict[str, Any], reason: str) -> None:
    config = dataclasses.replace(TrainConfig(env="HalfCheetah-v5"), **change)
    assert inspect_task(config).backend == "gymnasium"
    with pytest.raises(ConfigError, match=reason):
        inspect_task(dataclasses.replace(config, env_backend="mujoco"))


def test_episodes_of_an_evaluation_are_those_of_gymnasium() -> None:
    """Also of environments that rest after their episode while others still play."""
    results = []
    for backend in ("gymnasium", "mujoco"):
        config = TrainConfig(env="Hopper-v5", env_backend=backend, workers=0, info_keys=("x_velocity:mean",), seed=3)
        task = inspect_task(config)
        torch.manual_seed(0)
        model = ActorCritic(config, task.observation, task.distribution)
        size = task.observation.normalized_size
        player = EpisodePlayer(config, task, model, stochastic=True)
        results.append(player.play(range(13), np.zeros(size), np.ones(size), None))
        player.close()
    assert results[0] == results[1]
    assert len({result.length for result in results[0]}) > 3


def test_a_failed_simulation_names_its_environment(request: pytest.FixtureRequest) -> None:
    config = TrainConfig(env="HalfCheetah-v5", num_envs=3, workers=0, skip_bad_episodes=True)
    task = inspect_task(config)
    envs = MujocoVectorEnv(config, task, 0, 3)
    envs.reset_all(0)
    envs._sim.data[1].qvel[0] = np.nan  # MuJoCo resets a simulation with invalid numbers, so the reward is checked
    envs._sim._rows[1] = np.nan
    flags = np.zeros((2, 3), bool)
    rewards = np.zeros(3)
    (end,) = envs.step([np.zeros(6, np.float32)] * 3, rewards, *flags)
    assert (end.i, end.failed) == (1, True)
    assert (rewards[1], flags[:, 1].tolist()) == (0.0, [False, True])
    assert [handle.episode for handle in envs.handles] == [0, 1, 0]
    assert envs._sim.data[1].time == 0
    assert envs.step([np.zeros(6, np.float32)] * 3, rewards, *flags) == []
    assert envs._sim.data[1].time > 0, "the new simulation is stepped"

    calls = itertools.count()

    def fail(model: mujoco.MjModel, data: mujoco.MjData) -> None:
        if next(calls) == 2:  # the last simulation; then environments are made
            mujoco.set_mjcb_control(None)
        raise mujoco.FatalError("broken")

    request.addfinalizer(lambda: mujoco.set_mjcb_control(None))
    mujoco.set_mjcb_control(fail)
    assert [end.i for end in envs.step([np.zeros(6, np.float32)] * 3, rewards, *flags)] == [0, 1, 2]
    envs.close()


def test_a_limit_that_was_changed_after_the_creation_counts() -> None:
    env = gymnasium.make("Hopper-v5", disable_env_checker=True)
    assert env.spec.max_episode_steps == 1000  # Gymnasium stores this answer
    env._max_episode_steps = 20
    assert time_limit(env) == 20
    assert time_limit(TimeLimit(env, 9)) == 9
    assert time_limit(env.unwrapped) == 0


def changed_hopper() -> gymnasium.Env:
    """Hopper whose attributes differ from the arguments with which it was made."""
    env = gymnasium.make("Hopper-v5", disable_env_checker=True)
    env.unwrapped._healthy_reward, env.unwrapped._healthy_z_range, env.unwrapped.frame_skip = 0.25, (0.9, 2.0), 3
    return env


def test_attributes_that_a_factory_has_changed_count() -> None:
    assert compare("test_mujoco_vector_env:changed_hopper", {}, 60)


@pytest.mark.long
@pytest.mark.parametrize("workers", [0, 2])
def test_warnings_of_mujoco_go_to_the_log(workers: int, tmp_path: Path) -> None:
    """Its compiler warns about the model of HalfCheetah. By default, MuJoCo prints it and writes a file."""
    flags = "--env HalfCheetah-v5 --env-backend gymnasium --num-envs 2 --rollout-steps 32 --minibatches 2 --seq-len 8"
    flags += " --hidden-size 8 --quiet"
    flags += f" --stop-at-iteration 1 --check-determinism 0 --run-dir run --workers {workers}"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = python("-m", "shmppo.train", *flags.split(), cwd=tmp_path, env=environment)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    log = (tmp_path / "run" / "run.log").read_text()
    assert log.count("is deprecated") == 1, "each environment is compiled"
    assert not (tmp_path / "MUJOCO_LOG.TXT").exists()
