"""The layout of the package and of the experiments."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "shmppo"
FIGURES = ROOT / "figures"

PACKAGES = {
    "bench", "config", "envs", "kernels", "lockstep", "loggers", "models", "parallel", "plotting", "policies", "ppo",
    "runs", "sampling", "search", "spaces", "storage", "tools", "train", "utils",
}  # fmt: skip
COMMANDS = {"check_env", "evaluate", "export", "plot", "replay", "verify"}
"""Commands that are modules. `train` and `search` are packages, and `bench` has a `__main__`."""
OTHER_MODULES = {"__init__", "__main__", "cli", "errors", "version"}
PUBLIC = {
    "ConfigError", "EnvError", "RankError", "SaveError", "ShmppoError", "TrainConfig", "TrainingError", "WorkerError",
    "load_policy", "portable", "preset", "resume", "train",
}  # fmt: skip


def test_the_top_level_holds_only_packages_and_commands() -> None:
    entries = {path for path in PACKAGE.iterdir() if path.name != "__pycache__"}
    assert {path.name for path in entries if path.is_dir()} == PACKAGES
    assert {path.name for path in entries if path.is_file()} == {
        "py.typed",
        *(f"{name}.py" for name in COMMANDS | OTHER_MODULES),
    }


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_each_package_says_what_it_is_for(package: str) -> None:
    assert ast.get_docstring(ast.parse((PACKAGE / package / "__init__.py").read_text()))


IMPORT_ORDERS = {
    "the root first": "import shmppo, shmppo.train, shmppo.runs.trainer",
    "the command first": "import shmppo.train; import shmppo",
    "the trainer first": "import shmppo.runs.trainer; import shmppo",
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
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
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


def test_experiments_are_folders() -> None:
    assert len(experiments()) > 10
    assert {path.name for path in FIGURES.glob("*.py")} <= {"__init__.py"}
    for name in experiments():
        scripts = {path.name for path in (FIGURES / name).glob("*.py")}
        assert scripts & {"measure.py", "plot.py", "draw.py"}, f"figures/{name} has no script"
