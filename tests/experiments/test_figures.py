"""The pictures of figures/: each is shown in the documentation, and its script draws it again from its tables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import TESTS
from public_helpers import python

from figures.common.curves import draw_curve
from shmppo.plotting.style import new_figure

ROOT = TESTS.parent
FIGURES = ROOT / "figures"
PICTURES = sorted(path.stem for path in FIGURES.glob("*/*.svg"))
PLOTTED = [name for name in PICTURES if not (FIGURES / name / "draw.py").exists()]
"""Pictures of tables. A picture by draw.py shows the program."""


def texts(svg: Path) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg.read_text())


def test_the_documentation_shows_every_picture() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = {name for page in pages for name in re.findall(r"figures/(\w+)/\1\.svg\)", page.read_text())}
    assert sorted(shown) == PICTURES
    assert {path.parent.name for path in FIGURES.glob("*/*.svg")} == set(PICTURES), "a picture has its folder's name"


@pytest.mark.slow(reason="about 4 s per picture")
@pytest.mark.parametrize("name", PLOTTED)
def test_a_picture_is_what_its_script_makes_of_its_tables(name: str, tmp_path: Path) -> None:
    assert list((FIGURES / name).glob("*.csv"))
    out = tmp_path / "figure.svg"
    done = python("-m", f"figures.{name}.plot", "--out", out, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert texts(out) == texts(FIGURES / name / f"{name}.svg")
    assert any("Commit" in text for text in texts(out))


def test_a_curve_has_no_seeds_of_another_variant(tmp_path: Path) -> None:
    for name, value in (("A-lru-s1", 1), ("A-lru-s12", 3), ("A-lru-seq16-s1", 100)):
        (tmp_path / f"{name}.csv").write_text(f"env_steps,return\n0,{value}\n10,{value}\n")
    _, (axis,) = new_figure(1, 1)
    draw_curve(axis, tmp_path, "A-lru", "return", "A", "blue")
    assert axis.lines[0].get_label() == "A (2 seeds)"
    assert set(axis.lines[0].get_ydata()) == {2}
