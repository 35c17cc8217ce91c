"""The objective of a run, from its rows of metrics.csv."""

from __future__ import annotations

from pathlib import Path

import pytest

from shmppo.config.train_config import TrainConfig
from shmppo.search.trial_run import RunResult, TrialRun

ROWS = """env_steps,return_mean_100,info/success,weights_hash
100,nan,nan,a
200,1,0.5,b
300,5,nan,c
400,9,1,d
"""


@pytest.mark.parametrize(("objective", "value"), [("last", 5.0), ("mean", 3.0), ("info/success", 0.5)])
def test_the_objective_reads_the_rows_up_to_the_rung(objective: str, value: float, tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(ROWS)
    assert TrialRun(0, TrainConfig(), 3, tmp_path, objective=objective).result() == RunResult(value, weights_hash="c")
    assert TrialRun(0, TrainConfig(), 5, tmp_path, objective=objective).result() is None


EVALUATIONS = """iteration,env_steps,eval/return,eval/info/success
2,200,7,0.25
3,300,6,nan
"""


def test_an_evaluation_at_the_rung_is_the_objective(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(ROWS)
    (tmp_path / "eval.csv").write_text(EVALUATIONS)

    def result(iterations: int, objective: str) -> RunResult | None:
        return TrialRun(0, TrainConfig(), iterations, tmp_path, objective=objective).result()

    assert result(2, "eval/info/success") == RunResult(0.25, weights_hash="b")
    assert result(3, "eval/return") == RunResult(6.0, weights_hash="c")
    assert "'no episode with eval/info/success has ended in 300 steps'" in repr(result(3, "eval/info/success"))
    assert result(1, "eval/return") is result(4, "eval/return") is None, "it was stopped before its evaluation"
