"""Install suites of environments, and train on them with 0 and 2 workers.

    python -m figures.suites.measure --directory /tmp/suites

Each suite is installed into a virtual environment of its own in --directory (default: a temporary directory). That
environment also contains the packages of the Python that runs this script, so torch is not installed again. Each
environment of `suites.py` trains for 3 iterations with 0 and with 2 workers. Writes suites.csv with one row per
environment, and continues it if it was stopped. `--only NUMBER` repeats a row.
"""

from __future__ import annotations

import json
import os
import re
import site
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from figures.common.campaigns import WRONG, campaign_parser, run_campaign
from figures.common.paths import ROOT
from figures.suites.suites import SUITES, Environment, Suite

TABLE = Path(__file__).with_name("suites.csv")
CASES = [(suite, environment) for suite in SUITES for environment in suite.environments]
ITERATIONS = 3
JOB = (
    "--num-envs 4 --rollout-steps 32 --minibatches 2 --grad-shards 2 --epochs 2 --seq-len 8 --hidden-size 16 "
    "--encoder-sizes 16 --quiet --worker-timeout 120"
)
INSTALL_SECONDS, TRAIN_SECONDS = 1200, 900


def prepare(suite: Suite, directory: Path) -> tuple[Path, str]:
    """Install a suite, unless it is installed already.

    Returns:
        The Python of its virtual environment, and the conflicts of versions or the error, as text.
    """
    home = directory / re.sub(r"\W", "-", suite.name.lower())
    python, log = home / "bin" / "python", home / "install.txt"
    if not log.exists():
        venv.create(home, with_pip=False, symlinks=True)
        own = next(home.glob("lib/python*/site-packages"))
        (own / "outer.pth").write_text("\n".join([*site.getsitepackages(), str(ROOT)]) + "\n")
        command = [str(python), "-m", "pip", "install", *suite.packages]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_SECONDS)
        log.write_text(conflicts(done.stdout + done.stderr, failed=done.returncode != 0))
    return python, log.read_text()


def conflicts(output: str, *, failed: bool) -> str:
    """Return the lines of pip's output that name a conflict, or the error if the installation failed."""
    found = re.findall(r"^\S+ \S+ requires .*(?:incompatible|not installed)\.$", output, re.MULTILINE)
    if failed:
        errors = [line for line in output.splitlines() if "ERROR" in line or line.startswith("error")]
        return "failed: " + " | ".join(errors)[:400]
    return "; ".join(line.rstrip(".") for line in found)


def train(python: Path, environment: Environment, workers: int, directory: Path) -> tuple[dict[str, Any], str]:
    """Train with a Python. Returns the summary (empty after a failure), and the error."""
    run_dir = directory / str(workers)
    command = [str(python), "-m", "shmppo.train", "--env", environment.env, *environment.flags, *JOB.split()]
    command += ["--workers", str(workers), "--total-steps", str(ITERATIONS * 4 * 32), "--run-dir", str(run_dir)]
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False, timeout=TRAIN_SECONDS
        )
    except subprocess.TimeoutExpired:
        return {}, f"hung for {TRAIN_SECONDS} s"
    if done.returncode:
        return {}, f"code {done.returncode}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}"
    summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    return summary, ""


def judge(summaries: Sequence[dict[str, Any]], errors: Sequence[str]) -> tuple[str, str]:
    """Return the outcome of an environment and a message: one hash, inexact, refused, or wrong."""
    if any(errors):
        refused = all(error.startswith("code 2: error: ") for error in errors)
        return "refused" if refused else WRONG, next(error for error in errors if error)
    reasons = "; ".join(sorted({reason for summary in summaries for reason in summary["inexact_reasons"]}))
    if len({summary["weights_sha256"] for summary in summaries}) == 1:
        return ("inexact" if reasons else "one hash"), reasons
    return ("inexact", reasons) if reasons else (WRONG, "different hashes, but exact")


def measure(cases: Sequence[int], directory: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of these cases."""
    for case in cases:
        suite, environment = CASES[case]
        python, message = prepare(suite, directory)
        row = {
            "case": case, "suite": suite.name, "install": suite.install, "conflicts": message,
            "versions": versions(python, suite), "env": environment.env, "flags": " ".join(environment.flags),
        }  # fmt: skip
        with tempfile.TemporaryDirectory() as runs:
            results = [train(python, environment, workers, Path(runs)) for workers in (0, 2)]
        summaries, errors = [summary for summary, _ in results], [error for _, error in results]
        outcome, text = judge(summaries, errors)
        weights = summaries[0].get("weights_sha256", "")
        yield row | {"weights_sha256": weights, "outcome": outcome, "message": text[:400]}


def versions(python: Path, suite: Suite) -> str:
    """Return the installed versions of a suite's packages, of Gymnasium, and of MuJoCo."""
    names = [re.split(r"[\[<>=]", package)[0] for package in suite.packages]
    code = (
        "import sys, importlib.metadata as m\n"
        "for name in sys.argv[1:]:\n"
        "    try: print(name, m.version(name), end=', ')\n"
        "    except m.PackageNotFoundError: print(name, 'missing', end=', ')\n"
    )
    command = [str(python), "-c", code, *dict.fromkeys([*names, "gymnasium", "mujoco", "numpy"])]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.rstrip(", ")


def main() -> int:
    parser = campaign_parser(__doc__, len(CASES))
    parser.add_argument("--directory", type=Path, help="of the virtual environments (default: a temporary directory)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = (options.directory or Path(temporary)).absolute()
        directory.mkdir(parents=True, exist_ok=True)
        return run_campaign(TABLE, min(options.cases, len(CASES)), partial(measure, directory=directory), options.only)


if __name__ == "__main__":
    sys.exit(main())
