"""A run directory leads nowhere else: nothing outside of it is read or written, whatever links it contains."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rich.console
import torch
from public_helpers import exit_code, refused, slow_after

import shmppo.evaluate
import shmppo.export
import shmppo.plot
import shmppo.replay
import shmppo.search.__main__
import shmppo.verify
from shmppo import ConfigError, TrainConfig, load_policy, train
from shmppo.config.train_config import load_config, typed_fields
from shmppo.storage.checkpoint_file import load_checkpoint, write_checkpoint
from shmppo.tools.run_process import RunProcess
from shmppo.tools.seeds import summary_table
from shmppo.train import main as train_main
from shmppo.utils.files import open_file, refuse_links, replaced_file

CARTPOLE = str(Path(__file__).parents[2] / "examples" / "trained" / "cartpole")
SMALL: dict[str, Any] = {
    "env": "CartPole-v1", "num_envs": 2, "rollout_steps": 16, "minibatches": 1, "hidden_size": 8, "encoder_sizes": (8,),
    "workers": 0, "quiet": True, "check_determinism": 0, "total_steps": 96,
}  # fmt: skip
JOB = "--num-envs 2 --rollout-steps 16 --minibatches 1 --hidden-size 8 --encoder-sizes 8"
FLAGS = f"{JOB} --workers 0 --quiet"

COMMANDS: dict[str, tuple[Callable[[], int], str]] = {
    "resume": (train_main, "--resume RUN"),
    "fork": (train_main, "--resume RUN --checkpoint 1"),
    "init-from": (train_main, f"--init-from RUN --run-dir NEW {FLAGS}"),
    "init-from-file": (train_main, f"--init-from RUN/checkpoint.pt --run-dir NEW {FLAGS}"),
    "teacher": (train_main, f"--teacher RUN --run-dir NEW {FLAGS}"),
    "run-dir": (train_main, f"--run-dir RUN {FLAGS}"),
    "seeds": (train_main, f"--run-dir TOP/r --seeds 1 {FLAGS}"),
    "evaluate": (shmppo.evaluate.main, "RUN --episodes 1"),
    "round-robin": (shmppo.evaluate.main, "RUN RUN --round-robin"),
    "plot": (shmppo.plot.main, "RUN --out NEW.svg"),
    "report": (shmppo.plot.main, "RUN --out NEW.html"),
    "kl": (shmppo.plot.main, "kl RUN --out NEW.svg"),
    "verify": (shmppo.verify.main, "RUN"),
    "export": (shmppo.export.main, "RUN --format torchscript"),
    "export-policy": (shmppo.export.main, "RUN --format policy"),
    "replay": (shmppo.replay.main, "RUN/failed_episode.json"),
    "replay-episodes": (shmppo.replay.main, "RUN --episode best:1"),
    "search": (shmppo.search.__main__.main, f"--search-dir RUN --trials 1 -- --env CartPole-v1 {JOB}"),
}
"""Commands that use a run directory. RUN: the directory TOP/r-s1. NEW: a name for what the command writes."""
KINDS = ("link to a file", "link to a directory", "dangling link", "hard link", "FIFO")
NAMED_BY_THE_USER = ("init-from-file", "checkpoint.pt")
"""Command and path: the user names the link itself, and a run directory may be reached through a link."""
UNUSED = ("videos", "videos/1.mp4", "opponents", "opponents/000000.float32", "rank-1", "rank-1/checkpoint.pt", "wandb",
          "tensorboard", "output.txt", "policy", "policy.pt", "study.log", "trials.csv", "config.json.partial",
          "checkpoint.pt.partial", "kl/000003.npz.partial", "episodes", "episodes/index.html")  # fmt: skip
"""What runs with other options, exports, and searches write to their directory."""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with as many kinds of files as possible."""
    path = tmp_path_factory.mktemp("original") / "r-s1"
    config = TrainConfig(
        **SMALL, run_dir=str(path), stop_at_iteration=2, eval_every=1, eval_episodes=1, keep_every=1, best_by="return",
        kl_profile_every=1, objective="distill", teacher=CARTPOLE,
    )  # fmt: skip
    train(config)
    content = {"config": config.to_json(), "env_index": 0, "episode": 0, "actions": [[0.0]]}
    (path / "failed_episode.json").write_text(json.dumps(content))
    return path


def paths_of(run: Path) -> list[str]:
    """All paths that a run or a search has."""
    found = sorted(str(path.relative_to(run)) for path in run.rglob("*"))
    assert {"run.lock", "run.log", "kl", "teacher/checkpoint.pt", "checkpoint-iteration-000001.pt"} <= {*found}
    return [*found, *UNUSED]


