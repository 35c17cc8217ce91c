"""The command check-env: its exit code and its output, with real processes."""

from __future__ import annotations

import re

import pytest
from public_helpers import exit_code, slow_after

from shmppo import check_env

DIFFERS = "observation[2] differs at step 1 of episode 0"
FOUND = {
    "SharedByClass": "observation[2] differs at step 26 of episode 0",
    "StringSet": DIFFERS,
    "ProcessId": DIFFERS,
    "GlobalCounter": DIFFERS,
    "Clock": DIFFERS,
    "LateHistory": "observation[2] differs at step 40 of episode 0",
}


@pytest.mark.long
@pytest.mark.parametrize("name", slow_after(1, FOUND, "6 s per environment"))
def test_an_environment_with_hidden_state_is_not_reproducible(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(check_env.main, [f"hidden_state:{name}", "--steps", "100"]) == 1
    output = capsys.readouterr().out
    assert "\nvalid          yes: " in output
    assert output.endswith(f"\nreproducible   no: {FOUND[name]}\n")


@pytest.mark.slow(reason="6 s per environment")
@pytest.mark.parametrize("env", ["CartPole-v1", "HalfCheetah-v5", "environments:PutsBack-v0"])
def test_an_environment_that_is_a_function_of_its_seed_is_reproducible(
    env: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(check_env.main, [env, "--seed", "3"]) == 0
    assert "\nreproducible   yes: 1,000 steps gave the same bits in two processes\n" in capsys.readouterr().out


def test_an_environment_that_accepts_no_seed_is_not_reproducible(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(check_env.main, ["environments:RefusesSeeds-v0"]) == 1
    assert "reproducible   no: the environment raises on reset(seed=…)" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [("Nothing-v0",), ("CartPole-v1", "--steps", "0"), ("CartPole-v1", "--stpes")])
def test_bad_input_ends_with_code_2(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(check_env.main, [*arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ") or "Unrecognized options: --stpes" in captured.err
    assert "Traceback" not in captured.err


WARNINGS = {
    "Outside": r"--env environments:Outside: step returned obs outside its space: \[1\] is 0.1\n",
    "Warns": r".*UserWarning: no GPU found\n$",
}


@pytest.mark.long
@pytest.mark.filterwarnings("default:no GPU")
@pytest.mark.parametrize("env", slow_after(1, WARNINGS, "6 s"))
def test_warnings_are_printed(env: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(check_env.main, [f"environments:{env}", "--steps", "20"]) == 0
    assert re.search(rf"\nwarning        {WARNINGS[env]}", capsys.readouterr().out)
