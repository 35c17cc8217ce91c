"""Self-play: opponents with earlier weights, reproducible in all respects, and evaluations against other players."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from conftest import sampled
from helpers import assert_refused
from public_helpers import csv_rows, exit_code, train_in

from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.errors import ConfigError
from shmppo.evaluate import main
from shmppo.extensions.agents.evaluation import round_robin_table
from shmppo.extensions.agents.feature import Agents
from shmppo.extensions.agents.players import FunctionOpponent
from shmppo.extensions.agents.vector_env import AgentsVectorEnv
from shmppo.lockstep.pool import Collect
from shmppo.models.actor_critic import build_model
from shmppo.parallel.process_group import SINGLE_PROCESS
from shmppo.parallel.shared_buffers import SharedBuffers
from shmppo.policies.evaluation import evaluate
from shmppo.runs.handle import RunHandle
from shmppo.sampling.actor import Actor
from shmppo.sampling.evaluation import EpisodePlayer

BASE = TrainConfig(
    env="agent_environments:Nim", action_masks=True, self_play=(), opponent_every=3, core="gru", num_envs=6,
    rollout_steps=32, seq_len=8, minibatches=2, epochs=2, hidden_size=16, encoder_sizes=(16,), grad_shards=2, workers=2,
    quiet=True, total_steps=6 * 32 * 8, check_determinism=0, info_keys=(),
)  # fmt: skip
RESOLVED = dataclasses.replace(BASE, agents=("one", "two"))
TRUST = ("agent_environments",)
CROWD = ("walker_0", "walker_1", "walker_2")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The summary of an undisturbed run without workers."""
    return train_in(tmp_path_factory.mktemp("self-play") / "run", BASE, workers=0)


def rows_of(summary: dict[str, Any]) -> list[dict[str, str]]:
    return csv_rows(Path(summary["run_dir"]) / "metrics.csv")


def test_a_callback_evaluates_against_the_opponent_of_evaluations(tmp_path: Path) -> None:
    found: list[tuple[float, float]] = []

    def callback(row: dict[str, float], run: RunHandle) -> None:
        found.append((row["eval/return"], fmean(run.evaluate(10).returns)))

    opponent = "agent_environments:take_one"
    config = dataclasses.replace(BASE, workers=0, seed=2, eval_every=1, eval_opponent=opponent)
    train_in(tmp_path / "run", config, callback=callback)
    assert len(set(found)) > 1
    assert [own for own, _ in found] == pytest.approx([handle for _, handle in found])
    result = evaluate(tmp_path / "run", opponent=opponent, episodes=10, seed=config.seed, trust=TRUST)
    assert fmean(result.returns) == pytest.approx(found[-1][0])


@pytest.mark.long
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("opponent", "exact"),
    [("take_one", True), ("tire", False), ("tire_later", True)],  # what changes later is not detected
)
def test_an_opponent_of_decisive_evaluations_that_remembers_makes_a_run_inexact(
    opponent: str, exact: bool, workers: int, tmp_path: Path
) -> None:
    own = {"eval_opponent": f"agent_environments:{opponent}", "eval_every": 2, "best_by": "eval/return"}
    summary = train_in(tmp_path / "run", BASE, workers=workers, **own)
    reason = "an episode of an evaluation had another result when it was repeated"
    assert summary["inexact_reasons"] == [reason] * (not exact)


def turns_of(config: TrainConfig) -> np.ndarray:
    """The rows in which an opponent acts at each step of the first rollout, if actions do not matter for that."""
    envs = AgentsVectorEnv(config, inspect_task(config), 0, config.rows)
    envs.reset_all(0)
    turns = []
    for _ in range(config.rollout_steps):
        turns.append(envs.opponent_active.copy())
        envs.step([0] * config.rows, np.zeros(config.rows), *np.zeros((2, config.rows), bool))
    envs.close()
    return np.array(turns)


