"""The bookkeeping that all vector environments share: returns, hidden indices, and failures."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from agent_environments import Crowd
from environments import Counter
from gymnasium import spaces

from shmppo.config.train_config import TrainConfig
from shmppo.envs.backends import make_range
from shmppo.envs.inspection import inspect_task
from shmppo.envs.spec import EnvSpec
from shmppo.envs.sync_vector_env import SyncVectorEnv
from shmppo.envs.vector_env import EpisodeEnd, EpisodeToRestore
from shmppo.errors import EnvError
from shmppo.extensions.vector.vector_env import UserVectorEnv
from shmppo.spaces.action_spaces import distribution_for
from shmppo.spaces.observations import observation_spec

CONFIG = TrainConfig(env="CartPole-v1", hide_obs=(1,), num_envs=3, workers=0)
OBSERVATION = observation_spec(spaces.Box(-9.0, 9.0, (2,), np.float64), "here")
TASK = EnvSpec(OBSERVATION, distribution_for(spaces.Discrete(2), "here"))
Step = dict[str, Any]


class Scripted(gymnasium.vector.VectorEnv):
    """A vector environment whose `step` returns the next of some results, and whose `reset` notes what it resets."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": gymnasium.vector.AutoresetMode.DISABLED}
    single_action_space = spaces.Discrete(2)

    def __init__(self, steps: list[Step], first: float = 0.5) -> None:
        self.steps, self.first = list(steps), first
        self.resets: list[list[int]] = []

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        mask = np.ones(3, bool) if options is None else options["reset_mask"]
        self.resets.append(np.flatnonzero(mask).tolist())
        return np.full((3, 2), self.first), {}

    def step(self, actions: np.ndarray) -> tuple[Any, ...]:
        result = {"obs": np.ones((3, 2)), "reward": [0.0] * 3, "terminated": [False] * 3, "truncated": [False] * 3}
        result |= self.steps.pop(0)
        return (*map(np.asarray, result.values()), {})


class Skipping(UserVectorEnv):
    """Skips failed episodes, as those of Gymnasium do, and lists them."""

    def _skip_episode(self, i: int, error: EnvError) -> None:
        self.skipped = [*getattr(self, "skipped", ()), (i, error.env_index)]


def stepped(
    monkeypatch: pytest.MonkeyPatch, *steps: Step, kind: type[UserVectorEnv] = UserVectorEnv, first: float = 0.5
) -> tuple[Any, Scripted, list[Any]]:
    """Step a vector environment. Returns it, its script, and for each step the ended episodes, rewards, and flags."""
    script = Scripted(list(steps), first)
    monkeypatch.setattr("shmppo.extensions.vector.vector_env.open_vector_env", lambda *_: script)
    envs = kind(CONFIG, TASK, 0, 3)
    envs.reset_all(0)
    rewards, flags = np.zeros(3), np.zeros((2, 3), bool)
    return envs, script, [(envs.step([0, 0, 0], rewards, *flags), rewards.copy(), flags.copy()) for _ in steps]


def test_returns_and_lengths_are_counted_and_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [{"reward": [1.0, 0.1, 0.0]}, {"reward": [2.0, 0.2, 0.0], "terminated": [False, True, False]}]
    envs, script, ((nothing, *_), (ended, *_)) = stepped(monkeypatch, *steps)
    assert nothing == []
    (end,) = ended
    unended, *_ = stepped(monkeypatch, *[{"reward": step["reward"]} for step in steps])
    numbers = {"episode_return": 0.1 + 0.2, "length": 2, "number": 0, "crc": unended.hashes[1]}
    assert end == EpisodeEnd(1, end.final, terminated=True, failed=False, **numbers)
    assert unended.hashes[1] not in (0, *envs.hashes)
    assert (type(end.episode_return), type(end.length)) == (float, int), "they are written to files"
    assert (envs.returns.tolist(), envs.lengths.tolist()) == ([3.0, 0.0, 0.0], [2, 0, 2])
    assert (script.resets, [handle.episode for handle in envs.handles]) == ([[0, 1, 2], [1]], [0, 1, 0])


def test_hidden_indices_are_zero_and_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    step = {"obs": [[1.0, np.nan]] * 3, "truncated": [True, False, False]}
    envs, _, ((ended, *_),) = stepped(monkeypatch, step)
    np.testing.assert_array_equal(ended[0].final[0], [1.0, 0.0])
    np.testing.assert_array_equal(envs.obs[0], [[0.5, 0.0], [1.0, 0.0], [1.0, 0.0]])


class Licensed:
    """There are licenses for three environments: one for the look at the environment, and two for others."""

    made: ClassVar[list[Any]] = []
    closed: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        super().__init__()
        self.made.append(self)
        if len(self.made) == 4:
            raise OSError("no license")

    def close(self) -> None:
        self.closed.append(self)


class LicensedCounter(Licensed, Counter): ...


class LicensedCrowd(Licensed, Crowd): ...


@pytest.mark.parametrize(("name", "rows"), [("LicensedCounter", 1), ("LicensedCrowd", 3)])
def test_environments_are_closed_if_a_later_one_cannot_be_made(name: str, rows: int) -> None:
    Licensed.made.clear()
    Licensed.closed.clear()
    config = TrainConfig(env=f"test_vector_env:{name}", workers=0)
    task = inspect_task(config)
    assert Licensed.closed == Licensed.made[:1]
    with pytest.raises(EnvError, match=r"^environment 2: could not be made: OSError\('no license'\)"):
        make_range(dataclasses.replace(config, **task.derived), task, 0, 4 * rows)
    assert Licensed.closed[1:] == Licensed.made[2:0:-1]


def test_an_invalid_first_observation_is_an_error_of_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnvError, match="reset returned an invalid observation: obs is not finite"):
        stepped(monkeypatch, first=np.nan)


def test_failed_episodes_are_skipped_without_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    step = {"reward": [4.0, np.inf, 4.0], "obs": [[1, 1], [1, 1], [np.nan, 1]], "terminated": [False, True, True]}
    envs, script, ((ended, rewards, flags),) = stepped(monkeypatch, step, kind=Skipping)
    assert envs.skipped == [(1, 1), (2, 2)]
    assert ended == [EpisodeEnd(i, (), False, True, 0.0, 0) for i in (1, 2)]
    assert (rewards.tolist(), flags.tolist()) == ([4.0, 0.0, 0.0], [[False] * 3, [False, True, True]])
    assert (script.resets, envs.returns[0]) == ([[0, 1, 2]], 4.0)


def test_an_episode_that_ends_at_its_last_repeated_step_is_not_restored() -> None:
    config = dataclasses.replace(CONFIG, env="environments:Counter", hide_obs=())
    task = inspect_task(config)
    envs = SyncVectorEnv(config, task, 0, 1)
    envs.reset_all(0)
    for _ in range(3):
        envs.step([0], np.zeros(1), *np.zeros((2, 1), bool))
    episode = EpisodeToRestore(0, [0] * 3, envs.hashes[0], None)
    for length, restored in ((7, True), (3, False)):
        other = SyncVectorEnv(dataclasses.replace(config, env_kwargs={"length": length}), task, 0, 1)
        assert other.restore([episode], np.zeros(1, np.int64)) == [restored]
        assert other.handles[0].episode == (not restored)
