"""The public names of the package, and the table of the experiments."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from public_helpers import python

from shmppo.models.devices import UNTESTED_TORCH

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "shmppo"
FIGURES = ROOT / "figures"

PUBLIC = {
    "ConfigError", "EnvError", "MujocoTask", "RankError", "SaveError", "ShmppoError", "TrainConfig", "TrainingError",
    "WorkerError", "load_policy", "plot_runs", "portable", "preset", "read_metrics", "resume", "train",
}  # fmt: skip


IMPORT_ORDERS = {
    "the root first": "import shmppo, shmppo.train, shmppo.runs.launch",
    "the command first": "import shmppo.train; import shmppo",
    "the trainer first": "import shmppo.runs.launch; import shmppo",
    "by name": "import importlib; importlib.import_module('shmppo.train'); import shmppo",
    "main first": "from shmppo.train import main; import shmppo; assert callable(main)",
    "train first": "from shmppo import train; import shmppo.train; import shmppo; assert train is shmppo.train",
}


@pytest.mark.long
@pytest.mark.parametrize("order", IMPORT_ORDERS)
def test_the_public_names_do_not_depend_on_the_order_of_imports(order: str) -> None:
    script = f"""
{IMPORT_ORDERS[order]}
import inspect, sys
missing = {PUBLIC!r} - set(dir(shmppo))
assert not missing, missing
assert set(shmppo.__all__) == {PUBLIC!r} | {{"__version__"}}, shmppo.__all__
assert inspect.isfunction(shmppo.train), shmppo.train
from shmppo.train import main
assert inspect.isfunction(main) and sys.modules["shmppo.train"] is not shmppo.train
"""
    result = python("-c", script)
    assert result.returncode == 0, result.stderr


def experiments() -> list[str]:
    """Folders of figures/ that hold an experiment; `common` holds what they share."""
    folders = (path.name for path in FIGURES.iterdir() if path.is_dir())
    return sorted(name for name in folders if name not in ("common", "__pycache__"))


@pytest.mark.parametrize("experiment", experiments())
def test_every_experiment_has_a_row_in_the_table(experiment: str) -> None:
    lines = (FIGURES / "README.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith(f"| [{experiment}]({experiment}) |")]
    assert len(rows) == 1, f"figures/README.md has {len(rows)} rows for {experiment}"


def test_tests_run_with_a_tested_torch_and_users_have_any() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert re.findall(r'"torch([^"]*)"', text) == [">=2.6", f"<{UNTESTED_TORCH}"]
    assert text.index("[project.optional-dependencies]\ntest = [\n") < text.index(f'"torch<{UNTESTED_TORCH}"')


def test_the_image_is_built_by_the_script_that_ci_executes() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    system, *steps = [line.removeprefix("RUN ") for line in lines if line.startswith("RUN ")]
    assert system.startswith("apt-get ")
    assert steps == [".ci/package /dist"]
    assert '.ci/package "$work/dist"' in (ROOT / ".ci" / "run").read_text()
    copied = [name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]]
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert {"pyproject.toml", "setup.py", ".ci/package", "shmppo"} <= {*copied}
