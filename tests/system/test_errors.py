"""Errors: exit codes, and every message of the package, read from its source. A message is one sentence with advice."""

from __future__ import annotations

import ast
import functools
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import TESTS

from shmppo.errors import ConfigError, EnvError, RankError, SaveError, ShmppoError, WorkerError, run_command
from shmppo.lockstep.learner import _invalid

PACKAGE = TESTS.parent / "shmppo"
RAISED = ("ConfigError", "EnvError", "WorkerError", "TrainingError", "RankError", "SaveError", "_invalid")
WAYS_OUT = re.compile(
    r"; |\b(must|use|name|lower|raise|choose|install|correct|wrap|supported|give)\b"
    r"|\b(continue|resume|see|put|add|check|write|leave)\b"
)
BY_NATURE = (
    "worker {…} died", "worker {…} failed", "worker {…} answered", "could not be made: {…}",
    "(episode {…}{…}, after {…} ",
)  # fmt: skip
"""Messages about a process or an environment of the user. The traceback contains the reason."""


def template(node: ast.expr) -> str | None:
    """The text of a message as it is written, with {…} for values; None if it is not a text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "{…}" for part in node.values]
        return "".join(str(part) for part in parts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = template(node.left), template(node.right)
        return None if left is None or right is None else left + right
    return None


@functools.cache
def trees() -> dict[Path, list[ast.AST]]:
    """The nodes of each module of the package."""
    return {path: list(ast.walk(ast.parse(path.read_text()))) for path in sorted(PACKAGE.rglob("*.py"))}


def messages_of(nodes: list[ast.AST]) -> Iterator[str]:
    """Messages that are raised directly, or through `require`."""
    for node in nodes:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        name, arguments = node.func.id, node.args
        if name == "require" or name in RAISED:
            texts = [text for text in map(template, arguments) if text is not None]
            yield from texts[:1]


def all_messages() -> list[tuple[str, str]]:
    """(module, message) without repetition."""
    found = {(path.stem, text) for path, nodes in trees().items() for text in messages_of(nodes)}
    whole = [(module, text) for module, text in found if re.search(r"\w{3}", text.replace("--", "").split("{…}")[-1])]
    return sorted(whole)  # the others end with another message or a part of one


def test_a_message_says_what_where_and_what_to_do() -> None:
    for module, message in all_messages():
        where = f"{module}: {message}"
        assert "\n" not in message.replace(":\n", ""), f"one line: {where}"
        assert not message.endswith("."), f"no message ends with a period: {where}"
        assert re.search(r"{…}|--|`|pip install|RUN_DIR|directories", message), f"no flag, file or number: {where}"
        assert WAYS_OUT.search(message) or any(one in message for one in BY_NATURE), f"it says nothing to do: {where}"


def test_all_messages_are_read_from_the_source() -> None:
    """A message that is not written where it is raised cannot be read, so there must be none."""
    assert len(all_messages()) > 100
    unread = [
        f"{path.name}:{node.lineno}"
        for path, nodes in trees().items()
        for node in nodes
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name)
        if node.exc.func.id in RAISED and all(template(argument) is None for argument in node.exc.args)
    ]
    # Exceptions: `require` itself, whose calls are read; flags that functions describe; an error that is raised again.
    files = {place.partition(":")[0] for place in unread}
    assert files <= {"checks.py", "evaluation.py", "flags.py"}, unread


@pytest.mark.parametrize(
    "error",
    [
        EnvError(3, "a"),
        WorkerError("b"),
        _invalid(1, 2, "c"),
        *(e("d") for e in (ConfigError, RankError, SaveError)),
    ],
)
def test_an_error_of_a_run_in_another_process_can_be_sent_to_this_one(error: ShmppoError) -> None:
    received = pickle.loads(pickle.dumps(error))
    assert (type(received), str(received)) == (type(error), str(error))


def test_run_command_prints_an_error_as_one_line_and_returns_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(error: BaseException) -> int:
        def command() -> None:
            raise error

        return run_command(command, "interrupted")

    assert [fail(ConfigError("a")), fail(EnvError(3, "b")), fail(KeyboardInterrupt())] == [2, 1, 130]
    assert capsys.readouterr().err.splitlines()[:2] == ["error: a", "error: environment 3: b"]