def test_an_opponent_acts_as_the_policy_would_with_its_weights_and_statistics() -> None:
    """What the agents of `Crowd` observe, and when they act, does not depend on their actions."""
    config = dataclasses.replace(RESOLVED, env="agent_environments:Crowd", action_masks=False, agents=CROWD, workers=0)
    buffers, learner, pool = sampled(config, rollouts=0)
    generator, own = np.random.default_rng(0), buffers.published.added
    for array in own.values():
        array[:] = generator.normal(size=array.shape)
    turns = turns_of(config)
    pool.start(learner.model)
    pool.execute(Collect(0))
    for slot in range(4):
        alone, learner, pool = sampled(dataclasses.replace(config, self_play=None), rollouts=0)
        alone.published.weights[:] = own["opponents"][slot]
        alone.published.obs_mean[:], alone.published.obs_scale[:] = (
            own["opponent_mean"][slot],
            own["opponent_scale"][slot],
        )
        pool.start(learner.model)
        pool.execute(Collect(0))
        played = turns & (np.arange(config.rows) // len(CROWD) % 4 == slot)
        assert played.sum() > 20
        assert (buffers.rollout.joint_actions[played] == alone.rollout.joint_actions[played]).all()


def pool_of(config: TrainConfig, buffers: SharedBuffers, run_dir: Path) -> Agents:
    return Agents(config, inspect_task(config), buffers, SINGLE_PROCESS, run_dir)


def rated_pool(run_dir: Path) -> tuple[Agents, list[str]]:
    """A pool with a new opponent in each iteration, and the names of what it is told about a game."""
    config = dataclasses.replace(RESOLVED, workers=0, opponent_every=1)
    return pool_of(config, sampled(config)[0], run_dir), [key.metric for key in config.reported_info]


def fill(pool: Agents, iteration: int) -> None:
    with pool.around_rollout(iteration):
        pass


def test_the_pool_chooses_the_current_weights_and_earlier_ones(tmp_path: Path) -> None:
    config = dataclasses.replace(RESOLVED, workers=0, opponent_every=2)
    buffers, _, _ = sampled(config)
    members = pool_of(config, buffers, tmp_path)
    earlier = set()
    for iteration in range(8):
        buffers.published.weights[:] = iteration
        fill(members, iteration)
        newest = iteration // 2 * 2
        current = [weights[0] for weights in buffers.published.added["opponents"]]
        assert current[:2] == [newest, newest]
        assert len(current[2:]) == 2
        assert set(current[2:]) <= set(range(0, max(newest, 1), 2))
        earlier |= set(current[2:])
    assert len(earlier) > 1
    fill(members, 6)  # again, as after an error in a collection
    assert [weights[0] for weights in buffers.published.added["opponents"]] == current
    copy = pool_of(config, buffers, tmp_path)
    buffers.published.added["opponents"][:] = -1.0
    copy.load(json.loads(json.dumps(members.state())) | {"metrics": {}})
    assert [weights[0] for weights in buffers.published.added["opponents"]] == current
    other = pool_of(dataclasses.replace(config, seed=2), buffers, tmp_path)
    for iteration in range(8):
        fill(other, iteration)
    assert other.state()["opponents"]["chosen"] != members.state()["opponents"]["chosen"]


def test_the_rating_is_that_of_elo(tmp_path: Path) -> None:
    pool, metrics = rated_pool(tmp_path)
    fill(pool, 0)
    win, draw = (metrics.index(f"info/{name}") for name in ("win", "draw"))
    games = np.zeros((3, len(metrics)))
    games[0, win] = games[1, draw] = 1.0  # a win, a draw, and a loss
    pool.end_episodes([0, 2, 4], games)
    expected = 0.0
    for score in (1.0, 0.5, 0.0):
        expected += 4 * (score - 1 / (1 + 10 ** (-expected / 400)))
    assert pool.rating == pytest.approx(expected)


def test_the_rating_depends_on_that_of_the_opponent_in_the_slot(tmp_path: Path) -> None:
    """Against a rating that is lower by 400, the expected score is 10 / 11."""
    pool, metrics = rated_pool(tmp_path)
    for iteration, pool.rating in enumerate((0.0, 400.0)):
        fill(pool, iteration)
    win = np.array([[float(name == "info/win") for name in metrics]])
    for row, expected in ((4, 1 / 11), (0, 1 / 2)):
        pool.rating = 400.0
        pool.end_episodes([row], win)
        assert pool.rating == pytest.approx(400 + 4 * expected), row


def test_only_steps_of_the_policy_are_trained_and_seats_change(run: dict[str, Any]) -> None:
    rows = rows_of(run)
    assert 6 * 32 * 8 / 3 < int(rows[-1]["agent_steps"]) < 6 * 32 * 8 * 2 / 3
    assert float(rows[-1]["info/win"]) + float(rows[-1]["info/loss"]) == 1.0
    config = dataclasses.replace(RESOLVED, workers=0)
    task = inspect_task(config)
    envs = AgentsVectorEnv(config, task, 0, config.rows)
    seats = np.zeros((20, config.num_envs), bool)
    for episode in range(20):
        envs.reset_all(episode)
        acts, opponent_acts = (rows.reshape(-1, 2) for rows in (envs.active, envs.opponent_active))
        assert ((acts | opponent_acts).sum(axis=1) == 1).all()
        seats[episode] = opponent_acts[:, 0] | acts[:, 1]  # the opponent has the first seat
    assert ((seats.sum(axis=0) > 3) & (seats.sum(axis=0) < 17)).all()
    assert len({tuple(seats[:, n]) for n in range(config.num_envs)}) == config.num_envs
    envs.close()


def test_evaluations_against_other_players(run: dict[str, Any]) -> None:
    directory = run["run_dir"]
    perfect = evaluate(directory, opponent="agent_environments:play_perfectly", episodes=40, trust=TRUST)
    random = evaluate(directory, opponent="random", episodes=40, seat="one", trust=TRUST)
    assert random.info["info/return/one"] == random.returns
    itself = evaluate(directory, opponent=directory, episodes=40, trust=TRUST)
    wins = [np.mean(result.info["info/win"]) for result in (perfect, itself, random)]
    assert wins[0] < 0.3 < wins[2]
    assert 0.1 < wins[1] < 0.9
    assert {episode.episode_return for episode in random.episodes} == {-1.0, 1.0}
    sampled_games = evaluate(directory, opponent=directory, episodes=40, seat="one", stochastic=True, trust=TRUST)
    assert sampled_games.episodes != itself.episodes
    again = evaluate(directory, opponent="random", episodes=40, seat="one", trust=TRUST)
    assert again.episodes == random.episodes
    for fields, message in (
        ({"opponent": "nobody"}, "nobody"),
        ({"opponent": "random", "seat": "three"}, "--seat is three; it must be one of one, two, or any"),
        ({"seat": "one"}, "--seat needs an opponent; add --opponent, or leave out --seat"),
        (
            {"opponent": "agent_environments:play_nothing"},
            r"--opponent agent_environments:play_nothing returned None; it must return an action of Discrete\(\d\)",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            evaluate(directory, episodes=1, trust=TRUST, **fields)


def test_an_opponent_that_sees_more_or_less_is_refused(run: dict[str, Any], tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    train_in(other, BASE, hide_obs=(1,), stop_at_iteration=1, workers=0)
    for directory, opponent in ((run["run_dir"], other), (other, run["run_dir"])):
        with pytest.raises(ConfigError, match=r"^the opponent .* was trained with other agents or --hide-obs"):
            evaluate(directory, opponent=opponent, episodes=1, trust=TRUST)


def test_an_unknown_opponent_of_evaluations_is_refused_before_anything_starts(tmp_path: Path) -> None:
    changes = {"eval_every": 1, "eval_opponent": "boards:typo"}
    assert_refused(BASE, changes, "^--eval-opponent boards:typo: there is no module boards", tmp_path)
    changes = {"env": "CartPole-v1", "action_masks": False, "self_play": None, "stop_when": ("elo>=1",)}
    for fields in (changes, {"self_play": None, "stop_when": ("elo>=1",)}):
        with pytest.raises(ConfigError, match="--stop-when elo is not a metric of this run"):
            train_in(tmp_path / "run", BASE, **fields)


@pytest.mark.long
def test_a_round_robin_does_not_depend_on_the_order_of_the_runs_and_a_copy_is_as_good(
    run: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The seed gives one of the players the better seat more often."""
    flags = ["--round-robin", "--episodes", "9", "--trust", *TRUST]
    runs = [train_in(tmp_path / "other", BASE, total_steps=192)["run_dir"]]
    runs += [run["run_dir"], shutil.copytree(run["run_dir"], tmp_path / "copy")]

    def scores(*players: int) -> dict[int, list[str]]:
        capsys.readouterr()
        assert exit_code(main, [*(runs[k] for k in players), *flags]) == 0
        lines = capsys.readouterr().out.splitlines()[1:]
        return {k: sorted(line.split()[2:]) for k, line in zip(players, lines, strict=True)}

    assert scores(1, 2) == {1: ["-", "50.0", "50.0"], 2: ["-", "50.0", "50.0"]}
    assert scores(0, 1, 2) == scores(2, 0, 1)


def test_a_draw_of_a_round_robin_scores_half_a_win() -> None:
    shares = {(0, 1): {"win": 0.5, "draw": 0.25, "loss": 0.25}}
    rows = [line.split() for line in round_robin_table(["a", "b"], shares).splitlines()]
    assert rows[1:] == [["1", "a", "-", "62.5", "62.5"], ["2", "b", "37.5", "-", "37.5"]]


@pytest.mark.parametrize("self_play", [None, ("walker_0", "walker_2")])
def test_an_agent_that_joins_an_evaluation_again_begins_with_a_state_of_zero(
    self_play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = dataclasses.replace(
        BASE, env="agent_environments:Crowd", action_masks=False, agents=CROWD, self_play=self_play, workers=0
    )
    ended: list[list[int]] = []
    noted: list[int] = []
    states: list[np.ndarray] = []
    step, act = AgentsVectorEnv.step, Actor.act

    def recorded_step(envs: AgentsVectorEnv, *arguments: Any) -> Any:
        ends = step(envs, *arguments)
        ended.append([end.i for end in ends])
        return ends

    def recorded_act(actor: Actor, *arguments: Any) -> Any:
        states.append(actor.states.copy())
        return act(actor, *arguments)

    monkeypatch.setattr(AgentsVectorEnv, "step", recorded_step)
    monkeypatch.setattr(Actor, "act", recorded_act)
    monkeypatch.setattr(FunctionOpponent, "end", lambda opponent, row: noted.append(row))
    task = inspect_task(config)
    model, size = build_model(config, task.observation, task.distribution), task.observation.normalized_size
    player = EpisodePlayer(config, task, model)
    player.play(range(40), np.zeros(size, np.float32), np.ones(size, np.float32), None)
    assert sum(map(len, ended)) > 40 * 3, "some agents end more than once"
    for rows, after in zip(ended, states[1:], strict=False):
        assert not after[rows].any()
    assert noted == ([row for rows in ended for row in rows] if self_play else [])
