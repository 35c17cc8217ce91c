"""Part configurations: random command lines are refused in one sentence, or train with one hash for any workers."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from figures.common.campaigns import WRONG
from figures.common.paths import ROOT

BASE = (
    "--num-envs 4 --rollout-steps 16 --minibatches 2 --seq-len 8 --hidden-size 8 --epochs 2 --total-steps 256 --quiet"
)
VALUES: dict[str, str] = {
    "env": "CartPole-v1,Pendulum-v1,Acrobot-v1,MountainCarContinuous-v0,FrozenLake-v1,InvertedPendulum-v5",
    "core": "lstm,gru,lmu,lru,gtrxl,none", "attention-window": "1,9", "num-envs": "2,3,5,9,13",
    "rollout-steps": "1,3,7,16,19", "seq-len": "1,2,5,40",
    "hidden-size": "1,3,13,33", "num-layers": "1,2", "encoder-sizes": "5,8 9,65", "epochs": "1,3",
    "minibatches": "1,2,3,5", "grad-shards": "1,2,3", "gamma": "0,0.9,1", "gae-lambda": "0,0.5,1",
    "objective": "clip,penalty", "ratio": "joint,per-dimension", "clip": "0.01,0.2,3",
    "desired-kl": "1e-5,0.1", "target-kl": "1e-6,0.1", "value-coef": "0,2", "entropy-coef": "0,0.1",
    "optimizer": "adam,sgd", "learning-rate": "1e-8,3e-3,0.1", "max-grad-norm": "1e-3,100",
    "lr-schedule": "linear,constant,kl-adaptive", "advantage-norm": "minibatch,global,none", "log-std-init": "-2,0.5",
    "clip-reward": "0.5", "autocast": "none,bf16", "kernel": "native,torch",
    "seed": "0,12345",
    "eval-every": "2", "kl-profile-every": "1", "checkpoint-every": "1,2", "keep-every": "1",
    "prev-action": "", "prev-reward": "", "skip-bad-episodes": "", "separate-critic": "none,core,all",
    "std": "parameter,state", "distribution": "gaussian,beta",
    "squash-actions": "", "truncation-is-termination": "", "value-clip": "",
    "no-normalize-obs": "", "no-normalize-reward": "",
}  # fmt: skip
"""Flag -> values that most combinations accept, separated by commas."""
WRONG_VALUES = ("-1", "0", "1e999", "nan", "inf", "10" * 30, "none", "é", "--env", "[]", "true", "")
WRONG_WORDS = (
    "--nothing",
    "--lr",
    "--hidden_sise",
    "x",
    "-",
    "---",
    "--seed=",
    "=3",
    "--no-",
    "--config=/nothing.json",
)
SECONDS = 120.0


def draw_flags(case: int) -> list[str]:
    """Draw the flags of a case. Half of the cases have one to three mistakes."""
    draw = random.Random(f"flags {case}")
    words = BASE.split()
    for name in draw.sample(sorted(VALUES), draw.randint(1, 12)):
        words += [f"--{name}", *draw.choice(VALUES[name].split(",")).split()]
    for _ in range(draw.choice((0, 0, 0, 1, 2, 3))):
        if draw.random() < 0.7:
            words += [f"--{draw.choice(sorted(VALUES))}", draw.choice(WRONG_VALUES)]
        else:
            words.insert(draw.randrange(len(words)), draw.choice(WRONG_WORDS))
    return words


def train(words: list[str], workers: int) -> tuple[int, str, str]:
    """Train with these flags. Returns the exit code, the text on stderr, and the hash of the weights or the reason why
    the run is not exact."""
    with tempfile.TemporaryDirectory() as directory:
        run_dir = Path(directory) / "run"
        command = [sys.executable, "-m", "shmppo.train", *words, "--workers", str(workers), "--run-dir", str(run_dir)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=SECONDS)
        result = ""
        if done.returncode == 0:
            summary = json.loads((run_dir / "summary.json").read_text())
            result = "; ".join(summary["inexact_reasons"]) or summary["weights_sha256"]
        elif done.returncode == 2 and run_dir.exists():
            result = "left a run directory"
        return done.returncode, done.stderr, result


def judge(results: list[tuple[int, str, str]]) -> tuple[str, str]:
    """Return the outcome of a case, and a message. results: of its trainings, as `train` returns them."""
    codes = {code for code, _, _ in results}
    _, stderr, result = results[0]
    if len(codes) > 1:
        return WRONG, f"exit codes {sorted(codes)}"
    if any("Traceback" in text for _, text, _ in results):
        return WRONG, stderr.strip()[-300:]
    if codes == {2}:
        return (WRONG, result) if result or not stderr.strip() else ("refused", stderr.strip().splitlines()[0][:200])
    if codes == {1}:  # the learning diverged
        return ("ended", "") if stderr.startswith("error:") else (WRONG, stderr.strip()[-300:])
    if codes != {0}:
        return WRONG, f"exit code {codes}"
    hashes = {result for _, _, result in results}
    return ("one hash", "") if len(hashes) == 1 else (WRONG, f"{hashes}")


def measure(case: int) -> dict[str, Any]:
    """Run one case without workers and, unless it is refused, with some. Returns its row."""
    words = draw_flags(case)
    results = [train(words, 0)]
    if results[0][0] != 2:
        envs = int(words[len(words) - words[::-1].index("--num-envs")])
        results.append(train(words, random.Random(f"workers {case}").randint(1, min(3, envs))))
    outcome, message = judge(results)
    return {"case": case, "flags": " ".join(words[len(BASE.split()) :]), "outcome": outcome, "message": message}
