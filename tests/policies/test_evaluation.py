"""Evaluation: checkpoints, videos, endless episodes and progress."""

from __future__ import annotations

import dataclasses
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from environments import Counter
from public_helpers import SIX_ITERATIONS, exit_code, run_fixture, train_in

import shmppo.evaluate as command
from shmppo.errors import ConfigError
from shmppo.loggers.text import number
from shmppo.policies.evaluation import evaluate
from shmppo.policies.policy import trained_from
from shmppo.policies.video import VideoRecorder
from shmppo.runs.launch import train
from shmppo.storage.checkpoint import load_selected_checkpoint
from shmppo.utils.torch_utils import numeric_modes

SMALL = dataclasses.replace(SIX_ITERATIONS, workers=2)


run_dir = run_fixture(SMALL)


def gif(path: Path) -> np.ndarray:
    return pytest.importorskip("imageio.v3").imread(path)


def test_arguments_of_the_environment_replace_those_of_the_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    train_in(tmp_path / "run", SMALL, env="environments:Counter-v0", env_kwargs={"length": 6}, workers=0)
    assert set(evaluate(tmp_path / "run", episodes=2, trust=("environments",)).lengths) == {6}
    words = [tmp_path / "run", "--trust", "environments", "--json", "--env-kwargs", "length=9"]
    assert exit_code(command.main, words) == 0
    assert set(json.loads(capsys.readouterr().out)["lengths"]) == {9}
    with pytest.raises(ConfigError, match=r"Counter.*unexpected keyword argument .*it was given the arguments"):
        evaluate(tmp_path / "run", env_kwargs={"size": 3}, trust=("environments",))


@pytest.mark.parametrize(("frame", "given"), [(None, "NoneType"), (np.zeros((4, 5)), r"an array \[4, 5\]")])
def test_a_frame_that_is_no_color_image_is_named(frame: Any, given: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"env.render\(\) returned {given}; it must return an rgb_array frame"):
        VideoRecorder(tmp_path / "a.mp4").add(frame, 30)


