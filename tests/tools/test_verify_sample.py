"""`shmppo verify --sample`, and receipts: what was forged in a run is found."""

from __future__ import annotations

import csv
import dataclasses
import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import slow_after
from public_helpers import csv_rows, remove_receipt, run_fixture, summary_of, train_in
from test_verify import BASE as SMALL

from shmppo import resume
from shmppo.errors import ConfigError
from shmppo.loggers.metrics import STATE_HASH, WEIGHTS_HASH
from shmppo.models.actor_critic import weights_sha256
from shmppo.runs.train_state import state_digests, state_hash
from shmppo.storage.checkpoint import BEFORE, BEST, kept_name
from shmppo.storage.checkpoint_file import load_checkpoint, write_checkpoint
from shmppo.storage.history import receipt, recorded_tables, remove_later
from shmppo.storage.run_directory import MetricsFile
from shmppo.tools.verify import Verdict, verify_run

BASE = dataclasses.replace(
    SMALL, env="CartPole-v1", num_envs=4, total_steps=4 * 16 * 6, eval_every=2, eval_episodes=2, keep_every=2
)
trained = run_fixture(BASE)
"""A run of 6 iterations that kept the checkpoints of 2, 4, and 6, and was evaluated there. Tests do not change it."""


def edited(name: str, iteration: int, **values: object) -> Callable[[Path], None]:
    """Return what replaces cells of the first row of an iteration in a table."""

    def edit(run_dir: Path) -> None:
        rows = csv_rows(run_dir / name)
        next(row for row in rows if row["iteration"] == str(iteration)).update({k: str(v) for k, v in values.items()})
        write_rows(run_dir / name, rows)

    return edit


