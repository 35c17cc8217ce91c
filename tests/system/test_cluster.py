"""The job of examples/cluster/kubernetes.yaml, with two ranks on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import summary_of
from public_helpers import wait_for_rows
from rank_processes import free_port

JOB = Path(__file__).parents[2] / "examples" / "cluster" / "kubernetes.yaml"
SMALL = "--num-envs 4 --rollout-steps 16 --seq-len 8 --minibatches 2 --hidden-size 8 --workers 0 --total-steps 51200"
REPLACED = {
    "WORLD_SIZE=4": "WORLD_SIZE=2", "shmppo-0.shmppo": "127.0.0.1", "HalfCheetah-v5": "CartPole-v1",
    "--num-envs 64 --total-steps 100000000": SMALL,
}  # fmt: skip
"""Text of the job -> what stands for it here."""


def start_pods(run_dir: Path) -> list[subprocess.Popen[bytes]]:
    """Start the command of the job's container for each rank."""
    yaml = pytest.importorskip("yaml")
    _, job = yaml.safe_load_all(JOB.read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    (script,) = container["args"]
    for text, other in (REPLACED | {"29500": str(free_port())}).items():
        assert text in script
        script = script.replace(text, other)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return [
        subprocess.Popen(
            [*container["command"], script],
            env=os.environ | {"PATH": path, "RUN_DIR": str(run_dir), "JOB_COMPLETION_INDEX": str(rank)},
        )
        for rank in range(2)
    ]


@pytest.mark.slow(reason="about 40 s")
def test_all_pods_fail_after_a_signal_to_one_and_finish_when_they_are_restarted(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    pods = start_pods(run_dir)
    wait_for_rows([run_dir], pods, 2)
    pods[1].send_signal(signal.SIGTERM)
    assert [pod.wait(60) for pod in pods] == [1, 1]
    assert summary_of(run_dir)["stop_reason"] == "signal"
    assert [pod.wait(120) for pod in start_pods(run_dir)] == [0, 0]
    assert summary_of(run_dir)["iterations"] == 400
