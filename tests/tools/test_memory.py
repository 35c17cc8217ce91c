"""Whether a policy uses its memory: returns by hand for changed states, in all cores, and what the command says."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from helpers import CORES, memory_run
from public_helpers import SIX_ITERATIONS, exit_code, run_fixture, train_in
from torch import Tensor, nn

import shmppo.evaluate as command
from shmppo import load_policy, plot_runs
from shmppo.envs.factory import make_environment
from shmppo.envs.vector_env import FIRST_INDEX, VectorEnv
from shmppo.errors import ConfigError
from shmppo.policies.evaluation import evaluate
from shmppo.tools.memory import EXCHANGED, HELD, KEPT, MemoryUse, Recorded, memory_use, reset

STEPS, EPISODES = 8, 12


class Recall(gymnasium.Env[dict[str, Any], int]):
    """The first observation of an episode shows a cue, 1 or −1, and the later ones 0. Action 1 or 0 repeats the cue."""

    observation_space = spaces.Dict(
        {"cue": spaces.Discrete(2), "level": spaces.Box(-1, 1, (1,)), "seen": spaces.Box(-1, 1, (1,))}
    )
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.cue, self.t = int(self.np_random.integers(2)), 0
        return self.observation(), {}

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self.observation(), float(action == self.cue), self.t == STEPS, False, {}

    def observation(self) -> dict[str, Any]:
        level = np.array([2 * self.cue - 1], np.float32)
        return {"cue": self.cue, "level": level, "seen": level * (self.t == 0)}


class Latch(nn.Module):
    """Its state is the last cue that it has seen."""

    features, state_size = 1, 1

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], config: Any) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, obs: Mapping[str, Tensor], first: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        states = []
        for seen in obs["obs/seen"]:
            state = torch.where(seen == 0, state, seen)
            states.append(state)
        return torch.stack(states) * self.scale, state


RECALL = dataclasses.replace(
    SIX_ITERATIONS, env="test_memory:Recall", network="test_memory:Latch", separate_critic="all", actor_obs=("seen",),
    normalize_obs=False, learning_rate=1e-9, stop_at_iteration=1, seed=2,
)  # fmt: skip
TRUST = ("test_memory",)
run_dir = run_fixture(RECALL)


@pytest.fixture(scope="module")
def use(run_dir: Path) -> MemoryUse:
    return memory_use(run_dir, episodes=EPISODES, trust=TRUST)


def cues(run_dir: Path) -> list[int]:
    found: list[int] = []

    def look(envs: VectorEnv, step: int, states: np.ndarray) -> None:
        found.extend(envs.obs[0][:, 0] if step == 0 else ())

    evaluate(run_dir, episodes=EPISODES, trust=TRUST, change_states=look)
    return found


def test_the_returns_are_those_of_a_policy_that_remembers_a_cue(run_dir: Path, use: MemoryUse) -> None:
    shown = cues(run_dir)
    assert list(use.returns) == ["1", "2", "4", KEPT, HELD, EXCHANGED]
    assert use.returns[KEPT] == use.returns[HELD] == [STEPS] * EPISODES
    assert use.returns[EXCHANGED] == [
        1 + (STEPS - 1) * (shown[i] == shown[(i + 1) % EPISODES]) for i in range(EPISODES)
    ]
    without = use.returns["1"]
    always = {cue for cue, total in zip(shown, without, strict=True) if total == STEPS}
    assert len(always) == 1, "without a cue, the policy always takes the same action"
    for k in (1, 2, 4):
        known = [k - i * k // EPISODES for i in range(EPISODES)]  # steps until the first reset
        expected = [STEPS if cue in always else steps for cue, steps in zip(shown, known, strict=True)]
        assert use.returns[str(k)] == expected, k


def test_hidden_parts_are_read_from_the_state_of_other_episodes(use: MemoryUse) -> None:
    read = use.hidden
    assert list(read) == ["accuracy of cue", "R² of level"]
    assert read["accuracy of cue"][0] == 1
    assert read["R² of level"][0] > 0.99
    assert max(read["accuracy of cue"][1] - 0.4, read["R² of level"][1]) < 0.5


@pytest.mark.parametrize("core", dict.fromkeys(core for core, _ in CORES if core != "none"))
def test_a_reset_gives_the_initial_state_of_each_core(core: str, tmp_path: Path) -> None:
    train_in(tmp_path / "run", memory_run(core), env="Pendulum-v1", hide_obs=(2,), workers=0, stop_at_iteration=1)
    seeds: list[int | None] = []

    def change(envs: VectorEnv, step: int, states: np.ndarray) -> None:
        seeds.extend(handle.seed for handle in envs.handles if step == 0)
        reset(1, Recorded(list, {FIRST_INDEX: []}), envs, step, states)

    kept, without = (evaluate(tmp_path / "run", episodes=2, max_steps=9, change_states=one) for one in (None, change))
    policy = load_policy(tmp_path / "run")
    env = make_environment(policy.config)
    for seed, expected, other in zip(seeds, without.returns, kept.returns, strict=True):
        obs, total = env.reset(seed=seed)[0], 0.0
        for _ in range(9):
            obs, reward, *_ = env.step(policy.act(obs)[0])
            total += float(reward)
        assert total == expected != other
    env.close()


CASES: list[tuple[dict[str, list[float]], str]] = [
    (
        {"1": [40, 42], "2": [480, 482], "4": [300, 300], "8": [495, 497], KEPT: [499, 501]},
        "The return falls from 500.0 to 41.00 without memory; resets every 8 steps cost 1 % of the difference.",
    ),
    (
        {"1": [0, 0], "2": [5, 5], KEPT: [10, 10]},
        "The return falls from 10.00 to 0.000 without memory; resets every 2 steps cost 50 % of the difference.",
    ),
    ({"1": [8, 11], KEPT: [9, 9]}, "The return is 9.000 with memory and 9.500 without it, which may be chance."),
    (
        {"1": [20, 22], "2": [12, 12], KEPT: [10, 10]},
        "The return rises from 10.00 to 21.00 without memory; resets every 2 steps cost 18 % of the difference.",
    ),
]


@pytest.mark.parametrize(("returns", "sentence"), CASES)
def test_the_sentence(returns: dict[str, list[float]], sentence: str) -> None:
    assert MemoryUse(1, returns, {}).sentence == sentence


@pytest.mark.long
def test_the_command_prints_a_sentence_and_draws_a_picture_for_the_report(
    run_dir: Path, use: MemoryUse, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [run_dir, "--memory", "--trust", *TRUST, "--episodes", EPISODES]
    assert exit_code(command.main, words) == 0
    assert capsys.readouterr().out.splitlines()[0] == use.sentence
    assert (run_dir / "memory.png").read_bytes().startswith(b"\x89PNG")
    assert exit_code(command.main, [*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == dataclasses.asdict(use) | {"sentence": use.sentence}
    assert '<img alt="memory" src="data:image/png;base64,' in plot_runs(run_dir, out=tmp_path / "a.html").read_text()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"video": "a.mp4"}, "--video is of no use with --memory; leave it out"),
    ({"record": "a.npz"}, "--record is of no use with --memory; leave it out"),
    ({"episodes": 1}, "--episodes is 1; --memory needs at least 2"),
]


def test_a_picture_that_cannot_be_written_is_refused_before_the_first_step(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_dir / "memory.png").unlink(missing_ok=True)
    (run_dir / "memory.png").mkdir()
    assert exit_code(command.main, [run_dir, "--memory"]) == 2
    assert "memory.png is a directory" in capsys.readouterr().err
    (run_dir / "memory.png").rmdir()
    absent = run_dir.parent / "absent"
    assert exit_code(command.main, [absent, "--memory"]) == 2
    assert f"{absent}/config.json does not exist" in capsys.readouterr().err
    assert not absent.exists()


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_what_is_refused(arguments: dict[str, Any], message: str, run_dir: Path) -> None:
    with pytest.raises(ConfigError, match=f"^{message}$"):
        memory_use(run_dir, trust=TRUST, **arguments)


def test_a_policy_without_a_recurrent_core_is_refused(tmp_path: Path) -> None:
    train_in(tmp_path / "run", SIX_ITERATIONS, core="none", stop_at_iteration=1)
    with pytest.raises(ConfigError, match=r"run has no recurrent core, so no memory; name a run with a core$"):
        memory_use(tmp_path / "run")