def write_rows(path: Path, rows: list[dict[str, str]]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def other_optimizer(run_dir: Path) -> None:
    path = run_dir / kept_name(4)
    state = load_checkpoint(path)
    state["learner"]["optimizer"]["state"][0]["exp_avg"][0] += 1e-3
    write_checkpoint(path, state)


def other_weights(run_dir: Path) -> None:
    """Change the weights of a checkpoint, and their hashes. Delete its copies."""
    path = run_dir / kept_name(4)
    state = load_checkpoint(path)
    model = state["learner"]["model"]
    next(iter(model.values()))[0] += 1e-3
    write_checkpoint(path, state)
    hashes = {WEIGHTS_HASH: weights_sha256(model.values())[:16], STATE_HASH: state_digests(state)[STATE_HASH]}
    edited("metrics.csv", 4, **hashes)(run_dir)
    for name in (BEFORE, BEST):
        (run_dir / name).unlink()


def without_a_row(run_dir: Path) -> None:
    write_rows(run_dir / "metrics.csv", [row for row in csv_rows(run_dir / "metrics.csv") if row["iteration"] != "3"])


def row_of_another_seed(run_dir: Path) -> None:
    train_in(run_dir.parent / "other", BASE, seed=2)
    rows = csv_rows(run_dir / "metrics.csv")
    rows[2] = csv_rows(run_dir.parent / "other" / "metrics.csv")[2]
    write_rows(run_dir / "metrics.csv", rows)


def other_options(run_dir: Path) -> None:
    """Say in config.json and in the checkpoints that the run had another learning rate."""
    for path in run_dir.glob("checkpoint*.pt"):
        state = load_checkpoint(path)
        write_checkpoint(path, state | {"config": json.dumps(json.loads(state["config"]) | {"learning_rate": 1e-4})})
    described = json.loads((run_dir / "config.json").read_text())
    described["config"]["learning_rate"] = 1e-4
    (run_dir / "config.json").write_text(json.dumps(described))


def swapped_checkpoints(run_dir: Path) -> None:
    one, other = run_dir / kept_name(2), run_dir / kept_name(4)
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


FORGERIES: dict[str, tuple[Callable[[Path], None], str]] = {
    "weights": (other_weights, r"iteration 4 differs: weights_hash is "),
    "optimizer": (other_optimizer, r"checkpoint-iteration-000004.pt differs in optimizer$"),
    "return": (edited("metrics.csv", 3, return_mean_100=500), r"iteration 3 differs: return_mean_100 is .* has 500"),
    "deleted row": (without_a_row, r"iteration 3 differs: weights_hash is .* has no value|has 3 of the 4 rows"),
    "row of another seed": (row_of_another_seed, r"iteration 3 differs: weights_hash is "),
    "options": (other_options, r"iteration 3 differs: weights_hash is "),
    "swapped checkpoints": (swapped_checkpoints, r"checkpoint-iteration-00000\d.pt is of iteration \d; restore"),
    "evaluation": (edited("eval.csv", 4, **{"eval/return": 500}), r"iteration 4 differs: rows of eval.csv"),
    "episodes": (edited("episodes.csv", 3, **{"return": 500}), r"iteration 3 differs: rows of episodes.csv"),
    "hash of a state": (edited("metrics.csv", 3, **{STATE_HASH: "0" * 32}), r"iteration 3 differs: state_hash is "),
}
"""How to forge a run, and the message if the receipt was forged, too, and iterations 3 and 4 are executed again."""


def says(run_dir: Path, **options: Any) -> str:
    """What `verify` says of a forged run."""
    try:
        verdict = verify_run(run_dir, **options)
    except ConfigError as error:
        return str(error)
    assert not verdict.equal
    return verdict.text


@pytest.mark.parametrize("name", slow_after(3, list(FORGERIES), "1 s per case"))
def test_a_forgery_is_found_by_the_receipt_or_by_executing_its_part(name: str, trained: Path, tmp_path: Path) -> None:
    run_dir = Path(shutil.copytree(trained, tmp_path / "run"))
    forge, message = FORGERIES[name]
    forge(run_dir)
    if name != "optimizer":  # in rows whose number is no multiple of ten, the hash of the state does not contain it
        assert "; restore " in says(run_dir, iterations=0)
    options = json.loads((run_dir / "config.json").read_text())["config"]
    summary = summary_of(run_dir) | {"receipt": receipt(options, recorded_tables(run_dir))}
    (run_dir / "summary.json").write_text(json.dumps(summary))
    text = says(run_dir, sample=1, seed=seed_of(3))
    assert re.search(message, text), text


def seed_of(iteration: int) -> int:
    """A seed that draws one iteration of six."""
    return next(seed for seed in range(100) if random.Random(seed).sample(range(1, 7), 1) == [iteration])


def test_a_sample_executes_the_parts_that_contain_what_was_drawn(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict = verify_run(trained, sample=1, seed=seed_of(3), workers=0)
    assert capsys.readouterr().out == (
        f"--sample 1:{seed_of(3)} draws 3: 2 of 6 iterations are executed again\n"
        f"executing iterations 3 to 4 of {trained} again\n"
    )
    assert verdict == Verdict(
        True,
        f"{trained}: 2 of 6 iterations gave the same results again\n"
        "probability that the sample would have found forged ones, at least: 1 % of the iterations: 33%, 5 % of the "
        f"iterations: 33%, 10 % of the iterations: 33%\nreceipt: {summary_of(trained)['receipt']}",
    )


@pytest.mark.long
def test_a_repetition_with_workers_and_a_pause_has_the_same_receipt(trained: Path, tmp_path: Path) -> None:
    train_in(tmp_path / "again", BASE, workers=2, stop_at_iteration=3)
    resume(tmp_path / "again", workers=1)
    assert summary_of(tmp_path / "again")["receipt"] == summary_of(trained)["receipt"]
    assert verify_run(tmp_path / "again", iterations=0).equal


def test_a_run_that_was_resumed_and_killed_has_no_receipt(trained: Path, tmp_path: Path) -> None:
    run_dir = Path(shutil.copytree(trained, tmp_path / "run"))
    remove_later(run_dir, 6, evaluated=5)
    assert verify_run(run_dir, iterations=0).equal


def test_a_column_that_a_table_gets_later_changes_no_digest(tmp_path: Path) -> None:
    table = MetricsFile(tmp_path / "eval.csv", ["iteration", "eval/return"])
    table.write({"iteration": 1, "eval/return": 2.5})
    before = recorded_tables(tmp_path)["eval.csv"]["1"]
    table.write({"iteration": 2, "eval/return": 2.5, "eval/info/success": 1.0})
    assert recorded_tables(tmp_path)["eval.csv"]["1"] == before


def test_a_run_that_an_earlier_version_began_may_lack_episodes(trained: Path, tmp_path: Path) -> None:
    run_dir = Path(shutil.copytree(trained, tmp_path / "run"))
    remove_receipt(run_dir)
    rows = csv_rows(run_dir / "metrics.csv")
    write_rows(run_dir / "metrics.csv", [{name: row[name] for name in row if name != STATE_HASH} for row in rows])
    rows = csv_rows(run_dir / "episodes.csv")
    write_rows(run_dir / "episodes.csv", [row for row in rows if int(row["iteration"]) > 3])
    assert verify_run(run_dir, sample=1, seed=seed_of(3)).equal


def test_a_resume_may_change_the_evaluations_within_a_part(tmp_path: Path) -> None:
    train_in(tmp_path / "run", BASE, eval_every=1, keep_every=3, stop_at_iteration=5)
    resume(tmp_path / "run", eval_every=3)
    verdict = verify_run(tmp_path / "run", sample=6, seed=0)
    assert verdict.equal, verdict.text


def test_a_part_is_executed_without_the_evaluations_of_the_run(trained: Path) -> None:
    assert verify_run(trained, from_iteration=2, iterations=3).equal


def test_every_tenth_hash_of_a_state_contains_the_optimizer(trained: Path) -> None:
    one, other = (load_checkpoint(trained / "checkpoint.pt") for _ in range(2))
    other["learner"]["optimizer"]["state"][0]["exp_avg"][0] += 1
    assert state_hash(9, "", one) == state_hash(9, "", other)
    assert state_hash(10, "", one) != state_hash(10, "", other)
