"""On a system without what only Linux has, the weights are the same, and several runs can train side by side."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import builtins, io, os, sys

if os.environ.get("HIDE"):  # in the learner and in its workers, which import this file
    for name in ("sched_getaffinity", "sched_setaffinity", "sched_yield", "sched_setscheduler", "SCHED_IDLE"):
        delattr(os, name)
    original = io.open

    def opened(path, *arguments, **options):
        if str(path).startswith("/proc/"):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return original(path, *arguments, **options)

    builtins.open = io.open = opened

import shmppo
from shmppo.runs import preflight
from shmppo.train import main

if __name__ == "__main__":
    if os.environ.get("HIDE"):
        preflight.SHARED_MEMORY = "/nowhere"
    run_dir = sys.argv[1]
    config = shmppo.TrainConfig(
        num_envs=4, rollout_steps=32, minibatches=2, hidden_size=8, workers=2, quiet=True, total_steps=256,
        check_determinism=0, run_dir=run_dir,
    )
    summary = shmppo.train(config)
    print(summary["weights_sha256"], summary["exact"])
    sys.argv[1:] = f"--seeds 1 2 --jobs 2 --total-steps 4096 --run-dir {run_dir}-seed".split()
    main()
"""


@pytest.mark.slow(reason="15 s on two cores")
def test_a_run_without_what_only_linux_has(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment, outputs = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, []
    for hidden in ("", "1"):
        (tmp_path / hidden).mkdir(exist_ok=True)
        command, own = [sys.executable, str(script), "run"], environment | {"HIDE": hidden}
        done = subprocess.run(command, env=own, cwd=tmp_path / hidden, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]
    assert " True\n" in outputs[0]
