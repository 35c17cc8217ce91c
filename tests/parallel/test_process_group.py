"""Sums over ranks, which are processes of their own here, the configurations of ranks, and their failure messages."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from rank_processes import free_port
from torch.distributed import HashStore

from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError, RankError
from shmppo.parallel import failure_messages, rendezvous
from shmppo.parallel.failure_messages import FailureMessages
from shmppo.parallel.process_group import ProcessGroup
from shmppo.parallel.rendezvous import agree_on_config
from shmppo.utils import machine

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


@pytest.mark.long
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


def test_only_rank_0_records_videos_and_a_resumed_run_accepts_this(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [ProcessGroup(rank, 2) for rank in range(2)]
    configs = [TrainConfig(eval_every=1, eval_videos=True)] * 2
    for _ in ("train", "resume"):
        shared: list[dict[str, Any]] = []
        for group, config in zip(groups, configs, strict=True):
            monkeypatch.setattr(group, "gather_objects", lambda mine, shared=shared: [shared.append(mine), *shared][1:])
            agreed = agree_on_config(group, config)
            configs[group.rank] = agreed
        assert [config.eval_videos for config in configs] == [True, False]


def test_ranks_of_versions_with_other_fields_name_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainConfig, "to_json", lambda config, fields=TrainConfig.to_json: fields(config) | {"new": 1})
    other = TrainConfig().to_json() | machine.versions() | {"shmppo": "0.0"}
    del other["new"]
    group = ProcessGroup(1, 2)
    monkeypatch.setattr(group, "gather_objects", lambda mine: [other, mine])
    with pytest.raises(ConfigError, match=r"^rank 0 has shmppo 0\.0, but rank 1 has shmppo .*; start all ranks with"):
        agree_on_config(group, TrainConfig())


def test_the_traceback_of_a_rank_reaches_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    group = ProcessGroup(0, 2)
    monkeypatch.setattr(group, "gather_objects", lambda mine: [mine, ("no maze", "line 3")])
    with pytest.raises(ConfigError, match=r"^rank 1: no maze$") as raised, group.config_errors_on_all_ranks():
        pass
    assert raised.value.details == "line 3"


def test_a_rank_with_one_core_has_no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    class Group:
        size, rank = 2, 0

        def gather_objects(self, value: Any) -> list[Any]:
            return [value, value]

    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    for cores, workers in ((2, 0), (4, 2), (64, 6)):
        monkeypatch.setattr(rendezvous, "usable_cores", lambda cores=cores: cores)
        config = TrainConfig(env="CartPole-v1", num_envs=6)
        assert agree_on_config(Group(), config).workers == workers  # type: ignore[arg-type]


@pytest.mark.parametrize("differs", [0.0, 1e-6])
def test_ranks_compare_their_weights_and_combine_their_flags(differs: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 of three, of which rank 1 stops, and rank 2 may have other weights."""
    weights, rows = np.arange(3, dtype=np.float32), []
    for rank, (flags, own) in enumerate([((True, False), weights), ((False, False), weights + np.float32(differs))], 1):
        group = ProcessGroup(rank, 3)
        monkeypatch.setattr(group, "gather", lambda row: (rows.append(row), np.array([row] * 3))[1])
        group.agree(flags, own, 7)
    group = ProcessGroup(0, 3)
    monkeypatch.setattr(group, "gather", lambda row: np.stack([row, *rows]))
    if differs:
        with pytest.raises(RankError, match="after iteration 7 the weights of rank 2 differ from those of rank 0"):
            group.agree((False, False), weights, 7)
    else:
        assert group.agree((False, False), weights, 7) == [True, False]


class StuckStore(HashStore):
    """A store whose network is down: its first call blocks."""

    def set_timeout(self, timeout: timedelta) -> None:
        time.sleep(3)


def test_a_store_that_does_not_answer_does_not_block_the_end_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_messages, "GRACE_SECONDS", 0.1)
    messages = FailureMessages(0, 2, StuckStore(), timeout=1.0)
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "1")
    messages.report("out of memory")
    assert "the store at localhost:1 does not answer" in str(messages.diagnose(RuntimeError("x"), 1.0))


def test_a_message_reaches_the_other_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_messages, "GRACE_SECONDS", 10.0)
    store = HashStore()
    FailureMessages(1, 2, store, timeout=1.0).report("out of memory")
    error = FailureMessages(0, 2, store, timeout=1.0).diagnose(RuntimeError("x"), 1.0)
    assert str(error) == "rank 1 failed: out of memory; resume from the last checkpoint with --resume"
