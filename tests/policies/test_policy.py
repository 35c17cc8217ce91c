"""A loaded policy acts on one observation or a batch, says how its images are laid out, and refuses other inputs."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from helpers import torch_distribution
from public_helpers import SIX_ITERATIONS, raises, run_fixture, train_in

from shmppo import load_policy
from shmppo.config.train_config import TrainConfig
from shmppo.envs.factory import make_environment
from shmppo.envs.inspection import inspect_task
from shmppo.errors import ConfigError
from shmppo.policies.evaluation import evaluate
from shmppo.policies.policy import Policy, input_names, load_trained
from shmppo.runs.launch import train
from shmppo.spaces.normalization import leaf_statistics, normalize_leaf
from shmppo.tools.export import export

SMALL = dataclasses.replace(SIX_ITERATIONS, env="space_environments:Shaped", rollout_steps=16, total_steps=4 * 16 * 2)
CASES: dict[str, dict[str, Any]] = {
    "vector": {"env": "Pendulum-v1", "hide_obs": (2,), "core": "gru", "num_layers": 2},
    "dict": {"env_kwargs": {"space": "dict"}, "prev_action": True},
    "masks": {"env": "space_environments:Masked-v0", "env_kwargs": {"sizes": [3, 4]}, "action_masks": True},
    "discrete": {"env": "FrozenLake-v1", "core": "none", "num_envs": 40},
}


@pytest.fixture(scope="module", params=CASES)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("policy") / request.param
    train_in(run_dir, SMALL, **CASES[request.param])
    return run_dir


def stacked(observations: list[Any]) -> Any:
    """The observations as a batch: n is the first axis of every part."""
    if isinstance(observations[0], dict):
        return {key: stacked([one[key] for one in observations]) for key in observations[0]}
    if isinstance(observations[0], tuple):
        return tuple(stacked([one[i] for one in observations]) for i in range(len(observations[0])))
    return np.stack(observations)


def plain(tree: Any) -> list[np.ndarray]:
    """The arrays of a dictionary of dictionaries, in order."""
    return [array for part in tree.values() for array in plain(part)] if isinstance(tree, dict) else [tree]


def test_the_distribution_and_the_value_are_those_of_the_network(run: Path) -> None:
    policy, n = load_policy(run), 5
    envs = [make_environment(policy.config) for _ in range(n)]
    observations = [env.reset(seed=i)[0] for i, env in enumerate(envs)]
    state = policy.act(stacked(observations))[1]
    found, values = policy.distribution(stacked(observations), state), policy.value(stacked(observations), state)
    assert values.shape == (n,)
    for i, obs in enumerate(observations):
        pairs = zip(plain(policy.distribution(obs, state[i])), plain(found), strict=True)
        for one, of_batch in pairs:
            np.testing.assert_allclose(one, of_batch[i], atol=1e-6)
        assert float(policy.value(obs, state[i])) == pytest.approx(float(values[i]), abs=1e-6)
    trained = policy._trained
    moments = [torch.from_numpy(numbers) for numbers in (trained.obs_mean, trained.obs_scale)]
    policy.act(stacked(observations), state)
    statistics = leaf_statistics(trained.model.observation.normalized_slices, *moments, policy.config.normalize_obs)
    pairs = zip(policy._obs, statistics, strict=True)
    leaves = [normalize_leaf(torch.tensor(leaf).unsqueeze(0), one) for leaf, one in pairs]
    with torch.no_grad():
        params, expected, _ = trained.model(leaves, torch.tensor(state))
    np.testing.assert_allclose(values, expected[0], atol=1e-5)
    torch_policy = torch_distribution(policy._distribution, params[0]) if run.name in ("vector", "discrete") else None
    actions = policy.act(stacked(observations), state)[0]
    if run.name == "vector":
        assert torch_policy is not None
        np.testing.assert_allclose(found["mean"], torch_policy.mean, atol=1e-5)
        np.testing.assert_allclose(found["std"], torch_policy.stddev, atol=1e-5)
        np.testing.assert_allclose(np.clip(found["mean"], -2, 2), actions, atol=1e-6)
    elif run.name == "discrete":
        np.testing.assert_allclose(found["probabilities"], torch_policy.probs, atol=1e-5)  # type: ignore[union-attr]
        assert (found["probabilities"].argmax(-1) == actions).all()
    elif run.name == "masks":
        assert list(found) == [0, 1]
        given = stacked(observations)
        as_info = {**given, "action_mask": tuple(np.split(given["action_mask"], [3], axis=-1))}
        np.testing.assert_array_equal(policy.act(as_info, state)[0], actions)
        with pytest.raises(
            ValueError, match=r"it must be as make_environment\(policy.config\) .* 'obs', 'action_mask'"
        ):
            policy.act({"wrong": 1}, state)
        for part in found.values():
            np.testing.assert_allclose(part["probabilities"].sum(-1), 1, atol=1e-6)
            assert (part["probabilities"] == 0).any(), "a masked action has no probability"


def test_a_policy_without_a_critic_has_no_value(tmp_path: Path) -> None:
    train_in(tmp_path / "run", SMALL, env_kwargs={"space": "dict"}, actor_obs=("inner",), separate_critic="all")
    policy = load_policy(tmp_path / "run")
    obs = make_environment(policy.config).reset(seed=0)[0]
    assert policy.distribution(obs)
    with pytest.raises(ValueError, match="this policy has no value: its critic saw other parts"):
        policy.value(obs)


def test_a_batch_gives_the_same_as_one_policy_for_each_observation(run: Path) -> None:
    n = 9  # more than one inference batch, and not a multiple of its rows
    policies: list[Policy] = [load_policy(run) for _ in range(n + 1)]
    policy = policies.pop()
    envs = [make_environment(policy.config) for _ in range(n)]
    observations = [env.reset(seed=i)[0] for i, env in enumerate(envs)]
    states, batch_state = [one.initial_state() for one in policies], policy.initial_state(n)
    for step in range(6):
        batch, batch_state = policy.act(stacked(observations), None if step == 0 else batch_state)
        pairs = [one.act(obs, state) for one, obs, state in zip(policies, observations, states, strict=True)]
        states = [state for _, state in pairs]
        np.testing.assert_allclose(batch_state, np.stack(states), atol=1e-6)
        for i, (action, _) in enumerate(pairs):
            np.testing.assert_allclose(batch[i], action, atol=1e-6)
            assert np.asarray(batch[i]).dtype == np.asarray(action).dtype
            observations[i], _, terminated, truncated, _ = envs[i].step(action)
            if terminated or truncated:
                observations[i] = envs[i].reset(seed=step)[0]
                states[i], batch_state[i] = policies[i].initial_state(), 0
    action, state = policy.act(observations[0], states[0])  # and one observation after a batch
    np.testing.assert_allclose(action, policies[0].act(observations[0], states[0])[0], atol=1e-6)
    assert state.shape == states[0].shape


@pytest.mark.parametrize(
    ("space", "wrapped", "channels"),
    [
        ("image", False, {"obs": "last"}),
        ("stacked", False, {"obs": "first"}),
        ("dict", False, {"obs/camera": "none"}),
        ("dict", True, {"obs/camera": "none"}),
        ("matrix", False, {}),
    ],
)
def test_a_policy_says_where_its_images_have_their_channels(
    space: str, wrapped: bool, channels: dict[str, str], tmp_path: Path
) -> None:
    train_in(tmp_path / "run", SMALL, env_kwargs={"space": space}, encoder="mlp", prev_action=wrapped)
    assert load_policy(tmp_path / "run").image_channels == channels
    names = load_trained(tmp_path / "run").input_names
    assert ("prev_action" in names) == wrapped
    assert not [name for name in names if name.startswith("obs/obs")]


@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize("flags", [("agent_id",), ("critic_state",), ("agent_id", "critic_state")])
def test_the_observation_of_an_agent_has_the_same_name_with_all_flags(flags: tuple[str, ...], masks: bool) -> None:
    options: dict[str, Any] = dict.fromkeys(flags, True) | {"separate_critic": "all", "action_masks": masks}
    config = TrainConfig(env="agent_environments:Crowd", env_kwargs={"masks": masks}, workers=0, **options)
    added = [flag.removeprefix("critic_") for flag in flags] + ["action_mask"] * masks
    assert input_names(config, inspect_task(config).observation) == ["obs", *added]


def test_a_mask_that_allows_no_action_is_refused(tmp_path: Path) -> None:
    train_in(tmp_path / "run", SMALL, **CASES["masks"])
    policy = load_policy(tmp_path / "run")
    observation = make_environment(policy.config).reset(seed=0)[0]
    observation["action_mask"] = np.zeros(7, np.uint8)
    for obs in (observation, stacked([observation] * 2)):
        with pytest.raises(ValueError, match=r"^obs\['action_mask'\] allows no action; correct the observation$"):
            policy.act(obs)


def test_hidden_numbers_of_an_observation_are_not_seen(tmp_path: Path) -> None:
    train_in(tmp_path / "run", SMALL, **CASES["vector"])
    policy = load_policy(tmp_path / "run")
    still, moving = (policy.act(np.array([0.6, 0.8, velocity])) for velocity in (0.0, 8.0))
    np.testing.assert_array_equal(np.concatenate(still), np.concatenate(moving))


def test_a_state_that_act_has_returned_does_not_change(run: Path) -> None:
    policy = load_policy(run)
    observation = make_environment(policy.config).reset(seed=0)[0]
    for obs in (observation, stacked([observation])):
        state = policy.act(obs)[1]
        before = state.copy()
        policy.act(obs, state)
        np.testing.assert_array_equal(state, before)


def test_a_policy_of_the_kernels_acts_on_a_machine_without_them(run: Path, not_compiled: pytest.MonkeyPatch) -> None:
    policy = load_policy(run)
    assert policy.config.kernel != "native"
    policy.act(make_environment(policy.config).reset(seed=0)[0])


ROBOT = """
import pathlib

