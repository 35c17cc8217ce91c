"""README and docs: code blocks are valid or run, every link has a target, and every path and flag exists.

What is checked of a block depends on its language:

- `python`: it compiles. It is written to the file that its first line `# NAME.py` names, and runs if it has a main
  part.
- `bash`: every command of this package runs, except those in NOT_RUN, and training ends after a few iterations. Of
  `search` and `bench` only the flags are parsed. RUN_DIR and ANOTHER_RUN_DIR are trained runs. A block whose first line
  begins with `# requires` is only checked for flags.
- `text` and `yaml`: they are only shown.

The cells of the notebook tutorial run one after the other, as in a kernel that is not started from a file.
"""

from __future__ import annotations

import functools
import pkgutil
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import tyro
from conftest import TESTS
from public_helpers import exit_code, python, run_fixture
from torch.distributed.run import get_args_parser

from docs.generate import option_types
from shmppo import cli
from shmppo.cli import options_type
from shmppo.config.command_line import flags_of
from shmppo.config.train_config import TrainConfig
from shmppo.search.options import parse_search

ROOT = TESTS.parent
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_RUN = (
    "python3 -m venv", "pip install", ".venv/bin/pip", ".venv/bin/ruff", ".venv/bin/mypy", ".venv/bin/lint-imports",
    ".venv/bin/pre-commit", "source .venv/bin/activate", "torchrun ", "uvx ",
)  # fmt: skip
"""Beginnings of commands that install packages or need more machines. .ci/run runs those of the README."""
MEASURED = "*Measured at commit"
"""Beginning of a line with the command of an experiment, which has flags of its own."""
OTHER_FLAGS = {"--version", "--help", "--help-all", "--logdir", "--lr", "--no-", "--train"}
"""Flags that are no options, and those of other programs that pages name."""
SHORT = ("--stop-at-iteration", "6", "--workers", "0", "--quiet")
"""Flags that make a training command of the docs short. The last of two equal flags counts."""
USERS_MODULE = """
import gymnasium
from gymnasium.envs.classic_control import PendulumEnv

gymnasium.register("MyEnv-v0", PendulumEnv, max_episode_steps=200)
MyWrapper = gymnasium.Wrapper


def make(size, render_mode=None):
    return gymnasium.make("Pendulum-v1", max_episode_steps=size)


MyEnv = make
"""


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).with_suffix("").as_posix()


def blocks(page: Path) -> list[tuple[str, str]]:
    """(language, text) of each fenced block."""
    return FENCE.findall(page.read_text())


def commands(text: str) -> list[str]:
    """The commands of a shell block."""
    joined = text.replace("\\\n", " ")
    return [part.strip() for line in joined.splitlines() for part in line.split("&&") if part.strip()]


trained = run_fixture(TrainConfig(workers=0, quiet=True, stop_at_iteration=5, kl_profile_every=1))


def run_python(code: str, name: str) -> None:
    """Write a block to its file, and run it if it has a main part."""
    Path(name).write_text(code)
    if '__name__ == "__main__"' in code:
        result = python(name)
        assert result.returncode == 0, result.stderr


def run_command(command: str) -> None:
    """Run a command of this package in this process."""
    words = shlex.split(command.replace("ANOTHER_RUN_DIR", "another").replace("RUN_DIR", "run"), comments=True)
    if not words or command.startswith(NOT_RUN):
        return
    if words[0] == "shmppo":
        name, arguments = words[1], words[2:]
    else:
        assert words[0] in ("python", ".venv/bin/python"), command
        assert words[1] == "-m", command
        name, arguments = words[2].removeprefix("shmppo."), words[3:]
        if name == "shmppo":
            name, *arguments = arguments
    if name == "pytest":
        return
    assert name in cli.COMMANDS, command
    if name == "search":
        parse_search(arguments)
        return
    if name == "bench":  # it measures for minutes, and has tests of its own
        tyro.cli(options_type(name), args=arguments)
        return
    if name == "train":
        arguments += SHORT
    assert exit_code(pkgutil.resolve_name(f"shmppo.{cli.COMMANDS[name].module}:main"), arguments) == 0, command


