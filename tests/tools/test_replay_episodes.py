"""`python -m shmppo.replay RUN_DIR --episode …`: the same episodes as in training, their files, and wrong selectors."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import CASES, DISTURBANCES, configuration, disturb, undisturbed
from public_helpers import SIX_ITERATIONS, csv_rows, exit_code, remove_receipt, run_fixture

from shmppo import replay, train
from shmppo.config.train_config import load_config
from shmppo.config.trust import modules_of
from shmppo.envs.factory import make_environment
from shmppo.errors import ConfigError
from shmppo.policies.video import VideoRecorder
from shmppo.runs.episode_record import EpisodeRecorder
from shmppo.tools.replay_episodes import NEWEST, replay_episodes, select

trained = run_fixture(SIX_ITERATIONS, hide_obs=(1, 3), keep_every=2, prev_action=True)
"""A run of 6 iterations of 32 steps that kept the checkpoints of 2, 4, and 6. The tests do not change it."""


@pytest.fixture
def gray_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every environment render, also those without a method for it."""

    def film_step(handle: object, video: VideoRecorder, env_id: str, step: int) -> None:
        if step < 2:
            video.add(np.full((16, 16, 3), 128, np.uint8), 30)

    monkeypatch.setattr("shmppo.tools.replay_episodes.film_step", film_step)
    monkeypatch.setattr(
        "shmppo.envs.sync_vector_env.make_environment",
        lambda config, render_mode, number: make_environment(config, None, number),
    )


