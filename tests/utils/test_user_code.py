"""Exceptions of the user's code: their frames, their description in one line, and Ctrl-C."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import pytest

from shmppo.utils.files import short_path
from shmppo.utils.signals import StopRequest
from shmppo.utils.user_code import FAILURES, describe_error, reraise_ctrl_c, user_traceback

SOURCE = """
from environments import Counter

class Deep(Counter):
    def reset(self, **arguments):
        return super().reset(seed=1)

    def step(self, action):
        return self.inner(action)

    def inner(self, action):
        if action == 0:
            assert self.t > 5
        raise ValueError("a wall")

def fail():
    try:
        raise KeyError("first")
    except KeyError as error:
        raise ValueError("second") from error
"""


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    (tmp_path / "user_module.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "user_module", raising=False)
    return importlib.import_module("user_module")


def error_of_step(module: ModuleType, action: int) -> BaseException:
    """The exception of a step below two wrappers of Gymnasium."""
    env: Any = gymnasium.wrappers.TimeLimit(gymnasium.wrappers.OrderEnforcing(module.Deep()), 5)
    env.reset()
    with pytest.raises((AssertionError, ValueError)) as raised:
        env.step(action)
    return raised.value


def test_a_traceback_keeps_only_the_frames_of_the_user(user_module: ModuleType) -> None:
    text = user_traceback(error_of_step(user_module, 1))
    assert "gymnasium" not in text
    assert [line.strip() for line in text.splitlines() if "user_module.py" not in line and "test_user" not in line] == [
        "Traceback (most recent call last):", "env.step(action)", "return self.inner(action)",
        'raise ValueError("a wall")', "ValueError: a wall",
    ]  # fmt: skip


def test_an_error_of_a_library_shows_its_last_frame_and_sys_exit_shows_none() -> None:
    with pytest.raises(gymnasium.error.ResetNeeded) as raised:
        gymnasium.make("CartPole-v1").step(0)
    assert raised.value.__traceback__ is not None
    error = raised.value.with_traceback(raised.value.__traceback__.tb_next)  # without the frame of this test
    frames = [line for line in user_traceback(error).splitlines() if line.startswith("  File")]
    assert len(frames) == 1
    assert "gymnasium" in frames[0]
    with pytest.raises(SystemExit) as ended:
        sys.exit("done")
    assert user_traceback(ended.value) == ""
    assert describe_error(ended.value).startswith("SystemExit('done') at ")


def test_an_error_is_described_with_its_line_and_a_bare_assert_with_its_source(user_module: ModuleType) -> None:
    path = short_path(user_module.__file__ or "")
    assert describe_error(error_of_step(user_module, 1)) == f"ValueError('a wall') at {path}:14"
    assert describe_error(error_of_step(user_module, 0)) == f"AssertionError() at {path}:13 (assert self.t > 5)"
    assert describe_error(ValueError("never raised")) == "ValueError('never raised')"
    assert describe_error(caught(raise_textless_error)).startswith("TextlessError() at ")
    long = describe_error(ValueError("x\n" * 1000))
    assert len(long) == 300
    assert "\n" not in long


class TextlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def raise_textless_error() -> None:
    raise TextlessError


def caught(function: Any) -> BaseException:
    try:
        function()
    except FAILURES as error:
        return error
    raise AssertionError("it must raise")


def interrupt() -> None:
    raise KeyboardInterrupt


def test_ctrl_c_is_raised_again_and_an_interrupt_of_the_environment_is_a_failure(
    request: pytest.FixtureRequest,
) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background command ignores it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    with pytest.raises(KeyboardInterrupt):
        reraise_ctrl_c(caught(interrupt))
    reraise_ctrl_c(caught(lambda: sys.exit(0)))
    stop = StopRequest()
    with stop.by_signals():
        reraise_ctrl_c(caught(interrupt))  # a run handles Ctrl-C itself, so only the environment can have raised it
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.made
        second = caught(lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            reraise_ctrl_c(second)
