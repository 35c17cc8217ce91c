"""Metrics from `info`: equal to those of a slow reference, and the same for all workers, kills, resumes, and ranks."""

from __future__ import annotations

import math
import shutil
from collections import Counter, deque
from pathlib import Path
from typing import Any, ClassVar

import pytest
from conftest import summary_of
from environments import Reach
from public_helpers import remove_receipt, run_fixture, slow_after, train_in, untimed_rows

from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError, EnvError
from shmppo.loggers.summary import summary_text
from shmppo.plotting.plot_curves import plot_curves
from shmppo.tools.verify import verify_run

KEYS = ("reward/distance:sum", "reward/control:mean", "far:max", "nothing")
RUN = TrainConfig(
    env="environments:Reach", env_kwargs={"rare": 0.05}, info_keys=KEYS, num_envs=6, rollout_steps=20, seq_len=8,
    minibatches=2, epochs=2, hidden_size=8, encoder_sizes=(8,), grad_shards=2, workers=0, quiet=True,
    total_steps=6 * 20 * 10,
)  # fmt: skip


class Recorded(Reach):
    """Records every step of all instances: (environment, whether the episode ended, reward, info)."""

    steps: ClassVar[list[tuple[Reach, bool, float, dict[str, Any]]]] = []

    def step(self, action: Any) -> Any:
        returned = super().step(action)
        self.steps.append((self, returned[2] or returned[3], returned[1], returned[4]))
        return returned

    @classmethod
    def expected(cls, steps: int) -> list[dict[str, float]]:
        """The metrics after each iteration of this number of steps, from lists of all infos of each episode."""
        last: deque[dict[str, float]] = deque(maxlen=100)
        episodes: dict[Reach, list[Any]] = {}
        rows = []
        counts = Counter(env for env, *_ in cls.steps)
        trained = [step for step in cls.steps if counts[step[0]] > 1]  # without the look at the environment before
        for number, (env, ended, reward, info) in enumerate(trained, 1):
            episodes.setdefault(env, []).append((reward, info))
            if ended:
                rewards, infos = zip(*episodes.pop(env), strict=True)
                far = [info["far"].item() for info in infos if "far" in info]
                control = [info["reward"]["control"] for info in infos]
                last.append({
                    "return_mean_100": sum(rewards),
                    "info/reward/distance": sum(info["reward"]["distance"] for info in infos),
                    "info/reward/control": sum(control) / len(control),
                    "info/far": max(far, default=math.nan),
                    "info/nothing": math.nan,
                    "info/is_success": float(infos[-1]["is_success"]),
                    "info/success": float(infos[-1].get("success", math.nan)),
                })  # fmt: skip
            if number % steps == 0:
                rows.append({})
                for name in last[0] if last else ():
                    known = [episode[name] for episode in last if not math.isnan(episode[name])]
                    rows[-1][name] = sum(known) / len(known) if known else math.nan
        return rows


def test_columns_are_those_of_a_slow_reference(tmp_path: Path) -> None:
    seen: list[dict[str, float]] = []
    train_in(tmp_path / "run", RUN, env="test_info_metrics:Recorded", callback=seen.append)
    rows, expected = untimed_rows(tmp_path / "run" / "metrics.csv"), Recorded.expected(RUN.rank_steps)
    assert len(rows) == len(expected) == 10
    late = next(i for i, row in enumerate(expected) if not math.isnan(row["info/success"]))
    assert 2 < late < 9
    assert 0 < expected[-1]["info/is_success"] < 1
    for i, (row, called, values) in enumerate(zip(rows, seen, expected, strict=True)):
        for name, value in values.items():
            assert float(row[name]) == pytest.approx(value, rel=1e-9, nan_ok=True), (i, name)
        assert [name for name in called if name.startswith("info/")] == [
            name for name in values if name.startswith("info/") and (name != "info/success" or i >= late)
        ]
    named = [f"info/{key.partition(':')[0]}" for key in KEYS]
    assert [name for name in rows[0] if name.startswith("info/")] == [*named, "info/is_success", "info/success"]


trained = run_fixture(RUN, workers=2, eval_every=4, eval_episodes=5, keep_every=5, track=("tensorboard",))
"""A run with TensorBoard and evaluations."""


def test_the_summary_has_the_last_means_and_names_what_is_missing(trained: Path) -> None:
    summary, last = summary_of(trained), untimed_rows(trained / "metrics.csv")[-1]
    assert {name: "nan" if mean is None else f"{mean:.10g}" for name, mean in summary["info"].items()} == {
        name: value for name, value in last.items() if name.startswith("info/")
    }
    text = summary_text(RUN, summary, trained)
    assert "missing        nothing: not in the info of the last 100 episodes" in text
    assert "reward/distance -" in text


@pytest.mark.long
def test_plot_and_verify_know_the_metrics(trained: Path, tmp_path: Path) -> None:
    plot_curves([trained], tmp_path / "curves.svg", metrics=["info/is_success", "eval/info/reward/distance"])
    assert "info/is_success" in (tmp_path / "curves.svg").read_text()
    with pytest.raises(ConfigError, match=r"--metric info/nothing: .* has fewer than two values"):
        plot_curves([trained], tmp_path / "curves.svg", metrics=["info/nothing"])
    assert verify_run(trained, from_iteration=0, iterations=2).equal, "before the column info/success"
    assert verify_run(trained, from_iteration=5, iterations=5, workers=1).equal
    other = shutil.copytree(trained, tmp_path / "other")
    true = untimed_rows(trained / "metrics.csv")[6]["info/is_success"]
    text = (other / "metrics.csv").read_text()
    (other / "metrics.csv").write_text("".join(line.replace(f",{true},", ",0.125,") for line in text.splitlines(True)))
    remove_receipt(other)
    verdict = verify_run(other, from_iteration=5, iterations=5)
    assert not verdict.equal
    assert "differs: info/is_success is " in verdict.text


@pytest.mark.parametrize("workers", slow_after(1, [0, 2], "3 s"))
def test_a_value_that_is_not_a_number_is_refused(workers: int, tmp_path: Path) -> None:
    message = "--info-keys wrong: in the info of environments:Reach, 'left' is not a number; name a key of numbers"
    with pytest.raises(EnvError, match=message):
        train_in(tmp_path / "run", RUN, env_kwargs={"wrong": "left"}, info_keys=("wrong",), workers=workers)
