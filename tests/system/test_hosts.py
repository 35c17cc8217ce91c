"""Two hosts: network namespaces that a veth pair connects, with a torchrun in each. These tests need root."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from conftest import summary_of
from public_helpers import wait_for_rows
from rank_processes import FLAGS, IMPATIENT, directories

PORT = "29517"
ADDRESSES = ("10.213.77.1", "10.213.77.2")
ITERATIONS = 4


def ip(*arguments: str) -> None:
    """Run the command `ip`."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class Hosts:
    """Two namespaces with one link between them."""

    def __init__(self) -> None:
        self.names = [f"shmppo-{os.getpid()}-{side}" for side in "ab"]
        self.links = [f"shm{os.getpid()}{side}" for side in "ab"]

    def open(self) -> None:
        for name in self.names:
            ip("netns", "add", name)
        ip("link", "add", self.links[0], "type", "veth", "peer", "name", self.links[1])
        for name, link, address in zip(self.names, self.links, ADDRESSES, strict=True):
            ip("link", "set", link, "netns", name)
            ip("-n", name, "addr", "add", f"{address}/24", "dev", link)
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", link, "up")

    def close(self) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def cut(self) -> None:
        """Take the link down."""
        ip("-n", self.names[0], "link", "set", self.links[0], "down")

    def train(
        self, root: Path, *flags: object, program: tuple[str, ...] = ("-m", "shmppo.train")
    ) -> list[psutil.Popen]:
        """Start a torchrun with one rank on each host."""
        processes = []
        for node, (name, link) in enumerate(zip(self.names, self.links, strict=True)):
            command = ["ip", "netns", "exec", name, sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
            command += ["--node-rank", str(node), "--master-addr", ADDRESSES[0], "--master-port", PORT]
            command += [*program, "--env", "CartPole-v1", *FLAGS.split(), "--run-dir", str(root / "run")]
            env = os.environ | {"GLOO_SOCKET_IFNAME": link}
            output = open(root / f"host-{node}.txt", "w")  # noqa: SIM115 (the process keeps it open)
            processes.append(psutil.Popen([*command, *map(str, flags)], env=env, stdout=output, stderr=output))
            output.close()
        return processes


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    two = Hosts()
    try:
        two.open()
    except (OSError, subprocess.CalledProcessError) as error:
        two.close()
        pytest.skip(f"network namespaces are not permitted here: {getattr(error, 'stderr', '') or error}")
    try:
        yield two
    finally:
        two.close()


def rank_of(process: psutil.Popen) -> psutil.Process:
    """The rank that a torchrun has started."""
    return next(
        p
        for p in process.children(recursive=True)
        if not {"shmppo.train", IMPATIENT}.isdisjoint(p.cmdline()) and p.ppid() != os.getpid()
    )


@pytest.mark.slow(reason="about 1 min")
def test_two_hosts_have_the_same_weights_also_if_one_is_stopped_for_a_while(hosts: Hosts, tmp_path: Path) -> None:
    hashes = []
    for disturbed in (False, True):
        root = tmp_path / str(disturbed)
        root.mkdir()
        processes = hosts.train(root, "--total-steps", 128 * 50)
        wait_for_rows(directories(root / "run"), processes, ITERATIONS)
        while disturbed and processes[1].poll() is None:
            for number, seconds in ((signal.SIGSTOP, 1.0), (signal.SIGCONT, 0.2)):
                try:
                    rank_of(processes[1]).send_signal(number)
                except (StopIteration, psutil.Error):  # it has ended
                    break
                time.sleep(seconds)
        assert [process.wait(timeout=120) for process in processes] == [0, 0], (root / "host-0.txt").read_text()
        summaries = [summary_of(path) for path in directories(root / "run")]
        assert [s["iterations"] for s in summaries] == [50, 50]
        assert all(s["exact"] for s in summaries)
        hashes += [s["weights_sha256"] for s in summaries]
    assert len(set(hashes)) == 1, hashes


@pytest.mark.slow(reason="about 40 s")
def test_if_the_link_goes_down_both_hosts_end_within_the_timeout(hosts: Hosts, tmp_path: Path) -> None:
    limit = 5
    processes = hosts.train(tmp_path, "--total-steps", 10**8, program=(IMPATIENT, str(limit)))
    wait_for_rows(directories(tmp_path / "run"), processes, ITERATIONS)
    ranks = [rank_of(process) for process in processes]
    hosts.cut()
    _, alive = psutil.wait_procs(ranks, timeout=limit + 15)
    assert not alive, "still waiting"
    assert [process.wait(timeout=60) for process in processes] == [1, 1]
    near, far = ((tmp_path / f"host-{node}.txt").read_text() for node in (0, 1))
    assert re.search(r"error: rank 1 of 2 did not answer \(.*\); resume from the last checkpoint with --resume", near)
    assert re.search(
        rf"error: rank 1 of 2 lost the connection to the other ranks \(.*\), and the store at {ADDRESSES[0]}:{PORT} ",
        far,
    )