@pytest.mark.long
def test_a_video_does_not_change_the_episodes(run_dir: Path, tmp_path: Path) -> None:
    plain = evaluate(run_dir, episodes=3)
    file = tmp_path / "new" / "a.gif"
    assert evaluate(run_dir, episodes=3, video=file) == plain
    frames = gif(file)
    assert frames.shape[1:] == (400, 600, 3)
    steps = sum(length // 2 + length % 2 for length in plain.lengths)  # 50 steps a second, so every second one
    assert 0.5 * steps < len(frames) <= steps, "equal frames in sequence are stored as one"
    assert (frames[0] != frames[-1]).any()


@pytest.mark.long
def test_an_mp4_can_be_read_again(run_dir: Path, tmp_path: Path) -> None:
    library = pytest.importorskip("imageio_ffmpeg")
    (length,) = evaluate(run_dir, episodes=1, video=tmp_path / "a.mp4").lengths
    assert library.count_frames_and_secs(str(tmp_path / "a.mp4"))[0] == (length + 1) // 2
    with closing(library.read_frames(str(tmp_path / "a.mp4"))) as frames:
        assert next(frames)["fps"] == 25, "a frame for every second of 50 steps a second"


def test_actions_are_sampled_with_the_seed_if_stochastic(run_dir: Path) -> None:
    sampled = evaluate(run_dir, episodes=10, stochastic=True)
    assert evaluate(run_dir, episodes=10, stochastic=True) == sampled
    assert evaluate(run_dir, episodes=10, seed=2, stochastic=True) != sampled
    assert evaluate(run_dir, episodes=10) != sampled


class Counted(Counter):
    """Counts the steps of all its instances, whose episodes have different lengths."""

    steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        self.length = 3 + (seed or 0) % 7
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        Counted.steps += 1
        return super().step(action)


def test_an_environment_is_not_stepped_after_its_episode(tmp_path: Path) -> None:
    train_in(tmp_path / "run", SMALL, env="test_evaluation:Counted", workers=0, stop_at_iteration=1)
    Counted.steps = 0
    result = evaluate(tmp_path / "run", episodes=8, trust=("test_evaluation",))
    assert len(set(result.lengths)) > 2
    checked = Counted.steps - sum(result.lengths)  # the look at the environment before takes a step
    assert (sum(result.returns), checked) == (sum(result.lengths), 1)


def test_each_checkpoint_can_be_evaluated(run_dir: Path) -> None:
    state = load_selected_checkpoint(run_dir)
    last = evaluate(run_dir, episodes=2)
    assert last.iteration == state["iteration"] == 6
    assert evaluate(run_dir, checkpoint=6, episodes=2) == evaluate(run_dir, checkpoint="6", episodes=2) == last
    assert evaluate(run_dir, checkpoint=run_dir / "checkpoint.pt", episodes=2) == last
    assert evaluate(str(run_dir), episodes=2) == last
    first = evaluate(run_dir, checkpoint="checkpoint-1.pt", episodes=2)
    assert first.iteration < 6
    assert first.returns != last.returns
    with pytest.raises(ConfigError, match=r"no checkpoint of iteration 7"):
        evaluate(run_dir, checkpoint=7)


def test_an_endless_episode_is_stopped(run_dir: Path) -> None:
    whole = evaluate(run_dir, episodes=6, stochastic=True)
    limit = sorted(whole.lengths)[2]
    result = evaluate(run_dir, episodes=6, stochastic=True, max_steps=limit)
    assert result.lengths == [min(length, limit) for length in whole.lengths]
    assert result.returns == result.lengths, "CartPole rewards 1 a step"
    assert [episode.stopped for episode in result.episodes] == [length > limit for length in whole.lengths]
    assert whole.stopped == 0 < result.stopped < 6
    for flag in ("episodes", "max_steps"):
        with pytest.raises(ConfigError, match=f"--{flag.replace('_', '-')} is 0; it must be at least 1"):
            evaluate(run_dir, **{flag: 0})


def test_torch_uses_one_thread_while_it_evaluates(run_dir: Path) -> None:
    seen = set()
    with numeric_modes(2):
        evaluate(run_dir, episodes=2, progress=lambda *counts: seen.add(torch.get_num_threads()))
        assert seen == {1}
        assert torch.get_num_threads() == 2


def test_the_command_names_the_checkpoint_and_writes_json(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = evaluate(run_dir, episodes=3, seed=5)

    def output(*flags: str) -> str:
        assert exit_code(command.main, [run_dir, "--episodes", 3, "--seed", 5, *flags]) == 0
        captured = capsys.readouterr()
        assert captured.err == "", "no progress where it would not be seen"
        return captured.out

    content = json.loads(output("--json", "--checkpoint", "6"))
    assert content["return_mean"] == pytest.approx(np.mean(result.returns))
    assert content["return_std"] == pytest.approx(np.std(result.returns))
    assert {name: content[name] for name in ("returns", "lengths", "episodes", "iteration", "checkpoint", "seed")} == {
        "returns": result.returns, "lengths": result.lengths, "episodes": 3, "iteration": 6, "checkpoint": "6",
        "seed": 5,
    }  # fmt: skip
    assert (content["stochastic"], content["stopped"]) == (False, 0)
    text = output()
    assert f"return {number(np.mean(result.returns))} ± {number(np.std(result.returns))} over 3 episodes" in text
    assert "checkpoint last (iteration 6), seed 5" in text
    assert "3 of 3 episodes were stopped after 2 steps (--max-steps)" in output("--max-steps", "2")


def test_an_environment_with_other_spaces_than_in_training_is_refused(run_dir: Path) -> None:
    state = load_selected_checkpoint(run_dir)
    state["config"] = json.dumps(json.loads(state["config"]) | {"env": "environments:FourNumbersThreeActions-v0"})
    with pytest.raises(ConfigError, match=r": \w+ of observation_space is .* in training; give it the spaces of"):
        trained_from(state, {})


def test_parts_that_only_the_critic_saw_are_needed(tmp_path: Path) -> None:
    split = "shmppo.envs.wrappers:SplitObservation(positions=[0, None, 2]{})"
    config = dataclasses.replace(
        SMALL, workers=0, total_steps=128, wrappers=(split.format(", rest=[None]"),), separate_critic="all",
        actor_obs=("positions",), run_dir=str(tmp_path / "run"),
    )  # fmt: skip
    train(config)
    state = load_selected_checkpoint(tmp_path / "run")
    state["config"] = json.dumps(json.loads(state["config"]) | {"wrappers": [split.format("")]})
    with pytest.raises(
        ConfigError, match=r"^--env CartPole-v1: observation_space\['rest'\] is missing; give it the spaces"
    ):
        trained_from(state, {})


@pytest.mark.parametrize("name", ["record.npz", "video.gif", "video.mp4"])
def test_files_that_cannot_be_written_are_refused_before_the_first_step(
    name: str, run_dir: Path, tmp_path: Path
) -> None:
    steps: list[int] = []
    (tmp_path / name).mkdir()
    for file, reason in ((Path("/proc") / name, "cannot be written: .*"), (tmp_path / name, "is a directory")):
        argument = {Path(name).stem: file}
        with pytest.raises(ConfigError, match=rf"^--{Path(name).stem} {file} {reason}; name (another|a) file"):
            evaluate(run_dir, episodes=1, progress=lambda ended, step: steps.append(step), **argument)
    assert not steps


def test_the_options_of_an_evaluation_are_those_of_the_last_iteration(run_dir: Path) -> None:
    schedule = {"9": {"level": 1}, "10": {"level": 2}}
    state = load_selected_checkpoint(run_dir) | {"reset_options": json.dumps(schedule)}
    assert trained_from(state).options == {"level": 2}
