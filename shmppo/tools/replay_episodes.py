"""Look at episodes of training again: execute their iterations from the nearest checkpoint, and write what they did."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from shmppo.config.checks import require
from shmppo.config.train_config import TrainConfig
from shmppo.config.trust import Trusted
from shmppo.envs.backends import backend_of
from shmppo.envs.inspection import inspect_task
from shmppo.envs.vector_env import RenderedHandle
from shmppo.errors import ConfigError, EnvError
from shmppo.plotting.curves import read_columns
from shmppo.plotting.report import embedded, escape, svg, table, write_page
from shmppo.plotting.style import label, new_figure
from shmppo.policies.evaluation import film_step
from shmppo.policies.video import VideoRecorder, render_without_display
from shmppo.runs.episode_record import EpisodeRecord, EpisodeRecorder
from shmppo.storage.run_directory import EPISODES
from shmppo.tools.verify import Checkpoint, checkpoint_before, execute, read_run
from shmppo.utils.files import config_error_if_unwritable, make_parent_directory, replaced_file, short_path
from shmppo.utils.global_generators import NAMES, kept_generators

NEWEST = 10
"""Number of episodes that COLUMN=VALUE selects at most."""


def replay_episodes(run_dir: Path, selectors: Sequence[str], out: Path, trust: Trusted = ()) -> Path:
    """Execute the iterations of episodes again. Write their steps, their videos, and a page about them.

    Args:
        run_dir: directory of the run, which must have ended.
        selectors: select the episodes, see `select`.
        out: directory to write to.
        trust: see `shmppo.resume`.

    Returns:
        The path of the page.

    Raises:
        ConfigError: if the run or a selector does not fit, if this machine does not repeat an episode, if the code of
            the run is not trusted, if matplotlib is missing, or if a file cannot be written.
    """
    page, files = out / "index.html", read_run(run_dir)
    config = files.newest.config
    require(
        config.ranks == 1 and not config.has_idle_steps,
        f"{run_dir} has several ranks, or columns that can be idle; replay one that has neither",
    )
    records = [EpisodeRecord(row, _first_iteration(row, config)) for row in select(run_dir / EPISODES, selectors)]
    new_figure(1, 1)  # fails without matplotlib, before anything is executed
    make_parent_directory(page, "--out")
    parts: dict[int, tuple[Checkpoint | None, list[EpisodeRecord]]] = {}  # by the iterations before their checkpoint
    for record in records:
        start = checkpoint_before(files, record.first_iteration)
        parts.setdefault(start.iteration if start else 0, (start, []))[1].append(record)
    ends = {begin: int(max(record.row["iteration"] for record in part)) for begin, (_, part) in parts.items()}
    seconds = {0: 0.0} | {iteration: float(row["wall_seconds"]) for iteration, row in files.rows.items()}
    duration = sum(seconds[end] - seconds[begin] for begin, end in ends.items())
    count = sum(ends.values()) - sum(ends)
    print(f"iterations to execute again: {count:,}; they took {duration:,.1f} s in training", flush=True)
    for begin, (start, part) in parts.items():
        execute(files, start, ends[begin], None, trust, partial(EpisodeRecorder, part))
    write_page(page, f"Episodes of {short_path(run_dir)}", "".join(_write(record, config, out) for record in records))
    return page


def _first_iteration(row: Mapping[str, float], config: TrainConfig) -> int:
    """Return the earliest iteration in which the step before an episode may be, counted from 1."""
    return max(1, int(row["iteration"] - 1 - (row["length"] - 1) // config.min_steps))


def select(path: Path, selectors: Sequence[str]) -> list[dict[str, float]]:
    """Return the rows of episodes.csv that selectors match, each once.

    Args:
        path: the file.
        selectors: ENV:NUMBER, best:N or worst:N by return, or COLUMN=VALUE for the newest ones.

    Raises:
        ConfigError: if a selector has another form, or if it matches no row.
    """
    columns = read_columns(path)
    indices = dict.fromkeys(index for selector in selectors for index in _matches(columns, selector, path))
    return [{name: float(column[index]) for name, column in columns.items()} for index in indices]


def _matches(columns: dict[str, np.ndarray], selector: str, path: Path) -> list[int]:
    """Return the indices of the rows that a selector matches."""
    key, separator, value = selector.rpartition("=" if "=" in selector else ":")
    indices: list[int] = []
    with contextlib.suppress(KeyError, ValueError):
        if separator == ":" and key in ("best", "worst"):
            order = np.argsort(columns["return"], kind="stable").tolist()
            indices = (order if key == "worst" else order[::-1])[: max(int(value), 0)]
        else:
            wanted = {key: value} if separator == "=" else {"environment": key, "episode": value}
            equal = [columns[name] == float(text) for name, text in wanted.items()]
            matches = np.flatnonzero(np.all(equal, axis=0)).tolist()
            if len(matches) > NEWEST:
                print(f"--episode {selector} matches {len(matches):,} episodes; the newest {NEWEST} are replayed")
            indices = matches[: -NEWEST - 1 : -1]
    exists = (f"{name} {np.fmin.reduce(row):.10g} … {np.fmax.reduce(row):.10g}" for name, row in columns.items())
    require(
        bool(indices),
        f"--episode {selector} matches no row of {short_path(path)}; use ENV:NUMBER, best:N, worst:N, or COLUMN=VALUE "
        f"({', '.join(exists)})",
    )
    return indices


def _write(record: EpisodeRecord, config: TrainConfig, out: Path) -> str:
    """Write the steps of an episode, and its video if the environment can be rendered. Return its part of the page."""
    steps, options = record.steps()
    name = f"{record.row['environment']:.0f}-{record.row['episode']:.0f}"
    path, video = out / f"{name}.npz", out / f"{name}.mp4"
    with config_error_if_unwritable(path), replaced_file(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, **cast(Any, steps))
    try:
        _film(record.row, config, steps["actions"], options, video)
        film = embedded(video)
    except (ConfigError, EnvError) as error:
        video.unlink(missing_ok=True)
        print(f"no video of {name}: {error}")
        film = f"<p>no video: {escape(str(error))}</p>"
    row = table([{column: f"{value:.10g}" for column, value in record.row.items()}])
    curves = "".join(svg(_draw, curve, steps[curve]) for curve in ("reward", "value", "advantage"))
    return f'<h2>Episode {name}</h2>{row}<div class="panels">{film}</div><div class="panels">{curves}</div>'


def _draw(axis: Any, name: str, values: np.ndarray) -> None:
    axis.plot(values)
    label(axis, "step", name)


def _film(row: Mapping[str, float], config: TrainConfig, actions: np.ndarray, options: Any, path: Path) -> None:
    """Record the repetition of an episode. Raises ConfigError or EnvError if the environment cannot do that."""
    task, n = inspect_task(config).with_generators(NAMES), int(row["environment"])
    reward, terminated, truncated = np.zeros(1), np.zeros(1, bool), np.zeros(1, bool)
    render_without_display()
    make = partial(backend_of(task).make_played, config, task, n, n + 1, "rgb_array")
    with kept_generators(), VideoRecorder(path) as video, closing(make()) as envs:
        envs.options = options
        envs.reset_all(int(row["episode"]))
        for step, action in enumerate(task.distribution.to_env(actions)):
            film_step(cast(RenderedHandle, envs.handles[0]), video, config.env_id, step)
            ended = envs.step([action], reward, terminated, truncated)
    repeated = [end.crc for end in ended] == [row["crc"]]
    require(repeated, f"{config.env_id} does not repeat the episode when it is rendered; use the .npz file")