import gymnasium
import numpy as np
from gymnasium import spaces


class Robot(gymnasium.Env):
    observation_space = spaces.Dict(goal=spaces.Box(-9, 9, (1,)), place=spaces.Box(-9, 9, (1,)))
    action_space = spaces.Box(-2, 2, (1,))

    def __init__(self, connected, goal="goal", high=2.0):
        pathlib.Path(connected).touch()
        self.goal, self.action_space = goal, spaces.Box(-2, high, (1,))
        self.observation_space = spaces.Dict({goal: spaces.Box(-9, 9, (1,)), "place": spaces.Box(-9, 9, (1,))})

    def reset(self, *, seed=None, options=None):
        return {self.goal: np.zeros(1, np.float32), "place": np.ones(1, np.float32)}, {}

    def step(self, action):
        return self.reset()[0], 0.0, True, False, {}
"""


@pytest.fixture
def robot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainConfig:
    (tmp_path / "robot_of_test.py").write_text(ROBOT)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("robot_of_test", None)
    return TrainConfig(
        env="robot_of_test:Robot", env_kwargs={"connected": str(tmp_path / "connected")}, num_envs=1, minibatches=1,
        rollout_steps=8, total_steps=8, workers=0, quiet=True, hidden_size=8, encoder_sizes=(8,),
        run_dir=str(tmp_path / "run"), wrappers=("RescaleAction(min_action=-1, max_action=1)",), check_determinism=0,
    )  # fmt: skip


def test_a_policy_knows_its_spaces_without_an_environment(robot: TrainConfig, tmp_path: Path) -> None:
    train(robot)
    (tmp_path / "connected").unlink()
    wrapped = r"are those of Box\(-1.0, 1.0, \(1,\), float32\), which wrappers .* into those of Box\(-2.0, 2.0, \(1,\)"
    with pytest.warns(UserWarning, match=wrapped):
        policy = load_policy(tmp_path / "run")
    assert policy.action_space == spaces.Box(-1, 1, (1,))
    policy.act({"goal": np.zeros(1), "place": np.zeros(1)})
    with pytest.warns(UserWarning, match=wrapped):
        export(tmp_path / "run", format="torchscript")
    train_in(tmp_path / "other", robot, init_from=str(tmp_path / "run"))
    assert (tmp_path / "connected").exists(), "only the new run makes one"


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"goal": "target"}, r"observation_space\['goal'\] is missing"),
        ({"high": 3.0}, "nothing"),
    ],
)
def test_the_first_other_space_is_named(kwargs: dict[str, Any], text: str, robot: TrainConfig, tmp_path: Path) -> None:
    train(robot)
    if text == "nothing":  # the wrapper gives both the same bounds
        evaluate(tmp_path / "run", episodes=1, env_kwargs=kwargs, trust="robot_of_test")
        return
    other = dataclasses.replace(robot, env_kwargs={**robot.env_kwargs, **kwargs}, run_dir=str(tmp_path / "other"))
    with pytest.raises(ConfigError, match=text):
        evaluate(tmp_path / "run", episodes=1, env_kwargs=kwargs, trust="robot_of_test")
    with pytest.raises(ConfigError, match=text):
        train(dataclasses.replace(other, init_from=str(tmp_path / "run")))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda policy: pickle.loads(pickle.dumps(policy))])
def test_a_copy_acts_like_the_policy(copied: Any, run: Path) -> None:
    policy = load_policy(run, trust=("space_environments",))
    env = make_environment(policy.config)
    obs, _ = env.reset(seed=1)
    policy.act(obs, deterministic=False)
    other = copied(policy)
    for deterministic in (True, False):
        for _ in range(3):
            (one, state), (two, also) = (each.act(obs, deterministic=deterministic) for each in (policy, other))
            if copied is copy.copy and not deterministic:  # a shallow copy shares the generator
                continue
            np.testing.assert_equal(one, two)
            np.testing.assert_array_equal(state, also)


@pytest.mark.long
def test_threads_that_share_a_policy_get_the_actions_of_one_thread(run: Path) -> None:
    policy = load_policy(run, trust=("space_environments",))
    env = make_environment(policy.config)
    seen = [env.reset(seed=seed)[0] for seed in range(8)]
    expected = [policy.act(obs) for obs in seen]

    def wrong(k: int) -> int:
        found = [policy.act(seen[k]) for _ in range(300)]
        return sum(not np.array_equal(state, expected[k][1]) for _, state in found)

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(wrong, range(8))) == 0


PENDULUM = dataclasses.replace(SMALL, env="Pendulum-v1", hidden_size=8)


pendulum = run_fixture(PENDULUM)
"""A run whose policy observes [3], without limits."""


INPUTS: dict[str, tuple[Any, Any, str]] = {
    "short": (np.zeros(2), None, r"obs has shape \(2,\), but its space has shape \(3,\)"),
    "batch of other numbers": (np.zeros((4, 2)), None, r"obs has shape \(4, 2\), but its space has shape \(4, 3\)"),
    "batch with one state": (np.zeros((4, 3)), np.zeros(16), r"\(16,\), not \(4, 16\); .* initial_state\(4\)"),
    "two batch axes": (np.zeros((1, 1, 3)), None, r"obs has shape \(1, 1, 3\), but its space has shape \(3,\)"),
    "state of another shape": (np.zeros(3), np.zeros(5), r"state has shape \(5,\), not \(16,\); give what"),
    "list": ([{"a": 1.0}, {"a": 2.0}], None, "obs is a list; pass one dict of arrays that have n as the first axis"),
    "NaN": (np.full(3, np.nan), None, "obs or state is not finite"),
    "infinite state": (np.zeros(3), np.full(16, np.inf), "obs or state is not finite"),
    "text as state": (np.zeros(3), np.array(["a"] * 16), r"state has type .*; give what act or initial_state has"),
} | {
    str(bad): (np.array(bad), None, r"obs has type .*, but it must contain real numbers")
    for bad in (["a", "b", "c"], [1j, 0, 0], ["0.5", "0", "0"], [None, 0, 0], [b"1", b"0", b"0"])
}  # fmt: skip


@pytest.mark.parametrize("case", INPUTS)
def test_a_policy_refuses_what_is_no_observation_or_state(case: str, pendulum: Path) -> None:
    obs, state, message = INPUTS[case]
    policy = load_policy(pendulum)
    with raises("ValueError", message):
        policy.act(obs, state)


def test_a_policy_accepts_no_state_at_the_start_of_an_episode(pendulum: Path) -> None:
    policy, obs = load_policy(pendulum), np.array([1.0, 0.0, 0.5])
    action, state = policy.act(obs)
    again, state_again = policy.act(obs, policy.initial_state())
    np.testing.assert_array_equal([*action, *state], [*again, *state_again])