@pytest.fixture
def checked_states(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Compare the recomputed recurrent states with those that the rollout stores. Returns how many they were."""
    counts: list[int] = []
    compute = EpisodeRecorder._states_of

    def states_of(self: EpisodeRecorder, n: int, iteration: int) -> np.ndarray:
        states, (rollout, sequences) = compute(self, n, iteration), (self._buffers.rollout, self._buffers.minibatches)
        used = sequences.sequences[: sequences.bounds[0, -1, -1]]
        stored = [(first, slot) for first, column, _, slot in used.tolist() if column == n and slot >= 0]
        for first, slot in stored:
            np.testing.assert_array_equal(states[first], rollout.sequence_state[slot, n])
        counts.append(len(stored))
        return states

    monkeypatch.setattr(EpisodeRecorder, "_states_of", states_of)
    return counts


def names(rows: list[dict[str, Any]]) -> list[str]:
    return [f"{row['environment']:.0f}-{row['episode']:.0f}" for row in rows]


def replay_some(run_dir: Path, out: Path, *, video: bool = True) -> None:
    """Replay random episodes, and compare them with their rows of episodes.csv."""
    rows = csv_rows(run_dir / "episodes.csv")
    rows = random.Random(0).sample(rows, min(3, len(rows)))
    assert rows
    selectors = [f"{row['environment']}:{row['episode']}" for row in rows]
    page = replay_episodes(run_dir, selectors, out, trust=modules_of(load_config(run_dir).to_json()))
    for row in rows:
        steps = np.load(out / f"{row['environment']}-{row['episode']}.npz")
        assert {len(steps[name]) for name in steps} == {int(row["length"])}
        assert f"{sum(steps['reward'].tolist()):.10g}" == row["return"]
        assert steps["iteration"][-1] == int(row["iteration"])
    assert page.read_text().count("<video") == video * len(rows), "the videos have the checksums of the episodes"


def test_the_page_the_arrays_and_the_videos_of_episodes(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], checked_states: list[int]
) -> None:
    before = {path.name: path.read_bytes() for path in trained.iterdir()}
    out = tmp_path / "new" / "out"
    assert exit_code(replay.main, [trained, "--episode", "worst:1", "best:1", "--out", out]) == 0
    rows = select(trained / "episodes.csv", ["worst:1", "best:1"])
    text = capsys.readouterr().out
    assert text.startswith("iterations to execute again: ")
    assert text.endswith(f"wrote {out / 'index.html'}\n")
    assert {path.name for path in out.iterdir()} == {"index.html"} | {
        f"{name}.{suffix}" for name in names(rows) for suffix in ("npz", "mp4")
    }
    page = (out / "index.html").read_text()
    assert all(f"<h2>Episode {name}</h2>" in page for name in names(rows))
    assert (page.count("<video"), page.count("<svg")) == (len(rows), 3 * len(rows))
    assert 'src="http' not in page
    steps = np.load(out / f"{names(rows)[0]}.npz")
    length = int(rows[0]["length"])
    assert {name: steps[name].shape for name in steps} == {
        "obs": (length, 4), "prev_action": (length, 2), "actions": (length, 1), "reward": (length,),
        "log_prob": (length, 1), "value": (length,), "advantage": (length,), "iteration": (length,),
        "state": (length, 32),
    }  # fmt: skip
    assert not steps["obs"][:, [1, 3]].any(), "the policy does not see the velocities"
    assert not steps["state"][0].any()
    assert steps["state"][1:].any(axis=1).all()
    assert sum(checked_states) > 10
    assert {path.name: path.read_bytes() for path in trained.iterdir()} == before


FAST = ("lstm", "schedule")
LONG = ("image", "own-encoder", "snapshots", "per-dimension-plain", "gtrxl-plain", "clone", "vector", "failed-episodes")
WITHOUT_VIDEO = ("clone", "vector-that-resets-itself")
"""The episodes are recorded ones, or those of an environment that cannot repeat them."""
OTHERS = {*CASES} - {
    *FAST, *LONG, "agents", "self-play", "pettingzoo",  # several agents
    "feed-forward-plain", "lmu-plain", "bf16", "torch", "few-sequences", "device",  # no episode ends
}  # fmt: skip


@pytest.mark.usefixtures("gray_frames")
@pytest.mark.parametrize(
    "case",
    [
        *FAST,
        *(pytest.param(case, marks=pytest.mark.long) for case in LONG),
        *(pytest.param(case, marks=pytest.mark.slow(reason="a minute together")) for case in sorted(OTHERS)),
    ],
)
def test_episodes_of_training_are_repeated(
    case: str, shared_directory: Path, tmp_path: Path, checked_states: list[int]
) -> None:
    configuration(case, tmp_path / "unused")  # its packages must be installed
    replay_some(undisturbed(case, shared_directory), tmp_path / "out", video=case not in WITHOUT_VIDEO)
    assert checked_states


@pytest.mark.usefixtures("gray_frames")
@pytest.mark.parametrize(
    ("case", "how"),
    [
        ("lstm", "several"),
        *(
            pytest.param(case, how, marks=pytest.mark.long)
            for case in ("snapshots", "image", "per-dimension-plain")
            for how in ("a stop without workers", "several")
        ),
    ],
)
def test_episodes_of_a_run_that_was_disturbed_are_repeated(case: str, how: str, tmp_path: Path) -> None:
    disturb(case, DISTURBANCES[how], tmp_path / "run")
    replay_some(tmp_path / "run", tmp_path / "out")


@pytest.mark.long
def test_episodes_of_a_branch_are_repeated_unless_they_may_have_begun_before_it(tmp_path: Path) -> None:
    parent, branch = tmp_path / "parent", tmp_path / "branch"
    train(configuration("lstm", parent, workers=0, stop_at_iteration=1))
    disturb("lstm", DISTURBANCES["no worker"], branch, parent, learning_rate=3e-3)
    page = replay_episodes(branch, ["iteration=4"], tmp_path / "out")
    assert "<h2>Episode" in page.read_text()
    with pytest.raises(ConfigError, match=r"of which 1 belong to .*parent, and no checkpoint of its own before"):
        replay_episodes(branch, ["iteration=1"], tmp_path / "out")


def test_an_episode_that_is_not_repeated_is_named(trained: Path, tmp_path: Path) -> None:
    run_dir = Path(shutil.copytree(trained, tmp_path / "run"))
    path = run_dir / "episodes.csv"
    row = csv_rows(path)[-1]
    path.write_text(path.read_text().replace(f",{row['crc']},", ",17,"))
    remove_receipt(run_dir)
    message = (
        rf"^this machine does not repeat episode {row['episode']} of environment {row['environment']}: crc is "
        rf"{row['crc']}, but episodes.csv has 17; see what shmppo verify says about the run$"
    )
    with pytest.raises(ConfigError, match=message):
        replay_episodes(run_dir, [f"{row['environment']}:{row['episode']}"], tmp_path / "out")


@pytest.mark.long
def test_an_environment_that_cannot_be_rendered_has_no_video(
    shared_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = replay_episodes(undisturbed("schedule", shared_directory), ["best:1"], tmp_path / "out", ["schedules"])
    assert "no video of " in capsys.readouterr().out
    assert re.search(r"<p>no video: environment \d: could not be made: TypeError\(.*render_mode", page.read_text())


def test_selectors(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trained / "episodes.csv"
    rows = [{name: float(value) for name, value in row.items()} for row in csv_rows(path)]
    returns = sorted(row["return"] for row in rows)
    assert [row["return"] for row in select(path, ["worst:3"])] == returns[:3]
    assert [row["return"] for row in select(path, ["best:3"])] == returns[:-4:-1]
    assert names(select(path, ["2:1", "0:0", "2:1"])) == ["2-1", "0-0"]
    newest = [name for name in reversed(names(rows)) if name.startswith("0-")]
    assert names(select(path, ["environment=0"])) == newest[:NEWEST]
    expected = f"--episode environment=0 matches {len(newest)} episodes; the newest {NEWEST} are replayed\n"
    assert capsys.readouterr().out == (expected if len(newest) > NEWEST else "")


@pytest.mark.parametrize(
    "selector", ["3:999", "first", "best:x", "best:0", "worst:-1", "color=3", "iteration:2", "=", "best:1=2"]
)
def test_a_wrong_selector_is_refused_before_anything_is_executed(
    selector: str, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(replay.main, [trained, "--episode", selector]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(
        f"error: --episode {selector} matches no row of {trained / 'episodes.csv'}; use ENV:"
    )
    assert "COLUMN=VALUE (iteration 1 … 6, environment 0 … 3, episode 0 … " in captured.err


def test_a_run_without_a_selector_and_a_directory_without_a_run(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(replay.main, [trained]) == 2
    assert "choose some of them, for example --episode worst:3" in capsys.readouterr().err
    assert exit_code(replay.main, [tmp_path, "--episode", "best:1"]) == 2
    assert "contains no checkpoint; name the directory of a run" in capsys.readouterr().err


def test_several_agents_are_refused(shared_directory: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has several ranks, or columns that can be idle"):
        replay_episodes(undisturbed("self-play", shared_directory), ["best:1"], tmp_path / "out")
