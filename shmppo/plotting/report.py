"""A page about runs that needs no other file and no network: `python -m shmppo.plot RUN_DIR… --out report.html`."""

from __future__ import annotations

import html
import io
import itertools
import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from shmppo.config.train_config import TrainConfig
from shmppo.errors import printable
from shmppo.plotting.comparison import compare, last_values, mean_and_interval, mean_over_seeds, outcomes, with_seeds
from shmppo.plotting.curves import IGNORED_FIELDS, Groups, Run
from shmppo.plotting.plots import caption_of, check_metric, draw_groups, draw_phases, overview_panels
from shmppo.plotting.style import COLORS, new_figure
from shmppo.storage.run_directory import CONFIG, MEMORY_PICTURE, SUMMARY
from shmppo.utils.files import config_error_if_unwritable, make_parent_directory, read_file, read_object, short_path
from shmppo.utils.phase_timer import PHASES

PANEL_INCHES = (4.4, 2.7)
OPTION, DEFAULT = "option of train", "default of train"
"""Columns of the options, beside the labels of the configurations."""


def write_report(groups: Groups, out: Path, metrics: Sequence[str], over: str) -> None:
    """Write the page.

    Args:
        groups: the runs.
        out: file to write.
        metrics: columns to draw. Empty: the overview.
        over: column of the x axis.

    Raises:
        ConfigError: if a metric is unknown, if a file of a run is damaged, or if `out` cannot be written.
    """
    runs = [run for members in groups.values() for run in members]
    for metric in metrics:
        check_metric(groups, metric, over)
    panels = [(name, over) for name in metrics] or overview_panels(groups, over)
    body = _template("report.html").substitute(
        legend=legend(with_seeds(name, len(members)) for name, members in groups.items()),
        caption=caption_of(groups),
        curves="".join(svg(draw_groups, groups, *panel) for panel in panels),
        configurations=table(compare(groups)) if mean_over_seeds(groups) else "",
        results=table(results(run, outcomes(groups)) for run in runs),
        options=options({name: members[0].config for name, members in groups.items()}),
        phase_legend=legend(PHASES),
        phases="".join(svg(draw_phases, members, name) for name, members in groups.items()),
        memory="".join(newest_file(run, MEMORY_PICTURE) for run in runs),
        videos="".join(newest_file(run, "*.mp4", "*.gif") for run in runs),
        provenance=shared_and_own(list(map(provenance, runs))),
    )
    write_page(out, ", ".join(sorted({str(run.config.get("env", run.directory)) for run in runs})), body)


def write_page(out: Path, title: str, body: str) -> None:
    """Write a page in the style of all pages. body: HTML. Raises ConfigError if `out` cannot be written."""
    page = _template("page.html").substitute(title=escape(title), body=body)
    make_parent_directory(out, "--out")
    with config_error_if_unwritable(out):
        out.write_text(page, "utf-8")


def _template(name: str) -> Template:
    return Template(Path(__file__).with_name(name).read_text("utf-8"))


def escape(text: str) -> str:
    """Return a text as HTML that shows it. Control characters are escaped."""
    return html.escape(printable(text))


def svg(draw: Callable[..., None], *arguments: Any) -> str:
    """Return a panel as SVG. draw(axis, *arguments) draws it."""
    figure, (axis,) = new_figure(1, 1)
    figure.set_size_inches(PANEL_INCHES)
    draw(axis, *arguments)
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return f"<figure>{file.getvalue()[file.getvalue().index('<svg') :]}</figure>"


def legend(names: Iterable[str]) -> str:
    """Return the names, each with its color."""
    colored = zip(names, itertools.cycle(COLORS), strict=False)
    entries = (f'<li><span style="background:{color}"></span>{escape(name)}</li>' for name, color in colored)
    return f'<ul class="legend">{"".join(entries)}</ul>'


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows of values by column as a table. It has the columns of all rows."""
    rows = list(rows)
    header = {name: name for row in rows for name in row}
    cell = '<td data-name="{}">{}</td>'.format
    lines = ("".join(cell(escape(name), escape(str(row.get(name, "")))) for name in header) for row in (header, *rows))
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def results(run: Run, columns: Sequence[str]) -> dict[str, Any]:
    """Return how long a run was, and its last values."""
    last = {name: mean_and_interval(last_values([run], name)) for name in ("env_steps", "wall_seconds", *columns)}
    return {"run": run.directory, "seed": run.config.get("seed", ""), **last}


def options(configs: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a table of the options that differ between configurations, then from the defaults, and a table of all.

    configs: by label.
    """
    default = json.loads(json.dumps(TrainConfig().to_json()))
    rows = [
        {OPTION: name} | {label: config.get(name, "") for label, config in configs.items()} | {DEFAULT: value}
        for name, value in default.items()
    ]
    changed = [row for row in rows if row[OPTION] not in IGNORED_FIELDS and len(set(map(str, row.values()))) > 2]
    changed.sort(key=lambda row: len({str(row[label]) for label in configs}) == 1)  # those that differ first
    return f"{table(changed)}<details><summary>All options</summary>{table(rows)}</details>"


def shared_and_own(rows: list[dict[str, Any]]) -> str:
    """Return a table of the values that all rows share, and a table of the others."""
    shared = {name: value for name, value in rows[0].items() if all(row.get(name) == value for row in rows)}
    own = [{name: value for name, value in row.items() if name not in shared} for row in rows]
    return table({"name": name, "value": value} for name, value in shared.items()) + table(own)


def provenance(run: Run) -> dict[str, Any]:
    """Return what made a run: versions, processor, and revision, and the hash of its weights."""
    paths = [run.directory / CONFIG, run.directory / SUMMARY]
    config, summary = (read_object(path, "restore it, or remove it") if path.is_file() else {} for path in paths)
    texts = {name: value for name, value in config.items() if isinstance(value, str)}
    known = {"exact": "not checked yet"} | {name: value for name, value in summary.items() if value is not None}
    outcome = {name: known.get(name, "") for name in ("stop_reason", "exact", "weights_sha256")}
    return {"run": run.directory, **config.get("versions", {}), **texts, **outcome}


def newest_file(run: Run, *patterns: str) -> str:
    """Return the newest video or picture of these names in the directory of a run; "" if it has none."""
    files = [path for pattern in patterns for path in run.directory.rglob(pattern)]
    if not files:
        return ""
    return embedded(max(files, key=lambda path: path.stat().st_mtime))


def embedded(file: Path) -> str:
    """Return the content of a video or a picture as a part of a page."""
    data = b64encode(read_file(file)).decode()
    tag = f'<video controls src="data:video/mp4;base64,{data}"></video>'
    if file.suffix != ".mp4":
        tag = f'<img alt="{file.stem}" src="data:image/{file.suffix[1:]};base64,{data}">'
    return f"<figure>{tag}<figcaption>{escape(short_path(file))}</figcaption></figure>"
