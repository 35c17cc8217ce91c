"""The page of `plot --out report.html`: complete, without other files, and as wide as the window."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from html.parser import HTMLParser
from pathlib import Path

import pytest
from test_plots import written_run

from shmppo.plotting.plot_curves import plot_curves


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
    assert "url(http" not in (tmp_path / "page" / "report.html").read_text()
    assert "core lstm (2 runs)" in page.text
    assert "core <gru> (2 runs)" in page.text
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
    (video,) = (address for address in page.addresses if address.startswith("data:video"))
    assert b64decode(video.partition(",")[2]) == b"a video"