def replace_by(kind: str, path: Path, outside: Path) -> None:
    """Put a link or a FIFO in the place of a file or directory, which is moved to a directory outside of the run."""
    target = outside / "moved"
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.is_dir() == (kind == "link to a directory"):
        path.rename(target)
    elif kind == "link to a directory":
        target.mkdir()
        (target / "000099.npz").write_bytes(b"private")
    else:
        target.write_bytes(b"private")
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "hard link":
        os.link(target, path)
    else:
        path.symlink_to(outside / "missing" if kind == "dangling link" else target)


opened: list[str] | None = None
"""Paths that this process opens or lists, while this is a list."""


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    if opened is not None and event in ("open", "os.scandir", "os.listdir", "os.truncate"):
        opened.append(os.fspath(arguments[0]) if isinstance(arguments[0], (str, os.PathLike)) else "")


sys.addaudithook(watch)


@pytest.fixture
def opened_paths() -> Iterator[list[str]]:
    global opened
    opened = []
    yield opened
    opened = None


def contents(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Of all files below a directory: number of names and content."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_nlink, path.read_bytes()) for path in files}


def cases(run: Path) -> Iterator[tuple[str, str]]:
    """Each path with each kind of link."""
    return itertools.product(paths_of(run), KINDS)


def check(command: str, kind: str, name: str, original: Path, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a command refuses a link without using what it leads to."""
    run, outside = top / "r-s1", top / "outside"
    shutil.rmtree(top, ignore_errors=True)
    outside.mkdir(parents=True)
    shutil.copytree(original, run)
    replace_by(kind, run / name, outside)
    before = contents(outside)
    main, text = COMMANDS[command]
    for placeholder, path in (("RUN", run), ("NEW", top / "new"), ("TOP", top)):
        text = text.replace(placeholder, str(path))
    assert opened is not None
    opened.clear()
    monkeypatch.chdir(top)
    code = exit_code(main, shlex.split(text))
    used = [path for path in opened if Path(path) == run / name or outside in Path(os.path.realpath(path)).parents]
    if (command, name) != NAMED_BY_THE_USER:
        assert used == [], (command, kind, name)
    assert code == 2, (command, kind, name)
    assert contents(outside) == before


CAUSES = "must not lead elsewhere|holds a run already|contains no checkpoint|does not exist"


def refuses(capsys: pytest.CaptureFixture[str]) -> bool:
    lines = capsys.readouterr().err.splitlines()
    return len(lines) == 1 and lines[0].startswith("error: ") and re.search(CAUSES, lines[0]) is not None


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("command", [None, *slow_after(0, COMMANDS, "about 4 s per command")])
def test_each_path_is_refused_as_each_kind(
    command: str | None, original: Path, opened_paths: list[str], tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    """Each command refuses about 45 paths × 5 kinds. The fast test has every fourth case, each for another command."""
    commands = itertools.cycle([command] if command else COMMANDS)
    some = itertools.islice(cases(original), 0, None, 1 if command else 4)
    for (name, kind), one in zip(some, commands, strict=False):
        check(one, kind, name, original, tmp_path / "top", monkeypatch)
        assert refuses(capsys), (one, kind, name)


def test_the_run_directory_may_be_reached_through_a_link_and_contain_links_of_wandb(
    original: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(original, run)
    (run / "wandb").mkdir()
    (run / "wandb" / "latest-run").symlink_to(tmp_path)
    (tmp_path / "link").symlink_to(run)
    assert load_policy(tmp_path / "link").iteration == 2


def test_init_from_checks_a_directory_without_metrics_before_it_reads_the_options(
    original: Path, opened_paths: list[str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(original, run)
    (run / "metrics.csv").unlink()
    os.link(run / "config.json", tmp_path / "other name")
    opened_paths.clear()
    words = ["--init-from", run, "--run-dir", tmp_path / "new", *FLAGS.split()]
    assert exit_code(train_main, words) == 2
    assert str(run / "config.json") not in opened_paths


def test_names_of_a_file_inside_the_run_are_no_links_to_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.pt").write_bytes(b"")
    os.link(tmp_path / "checkpoint.pt", tmp_path / "checkpoint-1.pt")
    refuse_links(tmp_path)


def test_links_that_appear_after_the_check_are_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("private")
    (tmp_path / "link").symlink_to(target)
    os.mkfifo(tmp_path / "fifo")
    for name, mode in itertools.product(("link", "fifo"), ("r", "a", "w", "r+")):
        with pytest.raises(OSError, match=r"Too many levels|no regular file|No such device"):
            open_file(tmp_path / name, mode)
    (tmp_path / "new.partial").symlink_to(target)
    with replaced_file(tmp_path / "new") as temporary:
        temporary.write_text("written")
    assert ((tmp_path / "new").read_text(), target.read_text()) == ("written", "private")


@pytest.mark.parametrize("name", ["obs_moments", "return_moments", "discounted_return", "optimizer"])
def test_statistics_with_another_shape_are_refused_before_the_run_starts(
    name: str, original: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(original, run)
    state = load_checkpoint(run / "checkpoint.pt")
    learner = state["learner"]
    if name == "optimizer":
        learner[name]["state"][0]["exp_avg"] = torch.zeros(1)
    elif name == "discounted_return":
        learner[name] = torch.zeros(1)
    else:
        learner[name]["mean"] = torch.zeros(3)
    state.pop("format")
    write_checkpoint(run / "checkpoint.pt", state)
    with refused(r"has the shape \(\d,\), but \(\d+,\) is needed"):
        shmppo.resume(run, quiet=True)
    if name == "obs_moments":
        with refused(r"has the shape \(3,\), but \(4,\) is needed"):
            load_policy(run)


def test_control_characters_of_a_checkpoint_do_not_reach_the_log(original: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(original, run)
    state = load_checkpoint(run / "checkpoint.pt")
    state.pop("format")
    state["fingerprint"]["numpy"] = "1\x1b[2J\ntouch /tmp/owned; #"
    write_checkpoint(run / "checkpoint.pt", state)
    summary = shmppo.resume(run, quiet=True, stop_at_iteration=3)
    assert not summary["exact"]
    log = (run / "run.log").read_text()
    assert "\\x1b[2J\n    touch /tmp/owned" in log
    assert log.replace("\n", "").isprintable()


@pytest.mark.parametrize("name", ["env", "wrappers"])
def test_options_have_no_control_characters(name: str) -> None:
    """The help text of --init-from and plots would show them."""
    with refused(r"--\w+ is '.*\\x1b\[2J'; remove its control characters"):
        typed_fields({"env": "a\x1b[2J"} if name == "env" else {"wrappers": ["a\x1b[2J"]})


def test_plots_and_tables_of_runs_escape_what_files_contain(
    original: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "r-s1"
    shutil.copytree(original, run)
    process = RunProcess(load_config(run), run)
    content = json.loads((run / "config.json").read_text())
    content["config"]["env"] = "a\x1b[2J$\\foo$"
    (run / "config.json").write_text(json.dumps(content))
    header, *rows = (run / "metrics.csv").read_text().splitlines()
    table = [f"{header},info/\x1b[2J[/x]_success", *(f"{row},0.5" for row in rows)]
    (run / "metrics.csv").write_text("".join(f"{line}\n" for line in table))
    for file in ("x.html", "x.svg"):
        assert exit_code(shmppo.plot.main, [run, "--out", tmp_path / file]) == 0
        assert "\x1b" not in (tmp_path / file).read_text()
    console = rich.console.Console(force_terminal=True)
    console.print(summary_table([process]))
    shown = capsys.readouterr().out
    assert "\x1b[2J" not in shown
    assert "\\x1b[2J[/x]_success" in shown


def test_arrays_of_demonstrations_are_checked_before_they_are_read(tmp_path: Path) -> None:
    from shmppo.envs.inspection import inspect_task
    from shmppo.extensions.teaching.demonstrations import DemonstrationRecorder, load_demonstrations

    path = tmp_path / "recorded.npz"
    config = TrainConfig(**SMALL | {"objective": "clone", "demonstrations": str(path)})
    with DemonstrationRecorder(config, path) as env:
        env.reset(seed=1)
        while not env.step(0)[2]:
            pass
    task = inspect_task(config)
    arrays = load_demonstrations(config, task)
    for name, changed, message in (
        ("lengths", arrays["lengths"] + 1, "its lengths are not those"),
        ("rewards", arrays["rewards"][:-1], "its array rewards has the shape"),
        ("obs", arrays["obs"][:, :2], "its array obs has the shape"),
        ("huge.npy", (2**50,), "GiB, but this machine has"),
        ("rewards", (1,), "its names are not those of arrays"),
    ):
        if isinstance(changed, np.ndarray):
            np.savez(path, **arrays | {name: changed})  # type: ignore[arg-type]
        else:
            np.savez(path, **arrays)  # type: ignore[arg-type]
            with zipfile.ZipFile(path, "a") as file, file.open(name, "w") as member:
                header = {"descr": "<f8", "fortran_order": False, "shape": changed}
                np.lib.format.write_array_header_1_0(member, header)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=message):
            load_demonstrations(config, task)


def test_yaml_that_is_nested_too_deeply_ends_in_one_sentence(tmp_path: Path) -> None:
    from shmppo.config.flags import read_mapping

    for text in ("[" * 10_000, "a: " + "[" * 3000 + "]" * 3000):
        (tmp_path / "space.yaml").write_text(text)
        with refused("correct it"):
            read_mapping(tmp_path / "space.yaml", "--space")
    (tmp_path / "space.yaml").write_text("a: &a [1, 2]\nb: *a")
    assert read_mapping(tmp_path / "space.yaml", "--space") == {"a": [1, 2], "b": [1, 2]}
