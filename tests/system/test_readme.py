"""The README and docs/metrics.md agree with the code: flags, tables of columns."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.run import get_args_parser

from shmppo import TrainConfig, cli, train
from shmppo.config.flags import ResumeConfig, SourceOptions
from shmppo.loggers.metrics import EVALUATION_GLOSSARY, GLOSSARY
from shmppo.ppo.kl_profile import COLUMNS
from shmppo.utils.phase_timer import PHASES

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
METRICS = (ROOT / "docs" / "metrics.md").read_text()


def options_of(name: str) -> list[Any]:
    """The options of a command of the console script, each a dataclass."""
    options = cli.load(cli.COMMANDS[name].options)
    return list(options.values()) if isinstance(options, dict) else [options]


def table(heading: str) -> dict[str, str]:
    """The rows of a table in docs/metrics.md: meanings by name."""
    text = METRICS.split(f"\n| {heading} | ")[1].split("\n\n")[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", text, re.MULTILINE))


@pytest.mark.parametrize(("heading", "glossary"), [("column", GLOSSARY), ("column of `eval.csv`", EVALUATION_GLOSSARY)])
def test_each_glossary_is_the_header_of_its_file(heading: str, glossary: dict[str, str]) -> None:
    assert table(heading) == glossary


def test_the_other_tables_of_metrics_name_what_is_written(tmp_path: Path) -> None:
    config = TrainConfig(
        run_dir=str(tmp_path / "run"), workers=0, quiet=True, stop_at_iteration=1, step_times=True, num_envs=2
    )
    assert list(table("key of `summary.json`")) == list(train(config))
    header = (tmp_path / "run" / "step_times.csv").read_text().splitlines()[0]
    assert list(table("column of `step_times.csv`")) == header.split(",")
    assert list(table("column of `kl.csv`")) == list(COLUMNS)
    assert list(table("phase")) == list(PHASES)


def test_every_flag_that_the_readme_names_exists() -> None:
    kinds = [SourceOptions, ResumeConfig, *(kind for name in cli.COMMANDS for kind in options_of(name))]
    known = {"--" + f.name.replace("_", "-") for kind in kinds for f in dataclasses.fields(kind)}
    known |= {flag for action in get_args_parser()._actions for flag in action.option_strings}  # torchrun's
    for flag in set(re.findall(r"--[a-z][a-z-]+", README)) - {"--help"}:
        assert flag in known, flag