@pytest.mark.long
@pytest.mark.timeout(600)  # a page may have many blocks
@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_code_blocks_run(page: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("onnxscript", "imageio_ffmpeg", "matplotlib"):
        pytest.importorskip(library)
    for name in ("run", "another"):
        shutil.copytree(trained, tmp_path / name)
    (tmp_path / "my_module.py").write_text(USERS_MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for language, text in blocks(page):
        if language == "python":
            title = re.match(r"# (\w+\.py)\n", text)
            run_python(text, title[1] if title else "block.py")
        elif language == "bash" and not text.startswith("# requires"):
            for command in commands(text):
                run_command(command)
        elif language == "c" and shutil.which("gcc"):
            Path("block.c").write_text(text)
            subprocess.run(["gcc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-c", "block.c"], check=True)
        else:  # C++ needs the headers of ONNX Runtime
            assert language in ("bash", "text", "yaml", "c", "cpp"), f"{page.name}: a block without a language"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_python_blocks_compile(page: Path) -> None:
    for language, text in blocks(page):
        if language == "python":
            compile(text, page.name, "exec")


def anchors(page: Path) -> set[str]:
    """Anchors of the headings of a page, as web hosts make them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_have_a_target(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text())):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(file), f"{page.name} links to {target}"


def test_paths_that_are_named_exist() -> None:
    for page in PAGES:
        for path in re.findall(r"`((?:examples|tests|figures|docs|shmppo)/[\w./-]+\.\w+)`", page.read_text()):
            assert "NAME" in path or (ROOT / path).exists(), f"{page.name} names {path}"


@functools.cache
def known_flags() -> set[str]:
    """Flags of all commands, and of torchrun."""
    names = {flag.field.replace("_", "-") for kind in option_types().values() for flag in flags_of(kind)}
    own = {f"--{prefix}{name}" for name in names for prefix in ("", "no-")}
    torchrun = {flag for action in get_args_parser()._actions for flag in action.option_strings}
    return own | torchrun | OTHER_FLAGS


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_flags_exist(page: Path) -> None:
    text = "\n".join(line for line in page.read_text().splitlines() if not line.startswith((*NOT_RUN, MEASURED)))
    for flag in set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)):
        assert flag in known_flags(), f"{page.name} names {flag}"


def test_defaults_in_the_tables_of_other_trainers_are_right() -> None:
    """The rows that end in a flag and a number: `| theirs | … | `--num-envs` | 16 |`."""
    flags = {flag.field: flag for flag in flags_of(option_types()["train"])}
    row = re.compile(r"\| `--([a-z-]+)` \| ([\d.,e-]*\d) \|$", re.MULTILINE)
    found = [(page, *match) for page in DOCS for match in row.findall(page.read_text())]
    assert len(found) > 20
    for page, name, number in found:
        default = flags[name.replace("-", "_")].default
        assert float(number.replace(",", "")) == float(default), f"{page.name}: --{name} is {default}, not {number}"


NOTEBOOK = TESTS.parent / "docs" / "tutorials" / "notebook.md"


@pytest.mark.long
def test_cells_run_in_order(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    cells = re.findall(r"^```python\n(# cell \d\n.*?)^```$", NOTEBOOK.read_text(), re.MULTILINE | re.DOTALL)
    assert [cell[:8] for cell in cells] == ["# cell 1", "# cell 2", "# cell 3"]
    assert "total_steps=100_000" in cells[0]
    code = "\n".join(cells).replace("total_steps=100_000", "total_steps=6_144, quiet=True")
    code = f"import matplotlib\nmatplotlib.use('agg')\n{code}\nassert total > 0"
    result = python("-c", code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
