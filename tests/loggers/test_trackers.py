"""Trackers: the numbers of metrics.csv in groups, resumed runs, and libraries that are not installed."""

from __future__ import annotations

import dataclasses
import functools
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from public_helpers import SIX_ITERATIONS, csv_rows, train_in

from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError
from shmppo.loggers.metrics import HASHES, tracker_name
from shmppo.loggers.trackers import LoggerList, TensorBoard, WeightsAndBiases, make_trackers
from shmppo.runs.launch import resume, train

SMALL = dataclasses.replace(SIX_ITERATIONS, checkpoint_every=2)


def rows_of(run_dir: Path) -> list[dict[str, float]]:
    numbers = [{k: v for k, v in row.items() if k not in HASHES} for row in csv_rows(run_dir / "metrics.csv")]
    return [{name: float(value) for name, value in row.items()} for row in numbers]


def test_tensorboard_shows_the_columns_of_metrics_csv_without_repeated_iterations(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run_dir = tmp_path / "run"

    def fail(row: dict[str, float]) -> None:
        if row["iteration"] == 3:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        train_in(run_dir, SMALL, track=("tensorboard",), callback=fail)
    resume(run_dir)  # from iteration 2: the row of iteration 3 is written once more
    rows = rows_of(run_dir)
    events = accumulator.EventAccumulator(str(run_dir / "tensorboard"))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    zero = {name for name in rows[0] if all(row[name] == 0 for row in rows)}
    assert {"failed_episodes", "entropy_coef", "evaluation_seconds"} <= zero
    others = {tracker_name(name) for name in rows[0].keys() - zero} - {"iteration", "env_steps"}
    assert others - {"losses/explained_variance"} <= tags
    assert not {tracker_name(name) for name in zero} & tags
    for tag in ("policy/approx_kl", "policy/learning_rate", "rollout/return_mean_100", "time/wall_seconds"):
        scalars, name = events.Scalars(tag), tag.partition("/")[2]
        assert [scalar.step for scalar in scalars] == [row["env_steps"] for row in rows if row[name] == row[name]]
        assert [scalar.value for scalar in scalars] == pytest.approx(
            [row[name] for row in rows if row[name] == row[name]]
        )
    assert "_hparams_/session_start_info" in events.summary_metadata
    (text,) = {event.tensor_proto.string_val[0].decode() for event in events.Tensors("configuration/text_summary")}
    assert "    env: CartPole-v1\n" in text


def test_a_curve_of_returns_begins_with_a_return_of_0(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    tracker, points = TensorBoard(), []
    tracker.start(tmp_path, SMALL.to_json(), 0)
    tracker._writer.add_scalar = lambda name, value, step: points.append((name, value, step))
    for step in (1, 2, 3):
        tracker.log({"env_steps": step, "return_mean_100": 0.0, "failed_episodes": float(step == 2)})
    tracker.finish(None)
    assert [(step, value) for name, value, step in points if name.endswith("return_mean_100")] == [
        (1, 0),
        (2, 0),
        (3, 0),
    ]
    assert [(step, value) for name, value, step in points if name.endswith("failed_episodes")] == [(2, 1), (3, 0)]


def test_a_logger_that_has_not_started_does_not_finish() -> None:
    calls: list[object] = []
    logger: Any = SimpleNamespace(finish=calls.append)
    LoggerList(loggers=[logger]).finish(None)
    assert calls == []


@pytest.mark.parametrize("callback", [[print], object(), lambda a, b, c: None])
def test_a_callback_that_cannot_be_called_is_refused(callback: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^`callback` must be a function of \(row\) or \(row, run\); to use several"):
        train_in(tmp_path / "run", SMALL, callback=callback)
    assert not (tmp_path / "run").exists()


def test_a_metric_is_shown_in_its_group() -> None:
    assert [tracker_name(name) for name in ("env_steps", "entropy", "gradient_seconds", "eval/return")] == [
        "env_steps", "losses/entropy", "time/gradient_seconds", "eval/return",
    ]  # fmt: skip


class FakeWandb:
    """The part of the library that the tracker calls. It stores what it receives."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}
        self.rows: list[dict[str, float]] = []
        self.exit_code: int | None = None

    def init(self, **options: Any) -> FakeWandb:
        self.options = options
        return self

    def Settings(self, **options: Any) -> dict[str, Any]:  # noqa: N802 (the name in the library)
        return options

    def define_metric(self, name: str, step_metric: str) -> None:
        assert (name, step_metric) == ("*", "env_steps")

    def log(self, row: dict[str, float]) -> None:
        self.rows.append(row)

    def finish(self, exit_code: int) -> None:
        self.exit_code = exit_code


def tracked(monkeypatch: pytest.MonkeyPatch, run_dir: Path, summary: dict[str, Any] | None) -> FakeWandb:
    """Log one row with a fake library, and finish."""
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)  # type: ignore[arg-type]
    tracker = WeightsAndBiases()
    tracker.start(run_dir, dataclasses.replace(SMALL, track=("wandb",)).to_json(), 0)
    tracker.log({"iteration": 1, "env_steps": 8, "approx_kl": 0.5, "eval/return": 2.0})
    tracker.finish(summary)
    return fake


def test_wandb_gets_a_project_and_a_name_that_its_variables_override(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tracked(monkeypatch, tmp_path / "run", {"iterations": 1})
    assert (fake.options["project"], fake.options["name"]) == ("shmppo", "run")
    assert not {"group", "tags"} & set(fake.options), "the library reads WANDB_RUN_GROUP and WANDB_TAGS itself"
    assert fake.rows == [{"iteration": 1, "env_steps": 8, "policy/approx_kl": 0.5, "eval/return": 2.0}]
    assert fake.exit_code == 0
    monkeypatch.setenv("WANDB_PROJECT", "p")
    monkeypatch.setenv("WANDB_NAME", "n")
    fake = tracked(monkeypatch, tmp_path / "run", None)
    assert (fake.options["project"], fake.options["name"]) == ("p", "n")
    assert fake.exit_code == 1, "the run has failed"


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_tracker_that_is_not_installed_is_refused_before_anything_starts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    config = TrainConfig(track=(name,), run_dir=str(tmp_path / "run"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=rf"--track {name} needs the library {name}; pip install 'shmppo\[{name}\]'"):
        make_trackers(config)
    with pytest.raises(ConfigError):
        train(config)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("callback", "expected"),
    [
        (lambda row: row, {}),
        (lambda row, limit=475: limit, 475),
        (lambda row, run: run, "run"),
        (lambda row, run=None: run, "run"),
        (lambda row, other: other, "run"),
        (lambda *arguments: len(arguments) == 2, True),
        (lambda row, *, limit=1: limit, 1),
        (lambda row, *, run=None: run, "run"),
    ],
)
def test_a_callback_gets_the_run_unless_its_second_parameter_has_a_default(callback: Any, expected: Any) -> None:
    got: list[Any] = []

    @functools.wraps(callback)
    def recorded(*arguments: Any, **named: Any) -> None:
        got.append(callback(*arguments, **named))

    LoggerList(callback=recorded).asks_to_stop({}, "run")
    assert got == [expected]
