"""What the README says of the code is so: the glossary, the floors, the flags it names."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.run import get_args_parser

from shmppo import cli
from shmppo.config.flags import SourceOptions
from shmppo.loggers.metrics import EVALUATION_GLOSSARY, GLOSSARY
from shmppo.runs.trainer import ResumeConfig

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PACKAGE = ROOT / "shmppo"


def options_of(name: str) -> list[Any]:
    """The options of a command of the console script, each a dataclass."""
    options = getattr(importlib.import_module(f"shmppo.{name}"), cli.COMMANDS[name].options)
    return list(options.values()) if isinstance(options, dict) else [options]


def floors() -> dict[str, int]:
    """Floor of each module, from the README's table."""
    table = README.split("## Files and floors")[1].split("\n## ")[0]
    found = {}
    for line in table.splitlines():
        match = re.match(r"\| (\d+) \|", line)
        if match:
            found |= {name: int(match[1]) for name in re.findall(r"`(\w+)\.py`", line)}
    return found


def imports_of(path: Path) -> set[str]:
    """Modules of the package that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "shmppo":
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("shmppo."):
            names.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            names |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("shmppo.")}
    return names


def test_every_module_has_a_floor_and_imports_from_lower_ones_only() -> None:
    floor = floors()
    modules = {path.stem: path for path in PACKAGE.glob("*.py") if path.stem != "__init__"}
    assert set(floor) == set(modules)
    for name, path in modules.items():
        for imported in imports_of(path):
            assert floor[imported] < floor[name], f"{name} (floor {floor[name]}) imports {imported}"


def test_worker_and_learner_do_not_import_each_other() -> None:
    assert "learner" not in imports_of(PACKAGE / "worker.py")
    assert "worker" not in imports_of(PACKAGE / "learner.py")


@pytest.mark.parametrize(("heading", "glossary"), [("column", GLOSSARY), ("column of `eval.csv`", EVALUATION_GLOSSARY)])
def test_each_glossary_is_the_header_of_its_file(heading: str, glossary: dict[str, str]) -> None:
    table = README.split(f"\n| {heading} | meaning |\n")[1].split("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", table, re.MULTILINE)
    assert dict(rows) == glossary


def test_every_flag_that_the_readme_names_exists() -> None:
    kinds = [SourceOptions, ResumeConfig, *(kind for name in cli.COMMANDS for kind in options_of(name))]
    known = {"--" + f.name.replace("_", "-") for kind in kinds for f in dataclasses.fields(kind)}
    known |= {flag for action in get_args_parser()._actions for flag in action.option_strings}  # torchrun's
    for flag in set(re.findall(r"--[a-z][a-z-]+", README)) - {"--help"}:
        assert flag in known, flag
