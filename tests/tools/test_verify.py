"""`python -m shmppo.verify`: runs that can be reproduced, planted differences, exit codes, and bad input."""

from __future__ import annotations

import csv
import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import clone_of_recording, slow_after
from public_helpers import exit_code, remove_receipt, run_fixture, train_in

from shmppo import verify
from shmppo.config.train_config import TrainConfig
from shmppo.envs.spec import EnvSpec
from shmppo.errors import ConfigError
from shmppo.lockstep.pool import Collect, Command, ComputeGradients, StepOptimizer
from shmppo.lockstep.worker_pool import WorkerPool
from shmppo.loggers.metrics import STATE_HASH, WEIGHTS_HASH
from shmppo.parallel.shared_buffers import Rollout, SharedBuffers
from shmppo.ppo.gae import compute_advantages
from shmppo.storage.checkpoint import NAME, load_selected_checkpoint
from shmppo.storage.checkpoint_file import write_checkpoint
from shmppo.tools.export_policy import export_policy
from shmppo.tools.verify import compare_runs, read_run, verify_run

BASE = TrainConfig(
    env="Pendulum-v1", hide_obs=(), num_envs=4, rollout_steps=16, minibatches=2, epochs=2, hidden_size=8,
    encoder_sizes=(8,), workers=0, quiet=True, total_steps=4 * 16 * 6, seq_len=8, keep_every=2, check_determinism=0,
)  # fmt: skip
PLANTED = 7
"""Value of --worker-timeout of the run that has the planted difference. The option does not change the weights."""


trained = run_fixture(BASE)
"""A run of 6 iterations that kept the checkpoints of 2, 4, and 6. The tests do not change it."""


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[str], list[str]]:
    """Run the command in this process; returns its exit code, and its lines on stdout and stderr."""
    code = exit_code(verify.main, arguments)
    captured = capsys.readouterr()
    return code, captured.out.splitlines(), captured.err.splitlines()


# --- one run


def test_a_run_is_reproduced_from_the_nearest_checkpoint(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path.name: path.read_bytes() for path in trained.iterdir()}
    code, output, _ = command(capsys, trained)
    assert (code, output[0]) == (0, f"executing iterations 5 to 6 of {trained} again")
    assert output[1] == f"{trained}: iterations 5 to 6 gave the same results again, and so did checkpoint.pt"
    code, output, _ = command(capsys, trained, "--from-iteration", 3, "--iterations", 1)
    assert (code, output[0]) == (0, f"executing iterations 3 to 4 of {trained} again")
    assert {path.name: path.read_bytes() for path in trained.iterdir()} == before, "verify only reads"


