"""The policies of examples/trained are those of their receipts, and can be trained again."""

from __future__ import annotations

import importlib
import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shmppo import load_policy
from shmppo.config.train_config import load_config
from shmppo.models.actor_critic import weights_sha256
from shmppo.policies.evaluation import evaluate
from shmppo.storage.checkpoint_file import load_checkpoint
from shmppo.tools.verify import verify_run
from shmppo.utils.machine import fingerprint

TRAINED = Path(__file__).parents[2] / "examples" / "trained"
POLICIES = sorted(file.parent.name for file in TRAINED.glob("*/receipt.json"))
MAX_BYTES = 8_000_000
SHORT = ("cartpole-memory", "pendulum-memory")


def summary_of(name: str) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((TRAINED / name / "summary.json").read_text())
    return summary


def needs_modules(name: str) -> None:
    """Skip the test if the environment of a policy is not installed."""
    module, colon, _ = load_config(TRAINED / name).env.partition(":")
    module = module.partition(".")[0]
    if colon and importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")


def test_they_are_small() -> None:
    assert sum(file.stat().st_size for file in TRAINED.rglob("*") if file.is_file()) <= MAX_BYTES


@pytest.mark.parametrize("name", POLICIES)
def test_the_receipt_is_that_of_the_weights(name: str) -> None:
    summary, state = summary_of(name), load_checkpoint(TRAINED / name / "checkpoint.pt")
    assert weights_sha256(state["learner"]["model"].values()) == summary["weights_sha256"]
    assert summary["same_bits_on"]["processor"].startswith("x86-64 with AVX2")
    assert not summary["inexact_reasons"]
    assert summary["env_steps"] >= load_config(TRAINED / name).total_steps
    row = next(line for line in (TRAINED / "README.md").read_text().splitlines() if line.startswith(f"| {name} |"))
    receipt = json.loads((TRAINED / name / "receipt.json").read_text())
    assert f"`{receipt['command']}`" in row
    assert f"`{summary['weights_sha256'][:16]}`" in row


@pytest.mark.long
def test_the_returns_are_those_of_the_receipt() -> None:
    receipt = json.loads((TRAINED / "cartpole-memory" / "receipt.json").read_text())
    found = evaluate(TRAINED / "cartpole-memory", episodes=receipt["episodes"], seed=receipt["seed"]).returns
    assert sum(found) / len(found) == receipt["return_mean"]


@pytest.mark.parametrize("seat", [0, 1])
def test_the_policy_for_tictactoe_never_loses(seat: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It plays against every sequence of moves that its opponent can choose."""
    pytest.importorskip("pettingzoo")
    monkeypatch.syspath_prepend(str(TRAINED.parent))
    players = importlib.import_module("board_game_players")
    policy = load_policy(TRAINED / "tictactoe", trust=["pettingzoo"])
    boards, decisions = {((0,) * 3,) * 3}, 0
    for turn in range(9):
        choices = [players.moves(board) for board in sorted(boards)]
        if turn % 2 == seat:
            decisions += len(boards)
            array = np.array(sorted(boards))
            obs = {"obs": np.stack([array == 1, array == -1], -1), "action_mask": (array == 0).reshape(-1, 9)}
            actions, _ = policy.act(obs)
            choices = [[(a, dict(found)[a])] for a, found in zip(actions.tolist(), choices, strict=True)]
        after = {board for found in choices for _, board in found}
        lost = {board for board in after if players.has_lost(board)}  # by the player who has the next turn
        assert not lost or turn % 2 == seat
        boards = after - lost
    assert decisions == (148, 441)[seat]


@pytest.mark.slow(reason="up to 2 h per policy")
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.timeout(7200)
def test_a_policy_is_trained_again(name: str) -> None:
    needs_modules(name)
    known = summary_of(name)["same_bits_on"]
    here = {name: value for name, value in fingerprint("native").items() if name not in ("shmppo", "processor")}
    if any(known.get(name, value) != value for name, value in here.items()):
        pytest.skip("it was trained with other versions of the libraries")
    if load_config(TRAINED / name).portable:
        pytest.skip("torch is imported already; use shmppo verify")
    verdict = verify_run(TRAINED / name, trust=("minigrid", "pettingzoo", "popgym"))
    assert verdict.equal, verdict.text
