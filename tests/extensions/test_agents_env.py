"""Environments with several agents: which columns act, what they receive, what is refused, and what goes wrong."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from helpers import assert_refused

from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.envs.vector_env import EpisodeToRestore
from shmppo.errors import EnvError
from shmppo.extensions.agents.envs import AgentsEnv
from shmppo.extensions.agents.vector_env import AgentsVectorEnv

CROWD = TrainConfig(
    env="agent_environments:Crowd", num_envs=2, rollout_steps=16, seq_len=8, minibatches=2, hidden_size=8,
    encoder_sizes=(8,), workers=0, quiet=True, total_steps=64,
)  # fmt: skip
MASKED = {"env_kwargs": {"masks": True}}


def rows_of(config: TrainConfig, envs: int = 2) -> AgentsVectorEnv:
    """The rows of some environments."""
    task = inspect_task(config)
    config = dataclasses.replace(config, **task.derived)
    return AgentsVectorEnv(config, task, 0, envs * config.columns_per_env)


def env_of(envs: AgentsVectorEnv, row: int = 0) -> Any:
    """The environment of a row, as its class has made it."""
    view: Any = envs.handles[row].env
    return view.env


class Script:
    """Two agents whose steps return what a list says. `b` joins at step 1, skips step 2, and ends at step 3."""

    possible_agents = ("a", "b")
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
    env.begin()
    active, results = [env.active.tolist()], []
    for _ in range(4):
        results.append([values.tolist() for values in env.advance([0, 1])])
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
    env.begin()
    assert env.active.tolist() == [False, True]


def test_only_steps_with_an_active_agent_count() -> None:
    """Nobody is seen after the second step, so that the third one follows at once, without actions."""
    script = Script()
    script.steps = (*script.steps[:1], ("ab", "", {"a": 2.0, "b": 10.0}, "", ""), *script.steps[2:])
    env = AgentsEnv(script, CROWD)
    env.begin()
    env.advance([0, 1])
    assert [values.tolist() for values in env.advance([0, 1])] == [[6.0, 30.0], [False, True], [False, False]]
    assert script.taken == [{"a": 0}, {"a": 0, "b": 1}, {}]


def test_the_last_observation_of_an_agent_counts_if_the_others_are_idle_then() -> None:
    """The next step of the environment follows at once, and returns an observation of another agent."""
    envs = rows_of(CROWD, envs=1)
    envs.reset_all(0)
    env = env_of(envs)
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


def test_observations_with_an_index_and_the_state_of_the_environment() -> None:
    config = dataclasses.replace(CROWD, agent_id=True, critic_state=True, separate_critic="all")
    envs = rows_of(config)
    envs.reset_all(0)
    names = [leaf.field for leaf in envs.observation.leaves]
    assert sorted(names) == ["obs/agent_id", "obs/obs", "obs/state"]
    ids = envs.obs[names.index("obs/agent_id")]
    assert ids.tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 1]] * 2, "agent 1 has not joined yet"


@pytest.mark.parametrize("opponents", [(), ("walker_0",)])
def test_info_of_idle_agents_counts_once(opponents: tuple[str, ...]) -> None:
    """Each info of `Crowd` contains the time. It counts when an agent of the policy sees the environment."""
    envs = rows_of(dataclasses.replace(CROWD, info_keys=("time:sum",), self_play=opponents or None), envs=1)
    envs.reset_all(0)
    sums, env = {}, env_of(envs)
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


def test_each_reset_gets_a_seed() -> None:
    envs, seeds = rows_of(CROWD, envs=1), []
    env = env_of(envs)
    reset = env.reset
    env.reset = lambda **given: (seeds.append(given.get("seed")), reset(**given))[1]
    envs.reset_all(0)
    envs.reset_env(0, 1)
    assert None not in seeds
    assert len(set(seeds)) == 2


def test_an_agent_that_leaves_without_a_flag_is_truncated() -> None:
    script = Script()
    script.steps = (*script.steps[:2], ("a", "a", {}, "", ""))
    env = AgentsEnv(script, CROWD)
    env.begin()
    results = [[values.tolist() for values in env.advance([0, 1])[1:]] for _ in range(3)]
    assert results[1:] == [[[False, False], [False, False]], [[False, False], [False, True]]]


@pytest.mark.parametrize("change", ["none", "rewards", "an end after 1", "an end after 2"])
def test_an_episode_is_restored_only_if_it_is_the_same(change: str) -> None:
    envs = rows_of(CROWD, 1)
    env = env_of(envs)
    step = env.step
    envs.reset_all(0)
    for _ in range(2):
        envs.step([1] * 3, np.zeros(3), *np.zeros((2, 3), bool))
    episodes = [EpisodeToRestore(0, [1, 1], int(code), None) for code in envs.hashes]

    def changed(actions: dict[str, int]) -> tuple[dict, dict, dict, dict, dict]:
        assert env.agents, "it is stepped after its end"
        if change.startswith("an end"):
            env.length = int(change[-1])
        observations, rewards, *others = step(actions)
        if change == "rewards":
            rewards = {name: reward + 1 for name, reward in rewards.items()}
        return observations, rewards, *others  # type: ignore[return-value]

    env.step = changed
    assert envs.restore(episodes, np.zeros(2, np.int64)) == [change == "none"] * 3
    envs.close()


CARTPOLE = Path(__file__).parents[2] / "examples" / "trained" / "cartpole"


@pytest.mark.parametrize(
    "name",
    ["wrappers", "demonstrations", "teacher", "prev_action", "prev_reward", "skip_bad_episodes", "preempt_fraction",
     "eval_videos"],
)  # fmt: skip
def test_options_for_one_agent_are_refused(name: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"wrappers": ("NormalizeReward",), "teacher": str(CARTPOLE), "preempt_fraction": 0.5}
    changes = {name: given.get(name, True)} | ({"eval_every": 1} if name == "eval_videos" else {})
    if name == "demonstrations":
        changes = {name: "x.npz", "objective": "clone"}
    text = rf"^--{name.replace('_', '-')} does not support environments with several agents; leave it out$"
    assert_refused(CROWD, changes, text, tmp_path)


REFUSED = [
    ({"env": "agent_environments:Unequal"}, "the agents have different spaces, but one policy"),
    ({"env": "agent_environments:Numbered"}, r"^--env \S+: possible_agents is \[0, 1\]; each name must be a string$"),
    ({"eval_opponent": "agent_environments:take_one"},
     "^--eval-opponent needs --self-play; add --self-play, or --eval-opponent random$"),
    (MASKED, "the agents' observations have the form {'observation': …, 'action_mask': …}; add --action-masks$"),
    ({"action_masks": True},
     r"the agents' observations do not have the form .*; correct them, or leave out --action-masks$"),
    ({"env": "agent_environments:WrongMasks", "action_masks": True},
     r"part 'action_mask' of obs has shape \(3,\), but its space has shape \(2,\)"),
    ({"critic_state": True}, "^--critic-state needs a critic of its own; add --separate-critic all$"),
    ({"env_backend": "mujoco"}, r"has several agents \(possible_agents\); give an environment of PettingZoo"),
    ({"env": "CartPole-v1", "self_play": ()}, r"^--self-play needs an environment with several agents .*leave it out$"),
    ({"env": "CartPole-v1", "agent_id": True}, r"^--agent-id needs an environment with several agents .*leave it out$"),
    ({"env": "CartPole-v1", "critic_state": True, "separate_critic": "all"},
     r"^--critic-state needs an environment with several agents .*leave it out$"),
    ({"env": "agent_environments:Stateless", "critic_state": True, "separate_critic": "all"},
     "^--env agent_environments:Stateless has no state_space; add it, or leave out --critic-state$"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_cannot_run_is_refused_in_a_sentence(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    assert_refused(CROWD, changes, message, tmp_path)


@pytest.mark.parametrize("call", ["reset", "step"])
def test_an_environment_that_raises_is_named_with_its_episode(call: str) -> None:
    envs, flags = rows_of(CROWD), np.zeros((2, 6), bool)
    envs.reset_all(4)

    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("no license")

    setattr(env_of(envs, row=3), call, fail)
    where = {"reset": r"reset\(seed=\d+\) of episode 5", "step": "step"}
    message = rf"^environment 1: {where[call]} raised ValueError\('no license'\)"
    message += r".*\(episode 4 with seed \d+, " if call == "step" else ""
    use = (lambda: envs.reset_env(4, 5)) if call == "reset" else lambda: envs.step([0] * 6, np.zeros(6), *flags)
    with pytest.raises(EnvError, match=message):
        use()


def test_a_first_observation_that_is_not_finite_is_an_error_of_the_environment() -> None:
    envs = rows_of(CROWD)
    box = {name: np.array([0, np.nan], np.float32) for name in ("walker_0", "walker_2")}
    env = env_of(envs, row=3)
    reset = env.reset
    env.reset = lambda **given: (box, reset(**given)[1])
    message = r"^environment 1: agent walker_0: reset returned an invalid observation: obs is not finite: \[1\] is nan"
    with pytest.raises(EnvError, match=message):
        envs.reset_all(0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rewards": {"a": 0.0, "c": 0.0}}, "step must return a reward, a termination, and a truncation for b"),
        ({"terminated": {"__all__": False}}, "step must return a reward, a termination, and a truncation for a"),
        ({"truncated": {"a": False}}, "step must return a reward, a termination, and a truncation for b"),
        ({"observations": {"a": np.zeros(1), "B": np.zeros(1)}}, "B is not in possible_agents: a, b"),
    ],
)
def test_a_step_must_return_a_value_of_each_agent(changes: dict[str, Any], message: str) -> None:
    script, names = Script(), ("observations", "rewards", "terminated", "truncated", "infos")
    env = AgentsEnv(script, CROWD)
    env.begin()
    env.advance([0, 0])
    step = script.step
    script.step = lambda actions: tuple(  # type: ignore[method-assign]
        changes.get(name, value) for name, value in zip(names, step(actions), strict=True)
    )
    with pytest.raises(ValueError, match=message):
        env.advance([0, 0])