def test_a_run_is_reproduced_from_its_start_and_only_weights_are_compared_without_iterations(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict = verify_run(trained, from_iteration=0, iterations=100)
    assert verdict.equal
    assert capsys.readouterr().out == f"executing iterations 1 to 6 of {trained} again\n"
    assert verify_run(trained, iterations=0) == (
        True,
        f"{trained}: all checkpoints are undamaged and have the weights of metrics.csv (6 iterations)",
    )


def test_demonstrations_that_have_changed_are_named(tmp_path: Path) -> None:
    file, run_dir = tmp_path / "a.npz", tmp_path / "run"
    config = clone_of_recording(BASE, file)
    train_in(run_dir, config)
    assert verify_run(run_dir).equal
    assert verify_run(run_dir, from_iteration=0).equal
    clone_of_recording(dataclasses.replace(BASE, seed=2), file)
    for first in (0, 3):
        with pytest.raises(ConfigError, match=r"^--demonstrations \S+a\.npz has changed since \S+run was trained; "):
            verify_run(run_dir, from_iteration=first)


def rewritten(run_dir: Path, change: Callable[[int, dict[str, str]], None]) -> Path:
    """Change the rows of metrics.csv, and remove the receipt."""
    rows = read_run(run_dir).rows
    remove_receipt(run_dir)
    for iteration, row in rows.items():
        change(iteration, row)
    with open(run_dir / "metrics.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[1]))
        writer.writeheader()
        writer.writerows(rows.values())
    return run_dir


def wrong_at_5(iteration: int, row: dict[str, str]) -> None:
    if iteration == 5:
        row[WEIGHTS_HASH] = "0" * 16


def without_new_columns(iteration: int, row: dict[str, str]) -> None:
    del row["return_min_100"], row["action_std"], row[STATE_HASH]


def test_a_run_of_an_earlier_version_with_fewer_columns_is_reproduced(trained: Path, tmp_path: Path) -> None:
    earlier = Path(shutil.copytree(trained, tmp_path / "earlier"))
    rewritten(earlier, without_new_columns)
    assert "return_min_100" not in (earlier / "metrics.csv").read_text()
    assert verify_run(earlier).equal
    assert compare_runs((earlier, trained)).equal
    assert compare_runs((trained, earlier)).equal


def test_a_row_that_this_machine_does_not_reproduce_is_named(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = rewritten(Path(shutil.copytree(trained, tmp_path / "wrong")), wrong_at_5)
    code, output, _ = command(capsys, wrong)
    true_hash = read_run(trained).rows[5][WEIGHTS_HASH]
    assert (code, output[-2:]) == (
        1,
        [f"{wrong} does not match this machine: executed again, iteration 5 differs: weights_hash is {true_hash}, but "
         "metrics.csv has 0000000000000000",
         f"the environment of {wrong} was not checked to the end; shmppo check-env may find the reason"],
    )  # fmt: skip
    code, output, _ = command(capsys, trained, wrong)
    assert code == 1
    assert f"{trained} and {wrong} differ first in iteration 5: weights_hash" in output
    assert output[-1] == (f"executed again, both give the same data, so {wrong} did not compute what this machine does")


# --- two runs


def test_a_run_and_its_exported_policy_are_compared_by_the_weights_in_any_order(trained: Path, tmp_path: Path) -> None:
    run_dir = Path(shutil.copytree(trained, tmp_path / "run"))
    policy = export_policy(run_dir)
    for pair in ((run_dir, policy), (policy, run_dir)):
        assert compare_runs(pair).equal


def test_equal_runs_are_equal_and_a_shorter_one_is_compared_as_far_as_it_goes(trained: Path, tmp_path: Path) -> None:
    train_in(tmp_path / "short", BASE, stop_at_iteration=4)
    verdict = compare_runs((trained, tmp_path / "short"))
    assert verdict.equal
    assert verdict.text.endswith("are equal in all 4 common iterations; one of them has more")


def test_another_schedule_is_named_as_the_difference(trained: Path, tmp_path: Path) -> None:
    train_in(tmp_path / "other", BASE, anneal_steps=10 * BASE.total_steps)
    assert "their configurations differ in --anneal-steps\n" in compare_runs((trained, tmp_path / "other")).text


FIELDS = ("obs", "actions", "log_prob", "value", "reward", "advantages", "gradients", "weights before", "weights")


class Planted:
    """A difference of 1e-4 in one field of one iteration, if --worker-timeout is PLANTED."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.field = FIELDS[seed % len(FIELDS)]
        self.iteration = int(rng.integers(6))
        self.t, self.n = int(rng.integers(BASE.rollout_steps)), int(rng.integers(BASE.num_envs))
        self.epoch, self.minibatch = int(rng.integers(BASE.epochs)), int(rng.integers(BASE.minibatches))
        if self.field == "weights before" and (self.epoch, self.minibatch) == (0, 0):
            self.minibatch = 1

    @property
    def place(self) -> str:
        """How the difference is reported."""
        if self.field in ("gradients", "weights before"):
            return f"{self.field} (minibatch {self.minibatch} of epoch {self.epoch})"
        return self.field if self.field == "weights" else f"{self.field} (step {self.t} of environment {self.n})"

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Change the trainer of this process. The first rollouts of an iteration are changed after their commit."""
        make, execute = WorkerPool.__init__, WorkerPool.execute
        self.config, self.now, self.steps = BASE, 0, 0  # of the run that trains now

        def make_and_note(
            pool: WorkerPool, config: TrainConfig, task: EnvSpec, buffers: SharedBuffers, *rest: Any
        ) -> None:
            self.config, self.buffers = config, buffers
            make(pool, config, task, buffers, *rest)

        def changed_advantages(config: TrainConfig, rollout: Rollout, *arguments: Any) -> np.ndarray:
            if self.applies(*FIELDS[:5]):
                array = rollout.obs[0] if self.field == "obs" else getattr(rollout, self.field)
                array[self.t, self.n] += 1e-4
            result = compute_advantages(config, rollout, *arguments)
            if self.applies("advantages"):
                result[self.t, self.n] += 1e-4
            return result

        def changed_execute(pool: WorkerPool, *commands: Command) -> None:
            for command in commands:
                change_and_execute(pool, command)

        def change_and_execute(pool: WorkerPool, command: Command) -> None:
            if isinstance(command, Collect):
                self.now, self.steps = command.iteration, 0
            self.steps += isinstance(command, StepOptimizer)
            here = command == ComputeGradients(self.epoch, self.minibatch) and isinstance(command, ComputeGradients)
            if here and self.applies("weights before"):
                self.buffers.published.weights[0] += 1e-4
            execute(pool, command)
            if here and self.applies("gradients"):
                self.buffers.shard_results.gradients[0, 0] += 1e-4
            if self.steps == BASE.epochs * BASE.minibatches and self.applies("weights"):
                self.buffers.published.weights[0] += 1e-4

        monkeypatch.setattr("shmppo.runs.loop.compute_advantages", changed_advantages)
        monkeypatch.setattr(WorkerPool, "__init__", make_and_note)
        monkeypatch.setattr(WorkerPool, "execute", changed_execute)

    def applies(self, *fields: str) -> bool:
        """Whether the difference is in one of these fields of the present iteration."""
        return self.field in fields and self.config.worker_timeout == PLANTED and self.now == self.iteration


@pytest.mark.parametrize("seed", slow_after(2, [1, 6, 7, *range(10, 27)], "2 s per case"))
def test_a_planted_difference_is_found(
    seed: int, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planted = Planted(seed)
    planted.install(monkeypatch)
    other = tmp_path / "other"
    train_in(other, BASE, worker_timeout=PLANTED)
    code, output, _ = command(capsys, trained, other)
    assert code == 1
    assert f"{trained} and {other} differ first in iteration {planted.iteration + 1}: weights_hash" in "\n".join(output)
    assert output[-1].partition(":")[2].partition(":")[0].partition(";")[0].strip() == planted.place, output


# --- bad input


def test_bad_input_is_refused_with_one_sentence_and_exit_code_2(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases: dict[tuple[object, ...], str] = {
        (): "error: 0 run directories are given; name one or two",
        (trained, trained, trained): "error: 3 run directories are given; name one or two",
        (tmp_path / "none",): f"error: {tmp_path / 'none'} does not exist; name the directory of a run",
        (trained, "--from-iteration", 6): f"error: --from-iteration is 6, but {trained} has finished 6 iterations; use",
        (trained, "--iterations", -1): "error: --iterations is -1; it must be at least 0",
        (trained, "--sample", 0): "error: --sample is 0; it must be at least 1",
        (trained, "--sample", 1, "--iterations", 2): "error: --sample chooses the iterations; leave out --from-iterat",
        (trained, trained, "--iterations", 2): "error: --from-iteration, --iterations, and --dump are for one run; ",
    }
    for arguments, message in cases.items():
        code, output, errors = command(capsys, *arguments)
        assert (code, output, len(errors)) == (2, [], 1), arguments
        assert errors[0].startswith(message)


def test_a_checkpoint_that_this_machine_does_not_reproduce_is_named(trained: Path, tmp_path: Path) -> None:
    run_dir = rewritten(Path(shutil.copytree(trained, tmp_path / "run")), without_new_columns)
    state = load_selected_checkpoint(run_dir)
    state["learner"]["obs_moments"]["mean"] += 1e-9
    state["carry"]["state"][0] += 1e-6
    for path in (run_dir / NAME, run_dir / "checkpoint-iteration-000006.pt", run_dir / "checkpoint-best.pt"):
        path.unlink(missing_ok=True)
    write_checkpoint(run_dir / NAME, state)
    verdict = verify_run(run_dir)
    assert not verdict.equal
    assert verdict.text == (
        f"{run_dir} does not match this machine: executed again, checkpoint.pt differs in obs_moments, carry, "
        "state_hash"
    )
