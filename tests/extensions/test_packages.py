"""Extensions are optional: without one of them, only its flags are missing. The core does not name them."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from public_helpers import python, summary_of

import shmppo
from shmppo.config.command_line import flags_of
from shmppo.config.train_config import EXTENSIONS

PACKAGE = Path(shmppo.__file__).parent
NAMES = sorted(path.name for path in (PACKAGE / "extensions").iterdir() if (path / "__init__.py").exists())
WORDS = {
    "agents": r"agents?\b|opponent|self.play|\bseat",
    "auxiliary": "auxiliary",
    "kl_profile": "kl.profile",
    "mujoco": 'mujoco_(tasks|vector)|"mujoco"\\]|backend.{0,4}mujoco',
    "preemption": "preempt",
    "teaching": "teacher|distill|demonstration|minari",
    "vector": '"vector"\\]|backend.{0,4}vector|user_vector',
}
"""What only the extension of this name may contain."""
SHARED = {
    "config/foreign_flags.json": "names of other trainers",
    "config/removed.py": "flags of earlier versions",
    "config/presets.py": "options of trained policies",
}
"""Files that may name an extension, with the reason."""


def options_of(name: str) -> set[str]:
    """The flags of an extension, and those that their texts name."""
    kinds = [kind for kind in EXTENSIONS if kind.__module__.split(".")[-2] == name]
    flags = [flag for kind in kinds for flag in flags_of(kind)]
    return {"--" + flag.field.replace("_", "-") for flag in flags}.union(*(flags_in(flag.text) for flag in flags))


def flags_in(text: str) -> set[str]:
    return set(re.findall(r"--(?!no-)[a-z][a-z-]*", text))


@pytest.mark.parametrize("name", NAMES)
def test_the_core_does_not_name_an_extension(name: str) -> None:
    files = [path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".json", ".html", ".c", ".h")]
    core = [path for path in files if "extensions" not in path.parts and str(path.relative_to(PACKAGE)) not in SHARED]
    found = [
        f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}"
        for path in core
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if re.search(WORDS[name], line, re.IGNORECASE)
    ]
    assert not found, "\n".join(found)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, set[str]]:
    """The hash of the default job after two iterations, and its flags."""
    return run_default_job(PACKAGE.parent, tmp_path_factory.mktemp("reference"))


def run_default_job(root: Path, directory: Path) -> tuple[str, set[str]]:
    environ = {**os.environ, "PYTHONPATH": str(root)}
    shown = python("-m", "shmppo.train", "--help-all", env=environ, cwd=directory)
    assert shown.returncode == 0, shown.stderr
    flags = ("--stop-at-iteration", 2, "--workers", 2, "--quiet", "--run-dir", directory / "run")
    ran = python("-m", "shmppo.train", *flags, env=environ, cwd=directory)
    assert ran.returncode == 0, ran.stderr
    assert json.loads((directory / "run" / "config.json").read_text())["config"]["env"] == "CartPole-v1"
    return summary_of(directory / "run")["weights_sha256"], flags_in(shown.stdout)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_without_an_extension_only_its_flags_are_missing(
    name: str, reference: tuple[str, set[str]], tmp_path: Path
) -> None:
    root = tmp_path / "copy"
    shutil.copytree(PACKAGE, root / "shmppo", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(root / "shmppo" / "extensions" / name)
    sha256, flags = run_default_job(root, tmp_path)
    assert sha256 == reference[0]
    assert reference[1] - flags == options_of(name) - flags
    assert flags <= reference[1]
