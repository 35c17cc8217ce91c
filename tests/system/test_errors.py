"""Every error message of the package, read from its source: each is one sentence that says what, where, what to do.

`pytest tests/test_errors.py -v` shows them all, with {…} where numbers and names go.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "shmppo"
RAISED = ("ConfigError", "EnvError", "WorkerError", "TrainingError")
WAYS_OUT = re.compile(
    r"; |\b(must|use|name|lower|raise|choose|install|correct|wrap|supported|give)\b"
    r"|\b(continue|resume|see|put|add|check|write|leave)\b"
)
BY_NATURE = (
    "worker {…} died", "worker {…} failed", "worker {…} answered", "could not be made: {…}", "(episode {…}, after {…} ",
)  # fmt: skip
"""What happened in a process or in the user's environment: the traceback says the rest."""


def template(node: ast.expr) -> str | None:
    """The text of a message as it is written, {…} for what is filled in; None if it is no text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "{…}" for part in node.values]
        return "".join(str(part) for part in parts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = template(node.left), template(node.right)
        return None if left is None or right is None else left + right
    return None


def messages_of(path: Path) -> Iterator[str]:
    """Messages that are raised directly, or through `require` and `require_fields`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        name, arguments = node.func.id, node.args
        if name == "require_fields":
            rule = template(arguments[3])
            assert rule is not None, ast.unparse(node)
            yield f"{{…}} is {{…}}; it must {rule}"
        elif name == "require" or name in RAISED:
            texts = [text for text in map(template, arguments) if text is not None]
            yield from texts[:1]


def all_messages() -> list[tuple[str, str]]:
    """(module, message) without repetition."""
    found = {(path.stem, text) for path in PACKAGE.rglob("*.py") for text in messages_of(path)}
    whole = [(module, text) for module, text in found if re.search(r"\w{3}", text.replace("--", "").split("{…}")[-1])]
    return sorted(whole)  # the others end with a message, or a part of one, from elsewhere


@pytest.mark.parametrize(("module", "message"), all_messages(), ids=lambda text: text.replace("…", ""))
def test_it_says_what_where_and_what_to_do(module: str, message: str) -> None:
    assert "\n" not in message.replace(":\n", ""), "one line"
    assert not message.endswith("."), "as the other messages"
    assert re.search(r"{…}|--|`|pip install|RUN_DIR|directories", message), "it names no flag, file or number"
    assert WAYS_OUT.search(message) or any(one in message for one in BY_NATURE), "it does not say what to do"


def test_none_was_overlooked() -> None:
    """What the walk cannot read is not let through: a message that is made elsewhere than where it is raised."""
    unread = [
        f"{path.name}:{node.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name)
        if node.exc.func.id in RAISED and all(template(argument) is None for argument in node.exc.args)
    ]
    # `require` itself, whose callers are read, and a fault that is passed on.
    assert [place.partition(":")[0] for place in unread] == ["checks.py", "evaluation.py"], unread
