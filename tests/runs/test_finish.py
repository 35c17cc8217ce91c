"""A run that ends early after its last iteration: it is resumed for its last evaluation and its summary."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from public_helpers import SIX_ITERATIONS as BASE
from public_helpers import contents, untimed_rows

from shmppo import resume, train
from shmppo.errors import ConfigError
from shmppo.lockstep.learner import Learner
from shmppo.loggers.trackers import Row
from shmppo.runs.evaluation import Evaluations
from shmppo.runs.outputs import Outputs
from shmppo.tools.run_process import RunProcess


@pytest.mark.parametrize("ends_by", ["length", "condition"])
@pytest.mark.parametrize("when", ["before the evaluation", "before the summary", "after the summary"])
def test_a_run_that_ends_early_after_its_last_iteration_can_be_finished(
    when: str, ends_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its evaluations depend on the options of its last iteration."""
    config = dataclasses.replace(
        BASE, env="schedules:Leveled", env_schedule="schedules:levels", eval_every=4, eval_episodes=2,
        run_dir=str(tmp_path / "run"),
    )  # fmt: skip
    if ends_by == "condition":
        config = dataclasses.replace(config, total_steps=2 * BASE.total_steps, stop_when=("iteration>=6",))
    whole = train(dataclasses.replace(config, run_dir=str(tmp_path / "whole")))
    write, evaluate = Outputs.write_summary, Evaluations.evaluate

    def stop(at: str) -> None:
        if when == at:
            raise KeyboardInterrupt

    def written(outputs: Outputs, summary: dict[str, Any]) -> None:
        if summary["error"] is None:
            stop("before the summary")
        write(outputs, summary)
        if summary["error"] is None:
            stop("after the summary")

    def evaluated(evaluations: Evaluations, learner: Learner, *arguments: Any) -> Row:
        if arguments[-1] == 6:
            stop("before the evaluation")
        return evaluate(evaluations, learner, *arguments)

    monkeypatch.setattr(Outputs, "write_summary", written)
    monkeypatch.setattr(Evaluations, "evaluate", evaluated)
    with pytest.raises(KeyboardInterrupt):
        train(config, callback=lambda row, run: run.save("own"))
    monkeypatch.undo()
    assert not RunProcess(config, tmp_path / "run").finished
    before = contents(tmp_path / "run")
    with pytest.raises(ConfigError, match="has finished 6 iterations, 3 were asked for"):
        resume(tmp_path / "run", stop_at_iteration=3, trust="schedules")
    assert contents(tmp_path / "run") == before
    summary = resume(tmp_path / "run", trust="schedules")
    assert (summary["error"], summary["stop_reason"]) == (None, whole["stop_reason"])
    assert summary["iterations"] == 6
    assert (summary["weights_sha256"], summary["best_value"]) == (whole["weights_sha256"], whole["best_value"])
    for name in ("metrics.csv", "eval.csv"):
        assert untimed_rows(tmp_path / "run" / name) == untimed_rows(tmp_path / "whole" / name)
    text = "has finished 6 iterations, 6 were" if ends_by == "length" else "has ended, because iteration>=6 holds"
    with pytest.raises(ConfigError, match=text):
        resume(tmp_path / "run", trust="schedules")


def test_a_pause_leaves_no_evaluation_that_an_undisturbed_run_lacks(tmp_path: Path) -> None:
    config = dataclasses.replace(BASE, eval_every=2, eval_episodes=2)
    train(dataclasses.replace(config, run_dir=str(tmp_path / "whole")))
    train(dataclasses.replace(config, run_dir=str(tmp_path / "run"), stop_at_iteration=3))
    assert len(untimed_rows(tmp_path / "run" / "eval.csv")) == 2, "of iteration 2 and of the pause"
    resume(tmp_path / "run", stop_at_iteration=4)
    resume(tmp_path / "run", stop_at_iteration=None)
    assert untimed_rows(tmp_path / "run" / "eval.csv") == untimed_rows(tmp_path / "whole" / "eval.csv")
