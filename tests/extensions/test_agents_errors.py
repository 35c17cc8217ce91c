"""Environments with several agents: what is refused before a run, and the errors of environments that go wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import assert_refused
from test_agents_env import CROWD, MASKED, Script, env_of, rows_of

from shmppo.errors import EnvError
from shmppo.extensions.agents.envs import AgentsEnv

CARTPOLE = Path(__file__).parents[2] / "examples" / "trained" / "cartpole"


@pytest.mark.parametrize(
    "name",
    [
        "wrappers",
        "demonstrations",
        "teacher",
        "prev_action",
        "prev_reward",
        "skip_bad_episodes",
        "preempt_fraction",
        "eval_videos",
    ],
)
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
        "the agents have different spaces, but one policy",
    ),
    ({"env": "agent_environments:Numbered"}, r"^--env \S+: possible_agents is \[0, 1\]; each name must be a string$"),
    (
        {"eval_opponent": "agent_environments:take_one"},
        "^--eval-opponent needs --self-play; add --self-play, or --eval-opponent random$",
    ),
    (MASKED, "the agents' observations have the form {'observation': …, 'action_mask': …}; add --action-masks$"),
    (
        {"action_masks": True},
        r"the agents' observations do not have the form .*; correct them, or leave out --action-masks$",
    ),
    (
        {"env": "agent_environments:WrongMasks", "action_masks": True},
        r"part 'action_mask' of obs has shape \(3,\), but its space has shape \(2,\)",
    ),
    ({"critic_state": True}, "^--critic-state needs a critic of its own; add --separate-critic all$"),
    ({"env_backend": "mujoco"}, r"has several agents \(possible_agents\); give an environment of PettingZoo"),
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

    setattr(env_of(envs, row=3), call, fail)
    where = {"reset": r"reset\(seed=\d+\) of episode 5", "step": "step"}
    message = rf"^environment 1: {where[call]} raised ValueError\('no license'\)"
    message += r".*\(episode 4, " if call == "step" else ""
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
