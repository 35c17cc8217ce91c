"""Check that a run can be reproduced, or find the first difference between two runs, by executing iterations again."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import math
import random
import secrets
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from shmppo.config.checks import flag, require
from shmppo.config.info_keys import PREFIX
from shmppo.config.option import fields_with
from shmppo.config.resumable import different_fields
from shmppo.config.run_options import ReportOptions
from shmppo.config.train_config import TrainConfig, stored_config
from shmppo.config.trust import Trusted, check_trust
from shmppo.errors import ConfigError
from shmppo.lockstep.learner import Learner
from shmppo.loggers.metrics import DECISIVE, GLOSSARY, HASH_DIGITS, STATE_HASH, WEIGHTS_HASH
from shmppo.models.actor_critic import weights_sha256
from shmppo.parallel.process_group import SINGLE_PROCESS
from shmppo.runs import launch
from shmppo.runs.iteration_record import DumpLearner, IterationRecord, RecordingLearner, first_difference
from shmppo.runs.session import LearnerType
from shmppo.runs.start import load_initial_weights
from shmppo.runs.train_state import state_digests
from shmppo.storage.checkpoint import KEPT, no_checkpoint
from shmppo.storage.checkpoint_file import load_checkpoint
from shmppo.storage.history import receipt, recorded_tables
from shmppo.storage.run_directory import CONFIG, EPISODES, EVALUATIONS, METRICS, SUMMARY
from shmppo.utils.files import complete_rows, read_object, refuse_links, short_path

COMPARED = (WEIGHTS_HASH, *(name for name in GLOSSARY if name in DECISIVE), STATE_HASH)
"""Columns of metrics.csv that are the same in two runs of one configuration, the weights first."""
_QUIET: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(ReportOptions)} | {
    "quiet": True, "check_determinism": 0, "checkpoint_every": None, "keep_every": None, "eval_videos": False,
    "best_by": "return", "stop_when": (),
}  # fmt: skip
"""Options that do not change the weights, and what they are while iterations are executed again."""

NO_ROW = "no row"

Rows = dict[int, dict[str, str]]
"""Rows of metrics.csv by iteration."""


class Verdict(NamedTuple):
    """The result of a verification."""

    equal: bool
    text: str
    """One or more lines."""


class Checkpoint(NamedTuple):
    """What is needed to know of a checkpoint to choose one, and to compare it."""

    path: Path
    iteration: int
    config: TrainConfig
    digests: dict[str, str]
    """Digests of its content (see `state_digests`)."""
    inexact_reasons: list[str]
    checked: bool
    """Whether the check of its environment has passed."""
    initial_weights: dict[str, Any] | None
    """What it records about the run of --init-from."""
    branched_from: dict[str, Any] | None
    """What it records about the run from which its run branches."""


class RunFiles(NamedTuple):
    """What a run has recorded."""

    run_dir: Path
    rows: Rows
    checkpoints: list[Checkpoint]
    """In the order of iterations."""
    tables: dict[str, dict[str, str]]
    """Digests of its tables (see `recorded_tables`)."""
    receipt: str | None
    """Its receipt. None: it has ended without one."""

    @property
    def newest(self) -> Checkpoint:
        """The checkpoint of the last iteration that has one."""
        return self.checkpoints[-1]

    @property
    def recorded(self) -> Rows:
        """The rows, with digests of the rows of eval.csv and episodes.csv as further columns."""
        others = {name: digests for name, digests in self.tables.items() if name != METRICS}
        return {  # a run that an earlier version began may lack rows in these files
            i: row | {name: others[name].get(str(i), NO_ROW) for name in others if STATE_HASH in row}
            for i, row in self.rows.items()
        }

    @property
    def begin(self) -> int:
        """Number of iterations that the run has from the one it branches from."""
        return int((self.newest.branched_from or {}).get("iteration", 0))

    @property
    def is_policy(self) -> bool:
        """Whether this is an exported policy, of whose metrics only the hash of the weights is known."""
        return "carry" not in self.newest.digests

    @property
    def last_iteration(self) -> int:
        """Number of iterations in metrics.csv."""
        return max(self.rows, default=0)


def read_run(run_dir: Path) -> RunFiles:
    """Read the checkpoints and the metrics of a run that has ended.

    Raises:
        ConfigError: if there is no checkpoint, if one is damaged, if its hashes are not those of metrics.csv, or if a
            table or the options have changed since the run has ended.
    """
    refuse_links(run_dir)
    saved, path = list(run_dir.glob("checkpoint*.pt")), run_dir / METRICS
    if not saved:
        raise no_checkpoint(run_dir)
    try:
        rows, tables = {int(row["iteration"]): row for row in complete_rows(path)}, recorded_tables(run_dir)
    except (OSError, ValueError, LookupError, TypeError, csv.Error) as error:
        raise ConfigError(f"{path} or another table is damaged ({error}); restore it from a copy") from error
    checkpoints = [_read_checkpoint(one) for one in saved]
    for one in checkpoints:
        row = rows.get(one.iteration, {})
        # A branch may begin with other values than its parent had, and an inexact run may have lost an episode.
        unchanged = not one.inexact_reasons and (one.branched_from or {}).get("iteration") != one.iteration
        for column in (WEIGHTS_HASH, *({STATE_HASH} & row.keys() if unchanged else ())):
            found, cell = one.digests[column], row.get(column, NO_ROW)
            require(
                one.iteration == 0 or found == cell,
                f"{one.path} has the {column} {found}, but {METRICS} has {cell} after iteration {one.iteration}; "
                "restore both from one copy",
            )
        number = one.path.stem.removeprefix(KEPT)
        is_copy = number.isdecimal() and int(number) != one.iteration
        require(not is_copy, f"{one.path} is of iteration {one.iteration}; restore it from a copy")
    summary = read_object(run_dir / SUMMARY, "restore it from a copy") if (run_dir / SUMMARY).is_file() else {}
    known = summary.get("receipt")
    require(
        known is None or known == receipt(read_object(run_dir / CONFIG, "restore it from a copy")["config"], tables),
        f"{run_dir}: {' or '.join([*tables, CONFIG])} has changed since {SUMMARY} was written; restore it from a copy",
    )
    return RunFiles(run_dir, rows, sorted(checkpoints, key=lambda one: (one.iteration, one.path.name)), tables, known)


def _read_checkpoint(path: Path) -> Checkpoint:
    state = load_checkpoint(path)
    weights = {WEIGHTS_HASH: weights_sha256(state["learner"]["model"].values())[:HASH_DIGITS]}
    digests = weights | state_digests(state)
    config = stored_config(json.loads(state["config"]))
    if config.recording() is not None and "carry" in state:
        digests["recording"] = str(state["carry"]["episode_hash"].tolist())  # each is that of all recorded episodes
    reasons, checked = state["inexact_reasons"], state.get("checked", False)
    origins = state["initial_weights"], state.get("branched_from")
    return Checkpoint(path, state["iteration"], config, digests, reasons, checked, *origins)


def verify_run(
    run_dir: Path,
    *,
    from_iteration: int | None = None,
    iterations: int | None = None,
    sample: int | None = None,
    seed: int | None = None,
    workers: int | None = None,
    dump: Path | None = None,
    trust: Trusted = (),
) -> Verdict:
    """Execute parts of a run again, and compare them with its tables and checkpoints.

    Args:
        run_dir: directory of the run, which must have ended.
        from_iteration: number of finished iterations at the start of the part. The execution begins at the nearest
            checkpoint before. None: at the newest checkpoint that has iterations after it.
        iterations: length of the part. 0: only compare the checkpoints with metrics.csv. None: 10, or all iterations of
            an exported policy; 1 with `dump`.
        sample: how many iterations to draw. All parts between checkpoints that contain one of them are executed, with
            their evaluations. None: execute one part, without them.
        seed: of this draw. None: a random one.
        workers: number of workers. None: as in the run.
        dump: directory to which the data of the part is written (see `DumpLearner`).
        trust: see `shmppo.resume`.

    Raises:
        ConfigError: see `read_run` and `DumpLearner`, and if the iterations do not exist.
    """
    require(iterations is None or iterations >= 0, f"--iterations is {iterations}; it must be at least 0")
    require(sample is None or sample > 0, f"--sample is {sample}; it must be at least 1")
    files = read_run(run_dir)
    name, begin, last = short_path(run_dir), files.begin, files.last_iteration
    if iterations is None:
        iterations = 1 if dump else last if files.is_policy else 10
    if not iterations or last == begin:
        return Verdict(
            True, f"{name}: all checkpoints are undamaged and have the weights of {METRICS} ({last} iterations)"
        )
    require(
        from_iteration is None or begin <= from_iteration < last,
        f"--from-iteration is {from_iteration}, but {run_dir} has finished {last} iterations{_origin(files)}; use "
        f"{begin} … {last - 1}",
    )
    if sample is not None:
        return _verify_sample(files, sample, seed, workers, trust)
    start = checkpoint_before(files, last if from_iteration is None else from_iteration + 1)
    if from_iteration is None:
        from_iteration = start.iteration if start is not None else 0
    end = min(from_iteration + iterations, last)
    make_learner = partial(DumpLearner, dump, from_iteration) if dump else Learner
    rows, digests = execute(files, start, end, workers, trust, make_learner)
    if problem := _mismatch(files, rows) or _different_checkpoint(files, end, digests):
        return Verdict(False, problem)
    saved = next((f", and so did {one.path.name}" for one in reversed(files.checkpoints) if one.iteration == end), "")
    written = "" if dump is None else f"\nwrote {short_path(dump / 'README.md')} and files that it explains"
    return Verdict(True, f"{name}: iterations {min(rows)} to {end} gave the same results again{saved}{written}")


def _verify_sample(files: RunFiles, sample: int, seed: int | None, workers: int | None, trust: Trusted) -> Verdict:
    """Execute the parts between checkpoints that contain drawn iterations. For the arguments, see `verify_run`."""
    begin, last = files.begin, files.last_iteration
    seed = secrets.randbelow(2**32) if seed is None else seed
    drawn = sorted(random.Random(seed).sample(range(begin + 1, last + 1), min(sample, last - begin)))
    bounds = sorted({begin, *(one.iteration for one in files.checkpoints if one.iteration > begin), last})
    parts = [part for part in itertools.pairwise(bounds) if any(part[0] < iteration <= part[1] for iteration in drawn)]
    executed, total = sum(b - a for a, b in parts), last - begin
    numbers = ", ".join(map(str, drawn))
    print(f"--sample {sample}:{seed} draws {numbers}: {executed} of {total} iterations are executed again")
    for first, end in parts:
        rows, digests = execute(files, checkpoint_before(files, first + 1), end, workers, trust, evaluate=True)
        if problem := _mismatch(files, rows) or _different_checkpoint(files, end, digests):
            return Verdict(False, problem)
    # A part is executed as a whole, so each of its iterations that is drawn finds what is forged in it.
    shortest = min(b - a for a, b in itertools.pairwise(bounds))
    chances = []
    for percent in (1, 5, 10):
        forged = max(math.ceil(percent * total / 100), shortest)
        chance = 1 - math.comb(total - forged, len(drawn)) / math.comb(total, len(drawn))
        chances.append(f"{percent} % of the iterations: {chance:.0%}")
    return Verdict(
        True,
        f"{short_path(files.run_dir)}: {executed} of {total} iterations gave the same results again\n"
        f"probability that the sample would have found forged ones, at least: {', '.join(chances)}\n"
        f"receipt: {files.receipt or 'none'}",
    )


def _different_checkpoint(files: RunFiles, end: int, digests: dict[str, str]) -> str:
    """Say in which parts the checkpoint of an iteration differs from one that was executed again. "": in none."""
    for saved in (one for one in files.checkpoints if one.iteration == end):
        if different := [part for part, digest in saved.digests.items() if digests[part] != digest]:
            name, parts = short_path(files.run_dir), ", ".join(different)
            return f"{name} does not match this machine: executed again, {saved.path.name} differs in {parts}"
    return ""


def compare_runs(run_dirs: tuple[Path, Path], *, workers: int | None = None, trust: Trusted = ()) -> Verdict:
    """Find the first iteration in which two runs differ. Execute it again for both, and find the first field.

    Args:
        run_dirs: directories of the runs, which must have ended.
        workers, trust: see `verify_run`.

    Raises:
        ConfigError: see `read_run`, and if no iteration is common to both.
    """
    one, other = (read_run(run_dir) for run_dir in run_dirs)
    names = [short_path(run_dir) for run_dir in run_dirs]
    common = sorted(one.rows.keys() & other.rows.keys())
    require(bool(common), f"{run_dirs[0]} and {run_dirs[1]} have no iteration in common; name other runs")
    iteration, columns = _first_different(one.rows, {i: other.rows[i] for i in common})
    if not columns:
        lengths = "" if one.rows.keys() == other.rows.keys() else "; one of them has more"
        return Verdict(True, f"{names[0]} and {names[1]} are equal in all {len(common)} common iterations{lengths}")
    lines = [f"{names[0]} and {names[1]} differ first in iteration {iteration}: {', '.join(columns)}"]
    configs = one.newest.config, other.newest.config
    options = different_fields(*configs)
    horizons = {config.anneal_horizon for config in configs if config.lr_schedule == "linear" or config.anneal_entropy}
    if len(horizons) == 2:  # `different_fields` leaves out what `resume` may change
        is_default = all(config.anneal_horizon == config.total_steps for config in configs)
        options.append("--total-steps" if is_default else "--anneal-steps")
    if options:
        lines.append(f"their configurations differ in {', '.join(options)}")
    records = (IterationRecord(iteration - 1), IterationRecord(iteration - 1))
    wrong = []
    for name, files, record in zip(names, (one, other), records, strict=True):
        start, make_learner = checkpoint_before(files, iteration), partial(RecordingLearner, record)
        rows, _ = execute(files, start, iteration, workers, trust, make_learner)
        if mismatch := _mismatch(files, rows):
            wrong.append(name)
            lines.append(mismatch)
    if field := first_difference(*records):
        lines.append(f"first field: {field}")
    elif wrong:
        culprits = " and ".join(wrong)
        lines.append(f"executed again, both give the same data, so {culprits} did not compute what this machine does")
    else:
        lines.append("first field: weights; everything before the optimizer steps is equal")
    return Verdict(False, "\n".join(lines))


def _first_different(recorded: Rows, found: Rows) -> tuple[int, list[str]]:
    """Return the first iteration of `found` whose row differs, and the columns. (0, []) if none differs."""
    differing = ((i, _different_columns(recorded.get(i, {}), found[i])) for i in sorted(found))
    return next(((i, columns) for i, columns in differing if columns), (0, []))


def _different_columns(recorded: dict[str, str], found: dict[str, str]) -> list[str]:
    """Return the columns in which two rows differ, the weights first."""
    if {"iteration", WEIGHTS_HASH} in (recorded.keys(), found.keys()):  # of an exported policy
        return [WEIGHTS_HASH] * (recorded[WEIGHTS_HASH] != found[WEIGHTS_HASH])
    # An automatic key of `info` has a column from the first episode with it on. Earlier versions had fewer columns.
    info = sorted(name for name in recorded.keys() | found.keys() if name.startswith(PREFIX))
    known = (*COMPARED, EPISODES, EVALUATIONS)
    names = [*(name for name in known if not recorded or name in recorded.keys() & found.keys()), *info]
    return [name for name in names if recorded.get(name, "nan") != found.get(name, "nan")]


def _mismatch(files: RunFiles, rows: Rows) -> str:
    """Describe the first iteration that gave another result when it was executed again. "" if there is none."""
    iteration, columns = _first_different(files.recorded, rows)
    if not columns:
        return ""
    name, column = short_path(files.run_dir), columns[0]
    recorded, found = (one.get(iteration, {}).get(column, "no value") for one in (files.recorded, rows))
    how = f"rows of {column}" if column in files.tables else f"{column} is {found}, but {METRICS} has {recorded}"
    text = f"{name} does not match this machine: executed again, iteration {iteration} differs: {how}"
    if files.newest.inexact_reasons:
        text += f"\n{name} is not exact: {'; '.join(files.newest.inexact_reasons)}"
    elif not files.newest.checked and not files.is_policy:
        text += f"\nthe environment of {name} was not checked to the end; shmppo check-env may find the reason"
    return text


def checkpoint_before(files: RunFiles, iteration: int) -> Checkpoint | None:
    """Return the last checkpoint before an iteration has finished. None: the start of the run.

    Raises:
        ConfigError: if there is none, and the run is a branch, which does not begin with its own options.
    """
    earlier = [checkpoint for checkpoint in files.checkpoints if files.begin <= checkpoint.iteration < iteration]
    require(
        bool(earlier) or not files.begin,
        f"{files.run_dir} has {files.last_iteration} iterations{_origin(files)}, and no checkpoint of its own before "
        f"iteration {iteration}; name a run that has one",
    )
    return earlier[-1] if earlier else None


def _origin(files: RunFiles) -> str:
    """Say how many iterations a branch has from another run, and from which. Empty if it is none."""
    parent = files.newest.branched_from
    return "" if parent is None else f", of which {files.begin} belong to {short_path(Path(parent['path']))}"


def execute(
    files: RunFiles,
    start: Checkpoint | None,
    end: int,
    workers: int | None,
    trust: Trusted,
    make_learner: LearnerType = Learner,
    *,
    evaluate: bool = False,
) -> tuple[Rows, dict[str, str]]:
    """Execute a run again in a temporary directory. Return its new rows (`RunFiles.recorded`), and digests of its end.

    Args:
        start: the checkpoint to begin with. None: the start of the run.
        end: the last iteration.
        workers: number of workers. None: as in the run.
        trust: see `shmppo.resume`.
        make_learner: makes the learner, which may record what the iterations compute.
        evaluate: whether to repeat evaluations.

    Raises:
        ConfigError: if the run has several ranks, or as in `launch.resume`.
        KeyboardInterrupt: if a signal stopped the execution.
    """
    ranks = files.newest.config.ranks
    require(
        ranks == 1,
        f"{files.run_dir} has {ranks} ranks, whose iterations cannot be executed again by one process; use "
        "--iterations 0 with one run to compare only its checkpoints with its metrics",
    )
    first = start.iteration if start is not None else 0
    print(f"executing iterations {first + 1} to {end} of {short_path(files.run_dir)} again")
    # A resume may have changed these options between the checkpoint and the end.
    later = next((one.config for one in files.checkpoints if one.iteration >= end), files.newest.config)
    changes = _QUIET | {"stop_at_iteration": end, "skip_bad_episodes": later.skip_bad_episodes}
    changes |= {"total_steps": later.total_steps, "anneal_steps": later.anneal_horizon}
    at_start, at_end = (
        {name: getattr(one, name) for name in fields_with(TrainConfig, read_by_schedule=True)}
        for one in (later if start is None else start.config, later)
    )
    if evaluate:
        changes |= at_end
    elif later.env_schedule is None:  # a schedule may read the results of evaluations
        changes |= {"eval_every": None, "eval_env_kwargs": {}}
    if workers is not None:
        changes |= {"workers": workers, "learning": "auto"}
    check_trust(later.to_json(), files.run_dir, trust)
    with tempfile.TemporaryDirectory(prefix="shmppo-verify-") as directory:
        target = Path(directory) / "run"
        if start is None:
            copied = fields_with(TrainConfig, copied=True)
            changes |= {name: str(files.run_dir / name) for name in copied if getattr(later, name) is not None}
            config = dataclasses.replace(later, run_dir=str(target), **changes)
            weights = load_initial_weights(config, SINGLE_PROCESS)
            require(
                weights is None or weights.record() == files.newest.initial_weights,
                f"--init-from {config.init_from} has other weights than when {files.run_dir} began; restore them, "
                "or begin at a later checkpoint with --from-iteration",
            )
            launch.train(config, trust=trust, make_learner=make_learner)
        else:
            source: dict[str, Any] = {"checkpoint": start.path, "new_run_dir": target}
            launch.resume(files.run_dir, trust=trust, make_learner=make_learner, **source, **changes)
        again = read_run(target)
    if again.last_iteration < end:
        raise KeyboardInterrupt
    if (option := later.recording()) is not None:
        recorded, found = (one.newest.digests.get("recording") for one in (files, again))
        named = f"{flag(option)} {getattr(later, option)}"
        require(recorded in (None, found), f"{named} has changed since {files.run_dir} was trained; restore it")
    rows = {iteration: row for iteration, row in again.recorded.items() if iteration > first}
    for iteration, row in rows.items():
        missing = NO_ROW in (row.get(EVALUATIONS), files.tables.get(EVALUATIONS, {}).get(str(iteration), NO_ROW))
        # Only the end of this execution was evaluated, or a resume has changed when or how the run is evaluated.
        if not evaluate or at_start != at_end or (missing and (iteration == end or start is None)):
            row.pop(EVALUATIONS, None)
    return rows, again.newest.digests
