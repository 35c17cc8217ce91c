"""Demonstrations: what a recording contains, the order in which it is played back, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from helpers import clone_of_recording, collected
from public_helpers import csv_rows, exit_code, refused, train_in

import shmppo.evaluate as command
from shmppo.config.flags import parse_start
from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.envs.vector_env import FIRST_INDEX, EpisodeToRestore
from shmppo.errors import ConfigError
from shmppo.extensions.teaching.demonstrations import DemonstrationRecorder, PlaybackVectorEnv, load_demonstrations
from shmppo.policies.evaluation import evaluate
from shmppo.runs.launch import resume, train
from shmppo.storage.checkpoint import BEST
from shmppo.utils.rng import episode_seed

TRAINED = Path(__file__).parents[2] / "examples" / "trained"
SMALL = TrainConfig(
    env="CartPole-v1", num_envs=5, rollout_steps=20, seq_len=5, minibatches=2, epochs=2, hidden_size=8,
    encoder_sizes=(8,), grad_shards=2, workers=0, quiet=True, total_steps=5 * 20 * 4,
)  # fmt: skip
ECHO = dataclasses.replace(SMALL, env="space_environments:Echo-v0", env_kwargs={"actions": "nested"})
SHAPED = dataclasses.replace(
    SMALL, env="space_environments:Shaped", env_kwargs={"space": "dict", "action": "box"}, encoder="mlp",
    squash_actions=True, prev_action=True,
)  # fmt: skip
CASES = {
    "cartpole": SMALL,
    "discrete-joint": dataclasses.replace(ECHO, env_kwargs={"actions": "multi-discrete"}),
    "joint-squashed": dataclasses.replace(ECHO, squash_actions=True),
    "dict": SHAPED,
    "mask": dataclasses.replace(SMALL, env="space_environments:Masked-v0", action_masks=True),
    "mujoco": dataclasses.replace(SMALL, env="HalfCheetah-v5"),
}


def loaded(config: TrainConfig) -> dict[str, np.ndarray]:
    return load_demonstrations(config, inspect_task(config))


@pytest.mark.parametrize("case", CASES)
def test_the_recorded_actions_repeat_the_episodes(case: str, tmp_path: Path) -> None:
    """Played again in a DemonstrationRecorder, they give the same file."""
    config = CASES[case]
    data = loaded(clone_of_recording(config, tmp_path / "a.npz", episodes=3, max_steps=30))
    task, env = inspect_task(config), DemonstrationRecorder(config, tmp_path / "b.npz")
    step = row = 0
    for k, length in enumerate(data["lengths"].tolist()):
        seed = episode_seed(config.seed, FIRST_INDEX + k, 0)
        obs, _ = env.reset(seed=seed)
        actions = task.distribution.to_env(data["actions"][step : step + length])
        for t in range(length + 1):
            for leaf in task.observation.leaves:
                stored = data[leaf.field][row + t]
                np.testing.assert_array_equal(stored, leaf.to_storage(leaf.extract(obs)).astype(leaf.dtype))
            if t < length:
                obs, reward, terminated, truncated, _ = env.step(actions[t])
                assert data["rewards"][step + t] == reward
                assert data["terminated"][step + t] == terminated
                assert data["truncated"][step + t] == (truncated or (t == 29 and not terminated))
        step, row = step + length, row + length + 1
    assert (step, row) == (len(data["actions"]), len(data[task.observation.leaves[0].field]))
    env.close()
    again = loaded(dataclasses.replace(config, objective="clone", demonstrations=str(tmp_path / "b.npz")))
    assert again.keys() == data.keys()
    for name in data.keys() - {"actions", "description"}:
        np.testing.assert_array_equal(again[name], data[name])
    taken = [task.distribution.to_env(one["actions"]) for one in (again, data)]
    for one, other in zip(*taken, strict=True):
        assert data_equivalence(one, other) or np.allclose(one, other, atol=1e-5)


@pytest.mark.long
def test_evaluate_records_its_episodes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file, run_dir = tmp_path / "new" / "a.npz", TRAINED / "cartpole"
    words = [run_dir, "--episodes", 70, "--record", file, "--json"]
    assert exit_code(command.main, words) == 0
    result = json.loads(capsys.readouterr().out)
    with np.load(file, allow_pickle=False) as arrays:
        data = dict(arrays)
    assert data["lengths"].tolist() == result["lengths"]  # two batches of environments
    ends = np.cumsum(data["lengths"])
    np.testing.assert_allclose(np.add.reduceat(data["rewards"], ends - data["lengths"]), result["returns"])
    about = json.loads(str(data["description"]))
    assert about["return_mean"] == result["return_mean"]
    assert (about["env"], about["env_kwargs"], about["hide_obs"]) == ("CartPole-v1", {}, [])
    assert about["action_space"] == "Discrete(2)"
    with pytest.raises(ConfigError, match=f"^--record {tmp_path} is a directory; name a file in it$"):
        evaluate(run_dir, record=tmp_path)
    assert evaluate(run_dir, episodes=2, record=tmp_path / "b.npz") == evaluate(run_dir, episodes=2)


@pytest.mark.parametrize("case", ["cartpole", "joint-squashed", "dict"])
def test_a_rollout_contains_the_recorded_steps(case: str, tmp_path: Path) -> None:
    config = clone_of_recording(CASES[case], tmp_path / "a.npz")
    data, rollout = loaded(config), collected(config, (0, 2), (2, 5)).rollout
    episode_of = np.repeat(np.arange(len(data["lengths"])), data["lengths"])
    leaves = [leaf.field for leaf in inspect_task(config).observation.leaves]
    rows = np.arange(len(episode_of)) + episode_of

    def steps(obs: list[np.ndarray], *rest: np.ndarray) -> set[bytes]:
        arrays = [*obs, *(array.astype(np.float64) for array in rest)]
        return {b"".join(array[k].tobytes() for array in arrays) for k in range(len(rest[0]))}

    names = ("actions", "rewards", "terminated", "truncated")
    recorded = steps([data[leaf][rows] for leaf in leaves], *(data[name] for name in names))
    parts = (rollout.actions, rollout.reward, rollout.terminated, rollout.truncated)
    flat = [array.reshape(100, *array.shape[2:]) for array in parts]
    found = steps([leaf.reshape(100, *leaf.shape[2:]) for leaf in rollout.obs], *flat)
    assert found <= recorded
    assert len(found) > 20


def test_an_episode_is_continued_where_it_was_unless_the_demonstrations_have_changed(tmp_path: Path) -> None:
    config = clone_of_recording(SMALL, tmp_path / "a.npz")
    task, progress = inspect_task(config), np.zeros(1, np.int64)
    outcome = np.zeros(2), np.zeros(2, bool), np.zeros(2, bool)
    envs = PlaybackVectorEnv(config, task, 0, 2)
    envs.reset_all(3)
    for _ in range(4):
        envs.step([None, None], *outcome)
    lost = [
        EpisodeToRestore(h.episode, [0] * n, c, None)
        for h, n, c in zip(envs.handles, envs.lengths, envs.hashes, strict=True)
    ]
    restored = PlaybackVectorEnv(config, task, 0, 2)
    assert restored.restore(lost, progress) == [True, True]
    for _ in range(60):
        np.testing.assert_array_equal(restored.obs[0], envs.obs[0])
        before = [handle.episode for handle in envs.handles]
        ended = [[end.i for end in one.step([None, None], *outcome)] for one in (envs, restored)]
        assert ended[0] == ended[1]
    assert before[0] > 3
    assert restored.restore([lost[0], lost[1]._replace(actions=None)], progress) == [True, False]
    assert restored.handles[1].episode == lost[1].number + 1
    clone_of_recording(dataclasses.replace(SMALL, seed=2), tmp_path / "a.npz")
    assert PlaybackVectorEnv(config, task, 0, 2).restore(lost, progress) == [False, False]


REFUSED: list[tuple[TrainConfig, dict[str, Any], str]] = [
    (SMALL, {"env": "Pendulum-v1"}, r"has observation_space Box\(.*\), but the run has Box\(.*\); use the same$"),
    (SMALL, {"prev_action": True}, r"has observation_space Box.*, but the run has Dict"),
    (SMALL, {"env": "environments:FourNumbersThreeActions-v0"},
     r"has (action_space Discrete\(2\), but the run has Discrete\(3\)|observation_space)"),
    (dataclasses.replace(SMALL, env="Pendulum-v1"), {"squash_actions": True},
     "has squash_actions False, but the run has True; use the same"),
    (
        dataclasses.replace(SMALL, hide_obs=(1, 3)),
        {"hide_obs": (1,)},
        r"was recorded without the observation indices \[3\]; add them to --hide-obs",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("recorded", "changes", "message"), REFUSED)
def test_other_spaces_and_options_are_refused_in_one_sentence(
    recorded: TrainConfig, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config = clone_of_recording(recorded, tmp_path / "a.npz")
    with refused(rf"^--demonstrations {tmp_path}/a\.npz {message}"):
        train_in(tmp_path / "run", config, **changes)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("content", [None, b"", b"x" * 99, b"PK\x03\x04", "empty", "pickle", "npy", "damaged"])
def test_a_file_that_is_no_recording_is_refused_in_one_sentence(content: Any, tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content == "npy":
        with open(file, "wb") as opened:
            np.save(opened, np.zeros(3))
    elif content == "damaged":
        clone_of_recording(SMALL, file)
        whole = file.read_bytes()
        file.write_bytes(whole[:100] + b"\xff" * 40 + whole[140:])
    elif content is not None:
        np.savez(file, **({} if content == "empty" else {"description": np.array([object()])}))
    config = dataclasses.replace(SMALL, objective="clone", demonstrations=str(file))
    with pytest.raises(ConfigError, match=rf"{file} cannot be read \(.*\); name a file that evaluate --record"):
        loaded(config)


def test_ranks_play_demonstrations_in_other_orders(tmp_path: Path) -> None:
    config = clone_of_recording(SMALL, tmp_path / "a.npz", episodes=20)
    task = inspect_task(config)

    def order(config: TrainConfig, low: int, high: int) -> list[list[list[float]]]:
        """The first observations of 20 episodes."""
        envs = PlaybackVectorEnv(config, task, low, high)
        return [envs.obs[0].tolist() for episode in range(20) if envs.reset_all(episode) is None]

    one = order(dataclasses.replace(config, num_envs=10), 5, 10)
    first, second = (order(dataclasses.replace(config, rank=rank, ranks=2), 0, 5) for rank in range(2))
    assert first != second == one


def test_other_demonstrations_make_a_resumed_run_inexact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = dataclasses.replace(clone_of_recording(SMALL, tmp_path / "a.npz"), demonstrations="a.npz", run_dir="run")
    assert train(dataclasses.replace(config, stop_at_iteration=2))["exact"]
    with np.load("a.npz") as file:
        arrays = dict(file)
    arrays["obs"][0] += 1
    np.savez("a.npz", **arrays)
    monkeypatch.chdir(os.sep)
    summary = resume(tmp_path / "run")
    (reason,) = summary["inexact_reasons"]
    assert reason == "an episode could not be continued, because --demonstrations has other content"
    assert summary["best_checkpoint"] is None, "the returns of the demonstrations say nothing about the policy"


@pytest.mark.long
def test_twenty_episodes_are_enough_to_clone_a_policy_and_to_continue_with_ppo(tmp_path: Path) -> None:
    file, clone = tmp_path / "a.npz", tmp_path / "clone"
    evaluate(TRAINED / "cartpole", episodes=20, record=file)
    config = TrainConfig(
        env="CartPole-v1", objective="clone", demonstrations=str(file), total_steps=40_960, seed=3, workers=0,
        eval_every=20, quiet=True, run_dir=str(clone),
    )  # fmt: skip
    summary = train(config)
    assert (summary["exact"], summary["best_by"], summary["best_checkpoint"]) == (True, "eval/return", BEST)
    file.unlink()  # only cloning needs it
    returns = evaluate(clone, episodes=20, seed=7).returns
    assert sum(returns) / 20 >= 400
    rows = csv_rows(clone / "metrics.csv")
    assert float(rows[-1]["policy_loss"]) < 0.5 * float(rows[0]["policy_loss"])
    assert {float(row["return_mean_100"]) for row in rows[5:]} == {500.0}
    assert 0 <= float(rows[-1]["approx_kl"]) < 0.1
    words = ["--init-from", str(clone), "--total-steps", "2048", "--workers", "0", "--run-dir", str(tmp_path / "ppo")]
    continued, _ = parse_start([*words, "--quiet"])
    assert (continued.objective, continued.demonstrations, continued.hidden_indices) == ("clip", None, ())
    assert train(continued)["return_mean_100"] != 500.0
