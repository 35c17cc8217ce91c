"""Sums over ranks, which are processes of their own here."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
from rank_processes import free_port

SUMS = """
import os
import torch
from shmppo.parallel.rendezvous import connect

with connect(60) as group:
    numbers = torch.randn(1001, generator=torch.Generator().manual_seed(group.rank))
    for local_size in ("1", str(group.size)):  # other machines, and this one
        os.environ["LOCAL_WORLD_SIZE"] = local_size
        group.use_shared_memory(numbers.nbytes)
        total = numbers.clone()
        group.sum(total)
        print(numbers.numpy().tobytes().hex(), total.numpy().tobytes().hex())
"""


def test_a_sum_has_the_same_bits_on_one_machine_and_on_several() -> None:
    env = os.environ | {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    ranks = [
        subprocess.Popen([sys.executable, "-c", SUMS], env=env | {"RANK": str(r)}, stdout=subprocess.PIPE, text=True)
        for r in range(3)
    ]
    outputs = [rank.communicate(timeout=120)[0].split() for rank in ranks]
    numbers = [np.frombuffer(bytes.fromhex(output[0]), np.float32) for output in outputs]
    expected = numbers[0]
    for other in numbers[1:]:
        expected = expected + other
    assert {total for output in outputs for total in output[1::2]} == {expected.tobytes().hex()}
