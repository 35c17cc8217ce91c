"""Runs of environments that are no functions of their seeds: the summary says that they are not exact."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from public_helpers import slow_after, summary_of, wait_for_the_check

from shmppo import TrainConfig, resume, train

pytestmark = pytest.mark.usefixtures("background_check")
SMALL = TrainConfig(
    env="CartPole-v1", num_envs=4, rollout_steps=16, seq_len=8, minibatches=2, hidden_size=8, workers=0,
    total_steps=4 * 64, quiet=True,
)  # fmt: skip
DIFFERS = "the environment is not a function of its seed and its actions: observation[2] differs at step "
STRING_SET = f"{DIFFERS}1 of episode 0"


@pytest.mark.parametrize("workers", slow_after(1, [0, 2], "8 s"))
def test_a_run_with_hidden_state_is_not_exact_and_stays_so(
    workers: int, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    config = dataclasses.replace(SMALL, env="hidden_state:StringSet", workers=workers, quiet=False)
    summary = train(dataclasses.replace(config, run_dir=str(run_dir)), callback=wait_for_the_check)
    assert (summary["exact"], summary["inexact_reasons"]) == (False, [STRING_SET])
    assert summary_of(run_dir)["inexact_reasons"] == [STRING_SET]
    assert (run_dir / "run.log").read_text().count(f"WARNING not exact: {STRING_SET}") == 1
    assert capfd.readouterr().out.count(f"warning: not exact: {STRING_SET}") == 1
    summary = resume(run_dir, total_steps=6 * 64, anneal_steps=4 * 64, quiet=True)
    assert summary["inexact_reasons"][0] == STRING_SET
    log = (run_dir / "run.log").read_text()
    assert log.count(STRING_SET) == 1, "it is not checked again"
    assert "was not checked" not in log


@pytest.mark.slow(reason="about 8 s")
def test_a_history_that_a_resume_does_not_restore_is_found(tmp_path: Path) -> None:
    """The observations that tell whether an episode was restored are equal. A later one differs."""
    config = dataclasses.replace(SMALL, env="hidden_state:LateHistory", run_dir=str(tmp_path / "run"))
    train(dataclasses.replace(config, stop_at_iteration=2))
    assert not resume(tmp_path / "run", callback=wait_for_the_check)["exact"]
