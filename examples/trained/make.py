"""Train the policies of this directory, and write the table in its README.md.

    python examples/trained/make.py NAME [NAME …]    # train and export these; a run that was interrupted is resumed
    python examples/trained/make.py                  # only write the table

The runs are in runs/trained. Each policy is a directory as `shmppo export --format policy` writes it, with the command
and an evaluation in receipt.json.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE, RUNS = Path(__file__).parent, Path("runs/trained")
EPISODES = 100
POLICIES = {
    "cartpole": "--preset CartPole-v1",
    "cartpole-memory": "--preset CartPole-v1-memory",
    "pendulum": "--preset Pendulum-v1",
    "pendulum-memory": "--preset Pendulum-v1-memory",
    "mountaincar": "--preset MountainCarContinuous-v0",
    "mountaincar-memory": "--preset MountainCarContinuous-v0-memory",
    "inverted-double-pendulum-memory": "--preset InvertedDoublePendulum-v5-memory",
    "lunarlander": "--preset LunarLander-v3",
    "halfcheetah": (
        "--env HalfCheetah-v5 --core none --encoder-sizes 256 256 --activation relu --separate-critic all "
        "--log-std-init -2.0 --num-envs 1 --rollout-steps 512 --minibatches 8 --epochs 20 --gamma 0.98 "
        "--gae-lambda 0.92 --learning-rate 2.0633e-05 --lr-schedule constant --clip 0.1 --entropy-coef 0.000401762 "
        "--value-coef 1.16192 --max-grad-norm 0.8 --total-steps 1000000"
    ),
    "hopper": "--preset Hopper-v5 --gamma 0.99 --gae-lambda 0.95",
    "walker2d": "--preset Walker2d-v5 --gamma 0.99 --gae-lambda 0.95",
    "swimmer": "--preset Swimmer-v5",
    "ant": "--preset Ant-v5",
    "humanoid": "--preset Humanoid-v5",
    "minigrid-memory": "--preset MiniGrid-MemoryS9-v0",
    "tictactoe": "--preset tictactoe_v3",
    "popgym-repeat-previous-easy": "--preset popgym --total-steps 1000000",
    "popgym-autoencode-easy": "--preset popgym --env popgym:popgym-AutoencodeEasy-v0 --core lru --total-steps 2000000",
    "popgym-count-recall-easy": (
        "--preset popgym --env popgym:popgym-CountRecallEasy-v0 --core lru --total-steps 2000000"
    ),
    "popgym-position-only-cartpole-easy": (
        "--preset popgym --env popgym:popgym-PositionOnlyCartPoleEasy-v0 --total-steps 1000000"
    ),
}
"""The flags of each policy."""
MODULES = ("minigrid", "pettingzoo", "popgym")
"""Other packages of which policies import environments."""
TABLE_BEGIN, TABLE_END = "<!-- table of make.py -->\n", "<!-- end of the table -->\n"


def shmppo(command: str, *arguments: str) -> str:
    """Run a command of shmppo, and return what it prints."""
    done = subprocess.run([sys.executable, "-m", f"shmppo.{command}", *arguments], check=True, stdout=subprocess.PIPE)
    return done.stdout.decode()


def finished(run_dir: Path) -> bool:
    """Whether a run has reached its last step. A killed run has no summary.json."""
    summary = run_dir / "summary.json"
    return summary.exists() and json.loads(summary.read_text())["stop_reason"] == "finished"


def make(name: str) -> None:
    """Train a policy, or continue its run, and export and evaluate it."""
    flags, run_dir, target = POLICIES[name], RUNS / name, HERE / name
    trust = [word for module in MODULES for word in ("--trust", module)]
    if not (run_dir / "checkpoint.pt").exists():
        shmppo("train", *shlex.split(flags), "--seed", "1", "--quiet", "--run-dir", str(run_dir))
    elif not finished(run_dir):
        shmppo("train", "--resume", str(run_dir), "--quiet", *trust)
    if not finished(run_dir):
        sys.exit(f"{run_dir} was stopped; the same command continues it")
    shutil.rmtree(target, ignore_errors=True)  # that of an earlier version
    shmppo("export", str(run_dir), "--format", "policy", "--out", str(target))
    config = json.loads((target / "config.json").read_text())["config"]
    opponent = [] if config["self_play"] is None else ["--opponent", "random"]
    result = json.loads(shmppo("evaluate", str(target), "--episodes", str(EPISODES), "--json", *trust, *opponent))
    kept = ("return_mean", "return_std", "episodes", "seed")
    receipt = {"command": f"shmppo train {flags} --seed 1", **{key: result[key] for key in kept}}
    (target / "receipt.json").write_text(json.dumps(receipt, indent=1) + "\n")


def row(directory: Path) -> str:
    """Return the row of a policy in the table."""
    receipt: dict[str, Any] = json.loads((directory / "receipt.json").read_text())
    summary: dict[str, Any] = json.loads((directory / "summary.json").read_text())
    size = sum(file.stat().st_size for file in directory.iterdir()) / 1000
    cells = (
        directory.name,
        f"`{receipt['command']}`",
        f"{summary['env_steps']:,}",
        f"{summary['wall_seconds'] / 60:.1f}",
        f"{receipt['return_mean']:.4g} ± {receipt['return_std']:.3g}",
        f"`{summary['weights_sha256'][:16]}`",
        f"{size:.0f}",
    )
    return f"| {' | '.join(cells)} |\n"


def write_table() -> None:
    """Write the table of all policies in README.md."""
    page = HERE / "README.md"
    before, _, rest = page.read_text().partition(TABLE_BEGIN)
    rows = [row(file.parent) for file in sorted(HERE.glob("*/receipt.json"))]
    head = "| policy | command | steps | minutes | return | hash | kB |\n| --- | --- | --- | --- | --- | --- | --- |\n"
    page.write_text(before + TABLE_BEGIN + head + "".join(rows) + TABLE_END + rest.partition(TABLE_END)[2])


if __name__ == "__main__":
    for name in sys.argv[1:]:
        make(name)
    write_table()
