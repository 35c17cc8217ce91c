"""Runs of two ranks on this machine, started by torchrun as a user would start them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
from public_helpers import wait_for_rows

FLAGS = (
    "--num-envs 4 --rollout-steps 16 --seq-len 8 --minibatches 2 --epochs 2 "
    "--hidden-size 8 --encoder-sizes 8 --workers 0 --quiet"
)
"""Of each rank of a small run."""
IMPATIENT = str(Path(__file__).with_name("impatient_ranks.py"))
"""Program of ranks that do not wait for five minutes."""


def free_port() -> str:
    """A port for the ranks' store."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def start(
    run_dir: Path,
    *flags: object,
    env: str = "CartPole-v1",
    torchrun: tuple[str, ...] = (),
    program: tuple[str, ...] = ("-m", "shmppo.train"),
) -> psutil.Popen:
    """Start two ranks of a small run. torchrun: additional flags of torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", free_port()]
    command += [*torchrun, *program]
    if "--resume" not in flags:
        command += ["--env", env, *FLAGS.split(), "--run-dir", str(run_dir)]
    return psutil.Popen(
        [*command, *map(str, flags)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=run_dir.parent
    )


def output_of(process: psutil.Popen, timeout: float = 200) -> str:
    """Wait until a torchrun ends by itself; returns its output."""
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"does not end\n{stacks(process)}") from None
    return output


def finish(process: psutil.Popen) -> str:
    """Wait until a torchrun ends without an error; returns its output."""
    output = output_of(process)
    assert process.returncode == 0, output
    return output


def start_alone(rank: int, run_dir: Path, port: str, *flags: object) -> subprocess.Popen[str]:
    """Start a rank of two without torchrun."""
    command = [sys.executable, "-m", "shmppo.train", "--env", "CartPole-v1", *FLAGS.split(), *map(str, flags)]
    env = os.environ | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return subprocess.Popen(
        [*command, "--run-dir", str(run_dir)], env=env, stderr=subprocess.PIPE, text=True, cwd=run_dir.parent
    )


def stacks(process: psutil.Popen) -> str:
    """End a torchrun that hangs; returns its output with the stack of each of its processes."""
    family = [*process.children(recursive=True), process]
    for one in family:
        one.send_signal(signal.SIGABRT)
    psutil.wait_procs(family, timeout=5)
    for one in family:
        if one.is_running():
            one.kill()
    return process.stdout.read()


def directories(run_dir: Path) -> list[Path]:
    """The directories to which the two ranks write."""
    return [run_dir, run_dir / "rank-1"]


def wait_for_training(process: psutil.Popen, run_dir: Path, rows: int = 4) -> list[psutil.Process]:
    """Wait until both ranks have finished `rows` iterations; returns their processes in rank order."""
    try:
        wait_for_rows(directories(run_dir), [process], rows)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{stacks(process)}") from None
    ranks = [p for p in process.children() if not {"shmppo.train", IMPATIENT}.isdisjoint(p.cmdline())]
    return sorted(ranks, key=lambda p: p.environ()["RANK"])
