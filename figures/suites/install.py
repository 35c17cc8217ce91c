"""Install a suite into a virtual environment of its own, and run scripts there.

The environment also has the packages of the Python that runs this script.
"""

from __future__ import annotations

import os
import re
import site
import subprocess
import venv
from collections.abc import Sequence
from pathlib import Path

from figures.common.paths import ROOT
from figures.suites.suites import Suite

INSTALL_SECONDS = 1200


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


def run_module(python: Path, module: str, words: Sequence[str], seconds: float) -> tuple[str, str]:
    """Run a module of this repository with a Python, and kill it after some seconds.

    Returns:
        The last line of its output, and the error, each "" if there is none.
    """
    variables = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    command = [str(python), "-m", module, *words]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return "", f"hung for {seconds:g} s"
    lines = {name: text.strip().splitlines() for name, text in (("out", done.stdout), ("err", done.stderr))}
    if done.returncode:
        return "", f"code {done.returncode}: {(lines['err'] or ['no message'])[-1]}"
    return (lines["out"] or [""])[-1], ""
