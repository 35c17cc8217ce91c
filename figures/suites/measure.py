"""Install suites of environments, and train on them.

    python -m figures.suites.measure --directory /tmp/suites

Each suite is installed into a virtual environment of its own in --directory. It also contains the packages of the
Python that runs this script, so torch is not installed again. Each environment trains for three iterations with 0 and
with 2 workers, and `check-env` checks 1,000 steps. Writes suites.csv, with one row per environment. A measurement that
was stopped continues at its next row. `--only NUMBER` repeats rows.
"""

from __future__ import annotations

import json
import re
import shlex
import site
import subprocess
import sys
import tempfile
import venv
from functools import partial
from pathlib import Path
from typing import Any

from figures.common.campaigns import WRONG, run_campaign
from figures.common.command_line import script_parser
from figures.common.paths import FIGURES, ROOT

TABLE = FIGURES / "suites" / "suites.csv"
SUITES = {
    "POPGym": ("popgym", ["popgym:popgym-RepeatPreviousEasy-v0", "popgym:popgym-NoisyPositionOnlyCartPoleEasy-v0"]),
    "MiniGrid": (
        "minigrid",
        [
            "minigrid:MiniGrid-MemoryS7-v0 --wrappers \"FilterObservation(filter_keys=['image', 'direction'])\"",
            "minigrid:MiniGrid-Empty-5x5-v0 --wrappers minigrid.wrappers:ImgObsWrapper",
        ],
    ),
    "ALE": (
        "ale-py opencv-python-headless",
        [
            'ale_py:ALE/Pong-v5 --env-kwargs frameskip=1 --wrappers "AtariPreprocessing()"',
            "ale_py:ALE/Breakout-v5 --env-kwargs obs_type=ram --encoder mlp",
        ],
    ),
    "Gymnasium-Robotics": (
        "gymnasium-robotics 'mujoco<3.12'",
        ["gymnasium_robotics:FetchReach-v4", "gymnasium_robotics:PointMaze_UMaze-v3"],
    ),
    "Meta-World": (
        "metaworld",
        [
            "metaworld:Meta-World/MT1 --env-kwargs env_name=reach-v3",
            "metaworld:Meta-World/MT1 --env-kwargs env_name=reach-v3 seed=1 "
            "--wrappers figures.suites.wrappers:SeededGoals",
        ],
    ),
    "Crafter": (
        "crafter",
        ["figures.suites.crafter_env:make", "figures.suites.crafter_env:make --env-kwargs ordered=true"],
    ),
    "Box2D": (
        "box2d",
        ["LunarLander-v3", "BipedalWalker-v3", "BipedalWalker-v3 --wrappers figures.suites.wrappers:NewWorld"],
    ),
    "DeepMind Control": (
        "'shimmy[dm-control]' 'mujoco<4'",
        ["shimmy:dm_control/cartpole-swingup-v0", "shimmy:dm_control/walker-walk-v0"],
    ),
    "PyBullet": (
        "pybullet pybullet-envs-gymnasium",
        ["pybullet_envs_gymnasium:HopperBulletEnv-v0 --wrappers shmppo.envs.wrappers:ResetOnce"],
    ),
}
"""Suite -> (its packages, its environments and the flags they need)."""
CASES = [(suite, env) for suite, (_, envs) in SUITES.items() for env in envs]
NOT_REPRODUCIBLE = {CASES.index(case) for case in CASES if case[1] in (SUITES["Meta-World"][1][0],
    SUITES["Crafter"][1][0], "BipedalWalker-v3")}  # fmt: skip
JOB = (
    "--num-envs 4 --rollout-steps 32 --minibatches 2 --grad-shards 2 --epochs 2 --seq-len 8 --hidden-size 16 "
    "--encoder-sizes 16 --quiet --worker-timeout 120 --total-steps 384"
)
SECONDS = 1200


def prepare(suite: str, directory: Path) -> Path:
    """Install a suite, unless it is installed already. Returns the Python of its virtual environment."""
    home = directory / re.sub(r"\W", "-", suite.lower())
    python = home / "bin" / "python"
    if not python.exists():
        venv.create(home, with_pip=False, symlinks=True)
        own = next(home.glob("lib/python*/site-packages"))
        (own / "outer.pth").write_text("\n".join([*site.getsitepackages(), str(ROOT)]) + "\n")
        command = [str(python), "-m", "pip", "install", *shlex.split(SUITES[suite][0])]
        subprocess.run(command, check=True, timeout=SECONDS)
    return python


def versions(python: Path, suite: str) -> str:
    """Return the installed versions of a suite's packages and of MuJoCo."""
    names = [re.split(r"[\[<>=]", package)[0] for package in shlex.split(SUITES[suite][0])]
    code = (
        "import sys, importlib.metadata as m; print(*(f'{name} {m.version(name)}' for name in sys.argv[1:]), sep=', ')"
    )
    command = [str(python), "-c", code, *dict.fromkeys([*names, "mujoco"])]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def run(python: Path, module: str, words: list[str]) -> tuple[int, str]:
    """Run a module. Returns its exit code and the last line that it printed."""
    done = subprocess.run(
        [str(python), "-m", module, *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=SECONDS
    )
    lines = (done.stdout + done.stderr).strip().splitlines()
    return done.returncode, lines[-1] if lines else ""


def measure(case: int, directory: Path) -> dict[str, Any]:
    """Train on one environment with 0 and with 2 workers, and check it. Returns its row."""
    suite, env = CASES[case]
    python, (name, *flags) = prepare(suite, directory), shlex.split(env)
    hashes, messages = [], []
    with tempfile.TemporaryDirectory() as runs:
        for workers in ("0", "2"):
            words = ["--env", name, *flags, *JOB.split(), "--workers", workers, "--run-dir", f"{runs}/{workers}"]
            code, line = run(python, "shmppo.train", words)
            summary = {} if code else json.loads((Path(runs) / workers / "summary.json").read_text())
            hashes.append(summary.get("weights_sha256"))
            messages += [line] if code else []
    code, line = run(python, "shmppo.check_env", [name, *_task_flags(flags), "--steps", "1000"])
    outcome = "reproducible" if code == 0 and hashes[0] == hashes[1] else "not reproducible"
    if messages or (outcome == "reproducible") == (case in NOT_REPRODUCIBLE):
        outcome = WRONG
    return {
        "case": case, "suite": suite, "versions": versions(python, suite), "env": env, "outcome": outcome,
        "weights_sha256": hashes[0] or "", "message": "; ".join(messages) or ("" if code == 0 else line),
    }  # fmt: skip


def _task_flags(flags: list[str]) -> list[str]:
    """Return the flags that concern the environment, without that of the encoder."""
    return flags[: flags.index("--encoder")] if "--encoder" in flags else flags


def main() -> int:
    parser = script_parser(__doc__)
    parser.add_argument("--directory", type=Path, required=True, help="of the virtual environments")
    parser.add_argument("--only", type=int, nargs="+", default=(), help="run only these rows, and write no table")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    return run_campaign(TABLE, len(CASES), partial(measure, directory=options.directory.absolute()), only=options.only)


if __name__ == "__main__":
    sys.exit(main())
