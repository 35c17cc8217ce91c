"""Runs with several agents: the same bits as any run, and what is counted and reported."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import rank_processes
from agent_environments import Crowd
from conftest import summary_of
from public_helpers import csv_rows, evaluation_rows, train_in, wait_for_the_check

from shmppo import load_policy, resume
from shmppo.config import trust
from shmppo.config.train_config import TrainConfig, load_config
from shmppo.errors import ConfigError
from shmppo.loggers.metrics import GLOSSARY
from shmppo.loggers.summary import summary_text
from shmppo.policies.evaluation import evaluate
from shmppo.runs.launch import train
from shmppo.tools.seeds import train_seeds
from shmppo.tools.verify import verify_run

BASE = TrainConfig(
    env="agent_environments:Crowd", num_envs=4, rollout_steps=24, seq_len=7, minibatches=2, epochs=2, hidden_size=8,
    encoder_sizes=(8,), grad_shards=2, workers=0, quiet=True, total_steps=4 * 24 * 6,
)  # fmt: skip
CASES = {
    "gru": dataclasses.replace(BASE, core="gru"),
    "gtrxl-masks": dataclasses.replace(
        BASE, env_kwargs={"masks": True}, action_masks=True, agent_id=True, core="gtrxl", attention_window=9,
        critic_state=True, separate_critic="all",
    ),
}  # fmt: skip


@pytest.mark.slow(reason="6 s")
def test_the_check_of_determinism_finds_a_run_exact_and_verify_agrees(background_check: None, tmp_path: Path) -> None:
    summary = train_in(tmp_path / "run", CASES["gtrxl-masks"], keep_every=2, callback=wait_for_the_check)
    assert (summary["exact"], summary["environment_check"]) == (True, "passed")
    assert verify_run(tmp_path / "run").equal


def test_one_agent_gives_the_hash_of_gymnasium(tmp_path: Path) -> None:
    hashes = [
        train_in(tmp_path / env[:4], BASE, env=env)["weights_sha256"]
        for env in ("agent_environments:Alone", "CartPole-v1")
    ]
    assert hashes[0] == hashes[1]


class Recorded(Crowd):
    """Records what each step of all instances in this process returns, and the number of its actions.

    The inspection before a run steps one environment once, which is left out.
    """

    steps: ClassVar[list[tuple[Crowd, dict[str, float], bool, int]]] = []

    def step(self, actions: dict[str, int]) -> Any:
        results = super().step(actions)
        self.steps.append((self, results[1], not self.agents, len(actions)))
        return results

    @classmethod
    def episodes(cls) -> tuple[list[dict[str, float]], list[int], int]:
        """Returns by agent and lengths of the episodes in the order of their ends, and the number of all actions.

        Steps at which no agent acts belong to the step before.
        """
        counts = Counter(env for env, *_ in cls.steps)
        running: dict[Crowd, list[tuple[dict[str, float], int]]] = {}
        returns, lengths, acted = [], [], 0
        for env, rewards, ended, actions in cls.steps:
            if counts[env] == 1:
                continue
            acted += actions
            running.setdefault(env, []).append((rewards, actions))
            if ended:
                steps = running.pop(env)
                lengths.append(sum(actions > 0 for _, actions in steps))
                returns.append({name: sum(step.get(name, 0.0) for step, _ in steps) for name in env.possible_agents})
        return returns, lengths, acted


def means_of(returns: list[dict[str, float]], lengths: list[int]) -> dict[str, float]:
    """The mean return of the team, of each agent, and the mean length."""
    by_agent = {f"info/return/{name}": np.mean([episode[name] for episode in returns]) for name in returns[0]}
    return {"return": np.mean([sum(episode.values()) for episode in returns]), "length": np.mean(lengths), **by_agent}


def test_statistics_are_those_of_the_recorded_steps(tmp_path: Path) -> None:
    Recorded.steps.clear()
    rows: list[dict[str, float]] = []
    run_dir = tmp_path / "run"
    summary = train_in(run_dir, CASES["gru"], env="test_agents:Recorded", callback=rows.append)
    returns, lengths, acted = Recorded.episodes()
    row = rows[-1]
    assert (row["episodes"], row["env_steps"], row["agent_steps"]) == (len(returns), 4 * 24 * 6, acted)
    assert (summary["env_steps"], summary["agent_steps"]) == (4 * 24 * 6, acted)
    expected = means_of(returns, lengths)
    names = {"return": "return_mean_100", "length": "length_mean_100"}
    assert {name: row[names.get(name, name)] for name in expected} == pytest.approx(expected)
    text = summary_text(load_config(run_dir), summary, run_dir)
    assert f"\nagent steps    {acted:,}\n" in text
    assert "\ninfo           return/walker_0 " in text
    assert csv_rows(run_dir / "metrics.csv")[0].keys() >= {*GLOSSARY, "agent_steps"}


def test_evaluations_are_those_of_the_recorded_steps(tmp_path: Path) -> None:
    options = {"env": "test_agents:Recorded", "eval_every": 3, "eval_episodes": 7, "keep_every": 3}
    config, trust = dataclasses.replace(CASES["gtrxl-masks"], **options), ("test_agents",)
    train_in(tmp_path / "0", config)
    train_in(tmp_path / "2", config, workers=2)
    found = evaluation_rows(tmp_path / "0")
    assert found == evaluation_rows(tmp_path / "2")
    assert len(found) == 2
    Recorded.steps.clear()
    result = evaluate(tmp_path / "2", episodes=7, seed=config.seed, trust=trust)
    returns, lengths, _ = Recorded.episodes()
    expected = means_of(returns, lengths)
    assert {"return": np.mean(result.returns), "length": np.mean(result.lengths), **result.info_means} == pytest.approx(
        expected
    )
    assert {name: found[-1][f"eval/{name}"] for name in expected} == pytest.approx(expected)
    stopped = evaluate(tmp_path / "2", episodes=2, max_steps=5, trust=trust)
    assert (stopped.lengths, stopped.stopped) == ([5, 5], 2)
    assert sum(stopped.info_means.values()) == pytest.approx(np.mean(stopped.returns))
    with pytest.raises(ConfigError, match=r"^--record does not support several agents; leave it out$"):
        evaluate(tmp_path / "2", record=tmp_path / "episodes.npz", trust=trust)


def test_a_policy_acts_for_an_agent_without_the_state_that_only_the_critic_sees(tmp_path: Path) -> None:
    train_in(tmp_path / "run", CASES["gtrxl-masks"], stop_at_iteration=1)
    policy = load_policy(tmp_path / "run")
    obs = {"obs": np.zeros(2, np.float32), "agent_id": np.eye(3, dtype=np.int8)[1], "action_mask": np.array([0, 1])}
    assert policy.act(obs)[0] == 1


def test_a_policy_is_evaluated_with_another_number_of_agents(tmp_path: Path) -> None:
    train_in(tmp_path / "run", CASES["gru"], stop_at_iteration=1)
    for count in (1, 2, 5):
        result = evaluate(tmp_path / "run", episodes=2, env_kwargs={"count": count})
        assert list(result.info) == [f"info/return/walker_{k}" for k in range(count)]
        assert np.sum(list(result.info.values()), axis=0).tolist() == pytest.approx(result.returns)


def test_environments_that_cannot_be_replayed_are_restarted(tmp_path: Path) -> None:
    config = dataclasses.replace(CASES["gru"], env="agent_environments:Unseeded", run_dir=str(tmp_path / "run"))
    assert train(dataclasses.replace(config, stop_at_iteration=2))["exact"]
    summary = resume(tmp_path / "run", workers=2)
    expected = {f"environment {e}: its episode could not be replayed and was restarted" for e in range(4)}
    reasons = set(summary["inexact_reasons"])  # an episode that has just begun is equal by chance
    assert reasons
    assert reasons <= expected
    assert summary["iterations"] == 6


@pytest.mark.slow(reason="about 40 s")
def test_runs_of_several_seeds_and_of_two_ranks(
    environments_importable: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = dataclasses.replace(CASES["gru"], run_dir=str(tmp_path / "run"))
    train_seeds(dataclasses.replace(config, stop_at_iteration=2), (2,), 1)
    with monkeypatch.context() as patch:
        patch.setattr(trust, "SAFE_MODULES", ())  # its process does not trust the modules of these tests
        train_seeds(config, (2,), 1)
    alone = train_in(tmp_path / "alone", config, seed=2)
    assert summary_of(tmp_path / "run-s2")["weights_sha256"] == alone["weights_sha256"]
    flags = ("--num-envs", "8", "--total-steps", 8 * 16 * 4, "--init-from", tmp_path / "run-s2", "--core", "gru")
    trusted = ("--trust", "agent_environments")
    rank_processes.finish(rank_processes.start(tmp_path / "ranks", *flags, *trusted, env="agent_environments:Crowd"))
    first, second = (summary_of(path) for path in rank_processes.directories(tmp_path / "ranks"))
    assert first["weights_sha256"] == second["weights_sha256"]
    assert first["initial_weights"]["weights_sha256"] == alone["weights_sha256"]
