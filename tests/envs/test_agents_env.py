"""Environments with several agents: which rows act, what they receive, and what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agent_environments import Crowd
from gymnasium import spaces
from helpers import assert_refused

from shmppo.config.train_config import TrainConfig
from shmppo.envs.agents import AgentsEnv, AgentsView
from shmppo.envs.agents_vector_env import AgentsVectorEnv
from shmppo.envs.inspection import inspect_task
from shmppo.envs.vector_env import EpisodeToRestore
from shmppo.errors import ConfigError, EnvError

CROWD = TrainConfig(
    env="agent_environments:Crowd", num_envs=2, rollout_steps=16, seq_len=8, minibatches=2, hidden_size=8,
    encoder_sizes=(8,), workers=0, quiet=True, total_steps=64,
)  # fmt: skip
CARTPOLE = Path(__file__).parents[2] / "examples" / "trained" / "cartpole"
MASKED = {"env_kwargs": {"masks": True}}


def rows_of(config: TrainConfig, envs: int = 2) -> AgentsVectorEnv:
    """The rows of some environments."""
    task = inspect_task(config)
    config = dataclasses.replace(config, agents=task.agents)
    return AgentsVectorEnv(config, task, 0, envs * len(task.agents))


class Script:
    """Two agents whose steps return what a list says. `b` joins at step 1, skips step 2, and ends at step 3."""

    possible_agents = ("a", "b")
    metadata: dict[str, Any] = {}  # noqa: RUF012
    steps = (
        # (living agents after the step, agents that are seen, rewards, terminated, truncated)
        ("ab", "ab", {"a": 1.0}, "", ""),
        ("ab", "a", {"a": 2.0, "b": 10.0}, "", ""),
        ("a", "ab", {"a": 4.0, "b": 20.0}, "b", ""),
        ("", "a", {"a": 8.0, "b": 40.0}, "", "a"),
    )

    def observation_space(self, agent: str) -> spaces.Box:
        return spaces.Box(-9, 9, (1,), np.float32)

    def action_space(self, agent: str) -> spaces.Discrete:
        return spaces.Discrete(2)

    def reset(self, **_: Any) -> tuple[dict, dict]:
        self.taken: list[dict[str, int]] = []
        self.agents = ["a"]
        return {"a": np.zeros(1, np.float32)}, {}

    def step(self, actions: dict[str, int]) -> tuple[dict, ...]:
        self.taken.append(actions)
        living, seen, rewards, *ended = self.steps[len(self.taken) - 1]
        before, self.agents = self.agents, list(living)
        observations = {name: np.full(1, len(self.taken), np.float32) for name in seen}
        flags = [dict.fromkeys(before, False) | dict.fromkeys(names, True) for names in ended]
        return observations, dict.fromkeys(before, 0.0) | rewards, *flags, {}


def test_agents_that_join_skip_a_turn_and_end_by_hand() -> None:
    env = AgentsEnv(Script(), CROWD)
    env.reset()
    active, results = [env.active.tolist()], []
    for _ in range(4):
        results.append([values.tolist() for values in env.step([0, 1])])
        active.append(env.active.tolist())
    assert active == [[True, False], [True, True], [True, False], [True, False], [False, False]]
    assert env.env.taken == [{"a": 0}, {"a": 0, "b": 1}, {"a": 0}, {"a": 0}]
    rewards, terminated, truncated = zip(*results, strict=True)
    assert rewards == ([1.0, 0.0], [2.0, 10.0], [4.0, 20.0], [8.0, 40.0]), "b is rewarded after its end, too"
    assert terminated == ([False, False], [False, False], [False, True], [False, False])
    assert truncated == ([False, False], [False, False], [False, False], [True, False])
    assert env.done


def test_an_agent_without_a_choice_in_one_dimension_is_idle() -> None:
    class Pairs(Script):
        def observation_space(self, agent: str) -> Any:
            return spaces.Dict(observation=super().observation_space(agent), action_mask=spaces.MultiBinary(5))

        def action_space(self, agent: str) -> Any:
            return spaces.MultiDiscrete([2, 3])

        def reset(self, **_: Any) -> tuple[dict, dict]:
            self.agents = ["a", "b"]
            masks = {"a": np.array([1, 1, 0, 0, 0], np.int8), "b": np.array([0, 1, 0, 1, 0], np.int8)}
            return {name: {"observation": np.zeros(1), "action_mask": mask} for name, mask in masks.items()}, {}

    env = AgentsEnv(Pairs(), dataclasses.replace(CROWD, action_masks=True))
    env.reset()
    assert env.active.tolist() == [False, True]


def test_only_steps_with_an_active_agent_count() -> None:
    """Nobody is seen after the second step, so that the third one follows at once, without actions."""
    script = Script()
    script.steps = (*script.steps[:1], ("ab", "", {"a": 2.0, "b": 10.0}, "", ""), *script.steps[2:])
    env = AgentsEnv(script, CROWD)
    env.reset()
    env.step([0, 1])
    assert [values.tolist() for values in env.step([0, 1])] == [[6.0, 30.0], [False, True], [False, False]]
    assert script.taken == [{"a": 0}, {"a": 0, "b": 1}, {}]


def test_the_last_observation_of_an_agent_counts_if_the_others_are_idle_then() -> None:
    """The next step of the environment follows at once, and returns an observation of another agent."""
    envs = rows_of(CROWD, envs=1)
    envs.reset_all(0)
    env = envs._envs[0].env
    seen = iter([{"walker_0": np.full(2, 5, np.float32)}, {"walker_2": np.full(2, 7, np.float32)}])

    def step(actions: dict[str, int]) -> tuple[dict, ...]:
        rewards, flags = dict.fromkeys(env.agents, 0.0), dict.fromkeys(env.agents, False)
        env.agents = ["walker_2"]
        return next(seen), rewards, flags, flags | {"walker_0": True}, {}

    env.step = step
    ended = envs.step([0, 0, 0], np.zeros(3), *np.zeros((2, 3), bool))
    assert [(end.i, end.final[0].tolist()) for end in ended] == [(0, [5, 5])]
    assert envs.obs[0][2].tolist() == [7, 7]


def test_the_loser_of_a_board_game_gets_the_final_reward_for_its_last_move() -> None:
    pytest.importorskip("pettingzoo")
    envs = rows_of(TrainConfig(env="pettingzoo.classic.tictactoe_v3:env", action_masks=True, workers=0), envs=1)
    envs.reset_all(0)
    rewards, flags = np.zeros(2), np.zeros((2, 2), bool)
    for k, (first, second) in enumerate([(0, 1), (3, 4), (6, 0)]):  # the first player fills the left column
        for turn, cell in enumerate((first, second)):
            if k == 2 and turn == 1:
                break
            assert envs.active.tolist() == [turn == 0, turn == 1]
            assert envs.obs[-1][turn].sum() == 9 - 2 * k - turn
            ended = envs.step([cell, cell], rewards, *flags)
    assert rewards.tolist() == [1.0, -1.0]
    assert flags.tolist() == [[True, True], [False, False]]
    assert [(end.i, end.terminated) for end in ended] == [(0, True), (1, True)]
    (reported,) = envs.reported(ended)
    assert (reported.episode_return, reported.length) == (0.0, 5)
    assert {f"info/return/player_{k}": 1.0 - 2 * (k - 1) for k in (1, 2)}.items() <= reported.info.items()


def test_turns_without_masks_are_those_of_the_environment() -> None:
    utils = pytest.importorskip("pettingzoo.utils")
    tictactoe = pytest.importorskip("pettingzoo.classic.tictactoe_v3")

    class WithoutMask(utils.BaseWrapper):  # type: ignore[name-defined,misc]
        def observe(self, agent: str) -> Any:
            return super().observe(agent)["observation"]

        def observation_space(self, agent: str) -> Any:
            return super().observation_space(agent)["observation"]

    env = AgentsEnv(WithoutMask(tictactoe.raw_env()), CROWD)
    env.reset(seed=0)
    assert env.active.tolist() == [True, False]
    env.step([0, 0])
    assert env.active.tolist() == [False, True]


def test_observations_with_an_index_and_the_state_of_the_environment() -> None:
    config = dataclasses.replace(CROWD, agent_id=True, critic_state=True, separate_critic="all")
    envs = rows_of(config)
    envs.reset_all(0)
    names = [leaf.field for leaf in envs.observation.leaves]
    assert sorted(names) == ["obs/agent_id", "obs/obs", "obs/state"]
    ids = envs.obs[names.index("obs/agent_id")]
    assert ids.tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 1]] * 2, "agent 1 has not joined yet"


@pytest.mark.parametrize(
    "name",
    ["wrappers", "demonstrations", "teacher", "prev_action", "prev_reward", "skip_bad_episodes", "refresh_states",
     "preempt_fraction", "eval_videos"],
)  # fmt: skip
def test_options_for_one_agent_are_refused(name: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"wrappers": ("NormalizeReward",), "teacher": str(CARTPOLE), "preempt_fraction": 0.5}
    changes = {name: given.get(name, True)} | ({"eval_every": 1} if name == "eval_videos" else {})
    if name == "demonstrations":
        changes = {name: "x.npz", "objective": "clone"}
    text = rf"^--{name.replace('_', '-')} does not support environments with several agents; leave it out$"
    assert_refused(CROWD, changes, text, tmp_path)


REFUSED = [
    (
        {"env": "agent_environments:Unequal"},
        "the agents walker_0 and walker_1 have different observation spaces, but one policy",
    ),
    (
        {"eval_opponent": "agent_environments:take_one"},
        "^--eval-opponent concerns --self-play; add --self-play, or leave",
    ),
    (MASKED, "the agents' observations have the form {'observation': …, 'action_mask': …}; add --action-masks$"),
    (
        {"action_masks": True},
        r"the agents' observations do not have the form .*; correct them, or leave out --action-masks$",
    ),
    (
        {"env": "agent_environments:WrongMasks", "action_masks": True},
        r"the action masks have shape \(3,\), which does not fit the action space Discrete\(2\); it must be",
    ),
    ({"critic_state": True}, "^--critic-state needs a critic of its own; add --separate-critic all$"),
    (
        {"env_backend": "mujoco"},
        r"has several agents \(possible_agents\); give an environment of PettingZoo",
    ),
    ({"env": "CartPole-v1", "self_play": ()}, r"^--self-play needs an environment with several agents .*leave it out$"),
    ({"env": "CartPole-v1", "agent_id": True}, r"^--agent-id needs an environment with several agents .*leave it out$"),
    (
        {"env": "CartPole-v1", "critic_state": True, "separate_critic": "all"},
        r"^--critic-state needs an environment with several agents .*leave it out$",
    ),
    (
        {"env": "agent_environments:Stateless", "critic_state": True, "separate_critic": "all"},
        "^--env agent_environments:Stateless has no state_space; leave out --critic-state$",
    ),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_cannot_run_is_refused_in_a_sentence(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    assert_refused(CROWD, changes, message, tmp_path)


@pytest.mark.parametrize("call", ["reset", "step"])
def test_an_environment_that_raises_is_named_with_its_episode(call: str) -> None:
    envs, flags = rows_of(CROWD), np.zeros((2, 6), bool)
    envs.reset_all(4)

    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("no license")

    setattr(envs._envs[1].env, call, fail)
    message = rf"^environment 1: {call} raised ValueError\('no license'\) .*\(episode {4 if call == 'step' else 5}, "
    use = (lambda: envs.reset_env(4, 5)) if call == "reset" else lambda: envs.step([0] * 6, np.zeros(6), *flags)
    with pytest.raises(EnvError, match=message):
        use()


def test_a_first_observation_that_is_not_finite_is_an_error_of_the_environment() -> None:
    envs = rows_of(CROWD)
    box = {name: np.array([0, np.nan], np.float32) for name in ("walker_0", "walker_2")}
    reset = envs._envs[1].env.reset
    envs._envs[1].env.reset = lambda **given: (box, reset(**given)[1])
    message = r"^environment 1: agent walker_0: reset returned an observation .* not finite: \[1\] is nan"
    with pytest.raises(EnvError, match=message):
        envs.reset_all(0)


def test_an_environment_that_keeps_ended_agents_is_refused() -> None:
    """Otherwise, its episode would never end, and it would never be reset."""
    script = Script()
    script.steps = (script.steps[0], ("ab", "ab", {}, "ab", ""))
    env = AgentsEnv(script, CROWD)
    env.reset()
    env.step([0, 1])
    with pytest.raises(ValueError, match="all agents have ended, but are still in the list agents; step must"):
        env.step([0, 1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rewards": {"a": 0.0, "c": 0.0}}, "step returned no reward for b, one of the agents before the step"),
        ({"terminated": {"__all__": False}}, "step returned no termination for a, one of the agents"),
        ({"truncated": {"a": False}}, "step returned no truncation for b, one of the agents"),
        ({"observations": {"a": np.zeros(1), "B": np.zeros(1)}}, "B is not one of possible_agents: a, b"),
        ({"rewards": {"a": None, "b": 0.0}}, "step returned the reward None of a; it must be one number"),
        ({"rewards": {"a": 0.0, "b": np.zeros(2)}}, r"step returned the reward .* of b; it must be one number"),
    ],
)
def test_a_step_must_return_a_value_of_each_agent(changes: dict[str, Any], message: str) -> None:
    script, names = Script(), ("observations", "rewards", "terminated", "truncated", "infos")
    env = AgentsEnv(script, CROWD)
    env.reset()
    env.step([0, 0])
    step = script.step
    script.step = lambda actions: tuple(  # type: ignore[method-assign]
        changes.get(name, value) for name, value in zip(names, step(actions), strict=True)
    )
    with pytest.raises(ValueError, match=message):
        env.step([0, 0])


def test_a_step_must_return_five_values(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script()
    env = AgentsEnv(script, CROWD)
    env.reset()
    monkeypatch.setattr(script, "step", lambda actions: ({}, {}, {}, {}))
    with pytest.raises(ValueError, match=r"^step must return \(observations, rewards, terminations, .*infos\)"):
        env.step([0, 0])


def test_a_text_in_the_info_is_an_error_that_names_the_agent() -> None:
    envs = rows_of(dataclasses.replace(CROWD, info_keys=("time:sum",)), envs=2)
    envs.reset_all(0)
    step = envs._envs[1].env.step

    def with_text(actions: dict[str, int]) -> tuple[dict, ...]:
        *others, infos = step(actions)
        return *others, infos | {"walker_2": {"time": "late"}}

    envs._envs[1].env.step = with_text
    message = r"^environment 1: agent walker_2: --info-keys time: .*'late' is not a number"
    with pytest.raises(EnvError, match=message):  # noqa: PT012 (walker_2 is not seen in every step)
        for _ in range(20):
            envs.step([0] * 6, np.zeros(6), *np.zeros((2, 6), bool))


def test_a_reset_must_return_observations_and_infos_of_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script()
    env = AgentsEnv(script, CROWD)
    for agents, returned, message in (
        ([], ({}, {}), "the list agents is empty after reset; it must contain the agents that begin"),
        (["A"], ({}, {}), "A is not one of possible_agents: a, b"),
        (["a"], {"a": np.zeros(1)}, r"reset must return \(observations, infos\)"),
    ):
        script.agents = agents
        monkeypatch.setattr(script, "reset", lambda returned=returned: returned)
        with pytest.raises(ValueError, match=message):
            env.reset()


def test_a_reset_without_arguments_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    reset = Crowd.reset
    monkeypatch.setattr(Crowd, "reset", lambda self: reset(self))
    envs = rows_of(CROWD)
    assert envs._seeding == "never"
    envs.reset_all(0)
    assert envs.active.any()


def test_the_checks_before_a_run_see_the_observations_of_all_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    observe = Crowd._observe
    monkeypatch.setattr(
        Crowd, "_observe", lambda self, names: observe(self, names) | {"walker_2": np.zeros(3, np.float32)}
    )
    message = r"^--env agent_environments:Crowd: agent walker_2: reset returned an observation that has shape \(3,\)"
    with pytest.raises(ConfigError, match=message):
        inspect_task(CROWD)


@pytest.mark.parametrize("opponents", [(), ("walker_0",)])
def test_info_of_idle_agents_counts_once(opponents: tuple[str, ...]) -> None:
    """Each info of `Crowd` contains the time. It counts when an agent of the policy sees the environment."""
    envs = rows_of(dataclasses.replace(CROWD, info_keys=("time:sum",), self_play=opponents or None), envs=1)
    envs.reset_all(0)
    sums, env = {}, envs._envs[0].env
    original = env.step

    def step(actions: dict[str, int]) -> tuple[dict, ...]:
        results = original(actions)
        for name in results[0].keys() & results[4].keys():
            sums[name] = sums.get(name, 0) + results[4][name]["time"]
        return results

    env.step = step
    while not envs.finished:
        envs.step([0, 0, 0], np.zeros(3), *np.zeros((2, 3), bool))
    assert envs.finished[0].info["info/time"] == np.mean([sums[name] for name in sums if name not in opponents])


def test_the_last_info_of_an_agent_needs_no_observation() -> None:
    envs = rows_of(CROWD, envs=1)
    envs.reset_all(0)
    last, env = {}, envs._envs[0].env
    original = env.step

    def step(actions: dict[str, int]) -> tuple[dict, ...]:
        observations, *results, infos = original(actions)
        infos = {name: {"success": not env.agents} for name in infos}
        last.update({name: float(info["success"]) for name, info in infos.items()})
        return observations if env.agents else {}, *results, infos

    env.step = step
    while not envs.finished:
        envs.step([0, 0, 0], np.zeros(3), *np.zeros((2, 3), bool))
    assert envs.finished[0].info["info/success"] == np.mean(list(last.values())) > 0


def test_agents_that_have_not_joined_an_episode_have_no_observation_of_the_one_before() -> None:
    envs = rows_of(CROWD, envs=1)
    envs.obs[0][:] = 9
    envs.reset_all(0)
    assert not envs.active[1]
    assert not envs.obs[0][1].any()


@pytest.mark.parametrize(("seeding", "seeded"), [("episode", [True, True]), ("once", [True, False])])
def test_which_resets_get_a_seed(seeding: Any, seeded: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    envs, seeds = rows_of(dataclasses.replace(CROWD, episode_seeding=seeding), envs=1), []
    reset = envs._envs[0].reset
    monkeypatch.setattr(envs._envs[0], "reset", lambda **given: (seeds.append(given.get("seed")), reset(**given)))
    envs.reset_all(0)
    envs.reset_env(0, 1)
    assert [seed is not None for seed in seeds] == seeded


def test_an_agent_that_leaves_without_a_flag_is_truncated() -> None:
    script = Script()
    script.steps = (*script.steps[:2], ("a", "a", {}, "", ""))
    env = AgentsEnv(script, CROWD)
    env.reset()
    results = [[values.tolist() for values in env.step([0, 1])[1:]] for _ in range(3)]
    assert results[1:] == [[[False, False], [False, False]], [[False, False], [False, True]]]


def test_the_checks_before_a_run_see_the_truncation_and_the_rewards_of_all_agents() -> None:
    view = AgentsView(AgentsEnv(Script(), CROWD))
    view.reset()
    steps = [view.step(0)[1:4] for _ in range(4)]
    assert steps == [(1.0, False, False), (12.0, False, False), (24.0, False, False), (48.0, False, True)]


def test_in_the_checks_before_a_run_other_agents_take_an_allowed_action() -> None:
    class Masked(Script):
        def observation_space(self, agent: str) -> Any:
            return spaces.Dict(observation=super().observation_space(agent), action_mask=spaces.MultiBinary(2))

        def look(self) -> dict[str, Any]:
            masks = {"a": np.array([1, 1], np.int8), "b": np.array([0, 1], np.int8)}
            return {name: {"observation": np.zeros(1, np.float32), "action_mask": mask} for name, mask in masks.items()}

        def reset(self, **_: Any) -> tuple[dict, dict]:
            super().reset()
            self.agents = ["a", "b"]
            return self.look(), {}

        def step(self, actions: dict[str, int]) -> tuple[dict, ...]:
            _, *others = super().step(actions)
            return self.look(), *others

    script = Masked()
    view = AgentsView(AgentsEnv(script, dataclasses.replace(CROWD, action_masks=True)))
    view.reset()
    view.step(1)
    assert script.taken == [{"a": 1, "b": 1}]


@pytest.mark.parametrize("change", ["none", "rewards", "an end after 1", "an end after 2"])
def test_an_episode_is_restored_only_if_it_is_the_same(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    envs, step = rows_of(CROWD, 1), Crowd.step
    envs.reset_all(0)
    for _ in range(2):
        envs.step([1] * 3, np.zeros(3), *np.zeros((2, 3), bool))
    episodes = [EpisodeToRestore(0, [1, 1], int(code), None) for code in envs.hashes]

    def changed(env: Crowd, actions: dict[str, int]) -> tuple[dict, dict, dict, dict, dict]:
        assert env.agents, "it is stepped after its end"
        if change.startswith("an end"):
            env._length = int(change[-1])
        observations, rewards, *others = step(env, actions)
        if change == "rewards":
            rewards = {name: reward + 1 for name, reward in rewards.items()}
        return observations, rewards, *others  # type: ignore[return-value]

    monkeypatch.setattr(Crowd, "step", changed)
    assert envs.restore(episodes, np.zeros(2, np.int64)) == [change == "none"] * 3
    envs.close()
