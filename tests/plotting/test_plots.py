"""Plots of runs: statistics by hand, runs grouped by their configuration, and the files that are written.

The page of `plot --out report.html` is complete, without other files, and as wide as the window.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from public_helpers import exit_code

from shmppo.errors import ConfigError
from shmppo.loggers.metrics import GLOSSARY
from shmppo.plot import main
from shmppo.plotting.comparison import compare
from shmppo.plotting.curves import Groups, Run, aggregate, group_runs, interquartile_mean, mean_name, read_run
from shmppo.plotting.plot_curves import plot_curves
from shmppo.plotting.plots import caption_of, draw_groups
from shmppo.plotting.style import new_figure


def texts(svg: Path) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg.read_text())


def written_run(run_dir: Path, *, iterations: int = 4, level: float = 0.0, **fields: object) -> Path:
    """Write the directory of a run. The return rises from `level` by 1 in each iteration of 10 steps."""
    run_dir.mkdir()
    (run_dir / "config.json").write_text(json.dumps({"config": {"env": "Some-v0", "seed": 1} | fields}))
    lines = [",".join(GLOSSARY)]
    for i in range(1, iterations + 1):
        row = dict.fromkeys(GLOSSARY, 0.5) | {"iteration": i, "env_steps": 10 * i, "wall_seconds": i / 4}
        row["return_mean_100"] = float("nan") if i == 1 else level + i
        lines.append(",".join(str(row[name]) for name in GLOSSARY))
    (run_dir / "metrics.csv").write_text("\n".join(lines) + "\n")
    return run_dir


def test_runs_of_versions_with_other_fields_are_separate_groups(tmp_path: Path) -> None:
    old, new = written_run(tmp_path / "old"), written_run(tmp_path / "new", log_std_min=None)
    third = written_run(tmp_path / "third", log_std_min=-1.0)
    groups = group_runs([read_run(run) for run in (old, new, third)])
    assert [[run.directory.name for run in runs] for runs in groups.values()] == [["old"], ["new"], ["third"]]
    for run in (old, new):
        (run / "config.json").unlink()
    assert len(group_runs([read_run(old), read_run(new)])) == 2
    (third / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json is damaged .*; restore it"):
        read_run(third)


def test_the_interquartile_mean_leaves_out_a_quarter_at_each_end() -> None:
    values = np.array([[100.0], [1], [2], [3], [4], [5], [6], [-100]])  # 8 runs: the outer 2 at each end go
    assert interquartile_mean(values) == pytest.approx([(2 + 3 + 4 + 5) / 4])
    assert interquartile_mean(values[1:4]) == pytest.approx([2.0])  # 3 runs: nothing goes
    assert [mean_name(runs) for runs in (3, 4)] == ["mean", "interquartile mean"]


def written_groups(directory: Path, **seeds: int) -> Groups:
    """Write runs of each core with the seeds 1 … n, whose last return is 4 more than the seed, and group them."""
    named = [(core, seed) for core, count in seeds.items() for seed in range(1, count + 1)]
    return group_runs(
        [read_run(written_run(directory / f"{core}{seed}", core=core, seed=seed, level=seed)) for core, seed in named]
    )


def test_the_caption_says_which_mean_is_drawn(tmp_path: Path) -> None:
    groups = written_groups(tmp_path, lru=1, lstm=3, gru=4)
    one, three, four = ({name: members} for name, members in groups.items())
    assert caption_of(one) == ""
    assert caption_of(one | three) == "Thick: mean of the seeds. Thin: each seed. Shaded: 95 % bootstrap interval."
    assert caption_of(four).startswith("Thick: interquartile mean of the seeds. ")
    assert caption_of(groups).startswith("Thick: interquartile mean or, below 4, mean of the seeds. ")
    plot_curves([run.directory for run in groups["core lstm"]], tmp_path / "few.svg", metrics=("approx_kl",))
    assert caption_of(three) in texts(tmp_path / "few.svg")


def test_each_seed_is_a_thin_line(tmp_path: Path) -> None:
    _, (axis,) = new_figure(1, 1)
    draw_groups(axis, written_groups(tmp_path, lstm=3), "return_mean_100", "env_steps")
    mean, *seeds = axis.lines
    assert [line.get_ydata()[-1] for line in (mean, *seeds)] == [6, 5, 6, 7]
    assert all(line.get_linewidth() < mean.get_linewidth() for line in seeds)


def test_a_row_compares_a_configuration_with_the_first(tmp_path: Path) -> None:
    groups = written_groups(tmp_path, lstm=2, gru=3, lru=1)
    first, second, third = compare(groups)
    assert (first["configuration"], first["seeds"], first["return_mean_100"]) == ("core lstm", 2, "5.500 (5 to 6)")
    assert second["return_mean_100"] == "6 (5 to 7)"
    # 5, 6, and 7 against 5 and 6: 3 of 6 pairs are higher and 2 are equal.
    better = "P(higher return_mean_100 than core lstm)"
    assert second[better] == "0.67"
    assert third["return_mean_100"] == "5"
    assert better not in first | third, "neither has several seeds and another configuration"
    for run in groups["core gru"] + groups["core lstm"]:
        run.evaluations["eval/return"] = np.array([9.0, np.nan if run.config["seed"] == 3 else run.config["seed"]])
    second, third = compare(groups)[1:]
    assert second["eval/return"] == "1.500 (1 to 2)", "seed 3 has no value"
    assert second[better] == "0.67", "a run has no evaluation"
    assert third["eval/return"] == "-"
    groups["core lru"][0].evaluations["eval/return"] = np.array([3.0])
    assert compare(groups)[1]["P(higher eval/return than core lstm)"] == "0.50"


def test_the_overview_shows_success_and_evaluations(tmp_path: Path) -> None:
    run = written_run(tmp_path / "a")
    lines = (run / "metrics.csv").read_text().splitlines()
    (run / "metrics.csv").write_text("\n".join([f"{lines[0]},info/is_success", *(f"{line},0.5" for line in lines[1:])]))
    evaluations = "iteration,env_steps,eval/return,eval/info/is_success\n2,20,1.5,0.25\n4,40,2.5,\n"
    (run / "eval.csv").write_text(evaluations)
    plot_curves([run], tmp_path / "a.svg")
    found = texts(tmp_path / "a.svg")
    assert {"info/is_success", "return of evaluated episodes", "clip fraction", "time of Some-v0"} <= set(found)
    assert "eval/info/is_success" not in found, "one value is no curve"
    plot_curves([run, written_run(tmp_path / "b", seed=2)], tmp_path / "b.svg")
    assert "time of the first seed of Some-v0" in texts(tmp_path / "b.svg")


def test_several_labels_follow_one_flag(tmp_path: Path) -> None:
    runs = [written_run(tmp_path / core, core=core) for core in ("lstm", "gru", "lru")]
    labels = [f"{run}=the {run.name}" for run in runs]
    words = [*runs, "--label", *labels[:2], "--metric", "approx_kl", "--label", labels[2], "--out", tmp_path / "a.svg"]
    assert exit_code(main, words) == 0
    assert {"the lstm", "the gru", "the lru"} <= set(texts(tmp_path / "a.svg"))


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    run = written_run(tmp_path / "a")
    with pytest.raises(ConfigError, match=r"a\.jpg: the file name's ending must be one of pdf, png, svg, html$"):
        plot_curves([run], tmp_path / "a.jpg", metrics=("approx_kl",))


def test_runs_are_aggregated_over_the_steps_that_all_of_them_cover() -> None:
    runs = [
        Run(Path("a"), {}, {"x": np.array([0.0, 10, 20]), "y": np.array([0.0, 10, 20])}),
        Run(Path("b"), {}, {"x": np.array([5.0, 15, 30]), "y": np.array([np.nan, 4, 4])}),
    ]
    curve = aggregate(runs, "y", "x")
    assert curve is not None
    assert (curve.x[0], curve.x[-1], len(curve.values)) == (15, 20, 2)
    np.testing.assert_allclose(curve.mean, (curve.x + 4) / 2)
    np.testing.assert_allclose(curve.low, 4)  # of 2 runs, a quarter of the draws is the lower one twice
    np.testing.assert_allclose(curve.high, curve.x)
    assert aggregate(runs, "unknown", "x") is None


def test_the_bootstrap_interval_lies_around_the_interquartile_mean() -> None:
    rng = np.random.default_rng(1)
    levels = rng.normal(size=16)
    runs = [Run(Path("r"), {}, {"x": np.array([0.0, 1]), "y": np.array([level, level])}) for level in levels]
    curve = aggregate(runs, "y", "x")
    assert curve is not None
    inner = np.sort(levels)[4:12]
    assert curve.mean[0] == pytest.approx(inner.mean())
    assert inner.min() < curve.low[0] < curve.mean[0] < curve.high[0] < inner.max()


def test_runs_that_differ_only_in_their_seed_are_one_group(tmp_path: Path) -> None:
    runs = [
        read_run(written_run(tmp_path / "a", core="lstm", gamma=0.9)),
        read_run(written_run(tmp_path / "b", core="none", gamma=0.9)),
        read_run(written_run(tmp_path / "c", core="lstm", gamma=0.9, seed=2)),
    ]
    groups = group_runs(runs)
    assert {label: [run.directory.name for run in members] for label, members in groups.items()} == {
        "core lstm": ["a", "c"],
        "core none": ["b"],
    }
    assert list(group_runs(runs[:1])) == ["Some-v0"]


def test_seeds_with_other_numbers_of_workers_are_one_group_but_not_equal_runs(tmp_path: Path) -> None:
    seeds = [read_run(written_run(tmp_path / f"s{i}", seed=i, workers=workers)) for i, workers in ((1, 5), (2, 6))]
    assert [len(members) for members in group_runs(seeds).values()] == [2]
    faster = read_run(written_run(tmp_path / "faster", seed=1, workers=6))
    assert [len(members) for members in group_runs([seeds[0], faster]).values()] == [1, 1]
    fork = read_run(written_run(tmp_path / "fork", seed=1, workers=5))
    assert [len(members) for members in group_runs([*seeds, fork]).values()] == [2, 1]


def test_a_label_names_a_configuration_and_runs_with_the_same_label_are_one_group(tmp_path: Path) -> None:
    runs = [
        read_run(written_run(tmp_path / f"{core}{seed}", core=core, seed=seed))
        for core in ("lstm", "gru", "lmu")
        for seed in (1, 2)
    ]
    names = {tmp_path / "lstm1": "mine", tmp_path / "gru1": "one", tmp_path / "gru2": "two", tmp_path / "lmu2": "one"}
    groups = {label: [run.directory.name for run in members] for label, members in group_runs(runs, names).items()}
    assert groups == {"mine": ["lstm1", "lstm2"], "one": ["gru1", "lmu1", "lmu2"], "two": ["gru2"]}


def test_any_metric_can_be_plotted_over_steps_or_seconds(tmp_path: Path) -> None:
    run = written_run(tmp_path / "a")
    (run / "eval.csv").write_text("iteration,env_steps,eval/return\n2,20,1.5\n4,40,2.5\n")
    words = [run, "--metric", "gradient_norm", "eval/return", "--x", "seconds", "--out", tmp_path / "a.svg"]
    assert exit_code(main, words) == 0
    found = texts(tmp_path / "a.svg")
    assert {"gradient_norm", "return of evaluated episodes", "training time (s)"} <= set(found)
    assert not {"environment steps", "clip fraction"} & set(found)
    x, y = read_run(run).curve("eval/return", "wall_seconds") or ((), ())
    np.testing.assert_array_equal(x, [0.5, 1.0])  # of iterations 2 and 4
    np.testing.assert_array_equal(y, [1.5, 2.5])
    plot_curves((run,), tmp_path / "steps.svg", metrics=("gradient_norm",))
    assert "environment steps" in texts(tmp_path / "steps.svg")


def test_metrics_that_cannot_be_plotted_are_refused(tmp_path: Path) -> None:
    runs = written_run(tmp_path / "a"), written_run(tmp_path / "b", iterations=2)
    for name, message in (
        ("aprox_kl", r"--metric aprox_kl is not a metric \(did you mean approx_kl\?\); .*a/metrics\.csv and eval\.csv"),
        ("eval/return", r"--metric eval/return: .*a, .*b has fewer than two values; name another metric"),
        ("return_mean_100", r"--metric return_mean_100: .*/b has fewer than two values"),  # nan in iteration 1 of 2
    ):
        with pytest.raises(ConfigError, match=message):
            plot_curves(runs, tmp_path / "a.svg", metrics=("approx_kl", name))
    (tmp_path / "a" / "eval.csv").write_text("iteration,env_steps,eval/return\n")
    assert read_run(tmp_path / "a").evaluations == {}
    for run, shown in ((runs[0], False), (runs[1], True)):
        plot_curves([run], tmp_path / "a.svg")
        assert ("no values yet" in texts(tmp_path / "a.svg")) is shown, "b has one return"


class Page(HTMLParser):
    """The tables, the text, and the addresses of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.text = ""
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attributes if name in ("src", "href", "xlink:href")]
        if tag == "tr":
            self.rows.append([])
        if tag == "td":
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.rows and self.rows[-1] and self.tags[-1] == "td":
            self.rows[-1][-1] += data

    def row(self, *begin: str) -> list[str]:
        return next(row for row in self.rows if row[: len(begin)] == list(begin))


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Two configurations with two seeds each; the first run has an evaluation, a video, and provenance."""
    runs = [
        written_run(tmp_path / f"{core}{seed}", core=core, seed=seed, gamma=0.123456, level=seed)
        for core in ("lstm", "<gru>")
        for seed in (1, 2)
    ]
    (runs[0] / "eval.csv").write_text("iteration,env_steps,eval/return,eval/info/win\n2,20,1.5,0\n4,40,2.25,0.5\n")
    (runs[0] / "episode.mp4").write_bytes(b"a video")
    record = json.loads((runs[0] / "config.json").read_text())
    record |= {"versions": {"torch": "2.9"}, "processor": "a processor", "git_revision": "abc"}
    (runs[0] / "config.json").write_text(json.dumps(record))
    (runs[0] / "summary.json").write_text(json.dumps({"exact": True, "weights_sha256": "123abc"}))
    return runs


@pytest.mark.long
def test_the_page_shows_the_runs_without_other_files(runs: list[Path], tmp_path: Path) -> None:
    plot_curves(runs, tmp_path / "page" / "report.html")
    page = Page(tmp_path / "page" / "report.html")
    assert page.tags.count("svg") == 4 + 2 + 2  # the overview, two metrics of the evaluation, phases of two groups
    assert not {"script", "link", "iframe"} & set(page.tags)
    assert all(re.match(r"#|data:", address) for address in page.addresses), page.addresses
    assert not re.search(r"url\(http|overflow-x|nowrap", (tmp_path / "page" / "report.html").read_text())
    assert "core lstm (2 seeds)" in page.text
    assert "core <gru> (2 seeds)" in page.text
    assert page.row("core lstm", "2")[2:4] == ["mean (95 % interval)", "5.500 (5 to 6)"]
    assert page.row("core <gru>", "2")[-1].strip() == "0.50"
    assert page.row("core") == ["core", "lstm", "<gru>", "lstm"]
    assert page.row("gamma") == ["gamma", "0.123456", "0.123456", "0.99"]
    plot_curves(runs, tmp_path / "default.html", labels=(f"{runs[0]}=default", f"{runs[2]}=option"))
    assert Page(tmp_path / "default.html").row("core") == ["core", "lstm", "<gru>", "lstm"]
    names = [row[0] for row in page.rows]
    assert names.index("core") < names.index("gamma"), "options that differ come first"
    header, result = page.row("run", "seed"), page.row(str(runs[0]), "1")
    found = dict(zip(header, result, strict=True))
    assert found["eval/return"] == "2.250"
    assert found["eval/info/win"] == "0.500"
    assert found["return_mean_100"] == "5"
    made = dict(zip(page.row("run", "torch"), page.row(str(runs[0]), "2.9"), strict=True))
    assert made["processor"] == "a processor"
    assert made["git_revision"] == "abc"
    assert made["exact"] == "True"
    assert made["weights_sha256"] == "123abc"
    plot_curves(runs[:1], tmp_path / "one.html")
    alone = Page(tmp_path / "one.html")
    assert alone.row("weights_sha256")[1].strip() == "123abc"
    assert not any("configuration" in row for row in alone.rows)
    assert not re.search("seeds|all runs", alone.text)
    (video,) = (address for address in page.addresses if address.startswith("data:video"))
    assert b64decode(video.partition(",")[2]) == b"a video"
