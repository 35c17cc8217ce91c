"""The language of the project: short sentences, standard terms, and American spelling.

    python tests/test_style.py    # prints sentence lengths, the longest sentences, and every banned word

The rules apply to docstrings, comments, messages and names in the code, and to the text of the documentation.
"""

from __future__ import annotations

import ast
import io
import re
import statistics
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
CODE = ("shmppo", "examples", "figures")
PAGES = ("README.md", "CONTRIBUTING.md", "docs/**/*.md", "examples/**/*.md", "figures/**/*.md")
MEAN_WORDS, P95_WORDS = 18.0, 32
"""Limits of the mean and of the 95th percentile of the words per sentence, for each group of texts."""
GROUPS = ("docstrings", "attribute docstrings", "comments", "messages", "documentation")

RAISED = (
    "ConfigError", "EnvError", "WorkerError", "TrainingError", "RankError", "SaveError", "require", "require_fields",
    "print", "print_warning",
)  # fmt: skip
LOGGED = ("debug", "info", "warning", "warn", "error", "exception", "critical", "log")

BANNED = {
    "desk": "mailbox", "desks": "mailboxes", "board": "shared-memory all-gather", "arena": "shared buffers",
    "books": "counters", "booked": "counted", "slope": "gradient", "slopes": "gradients", "film": "video",
    "films": "records", "filmed": "recorded", "awake": "spin", "asleep": "blocked", "parked": "blocked",
    "ring": "wake up", "rings": "wakes up", "floors": "packages", "twin": "reference",
    "twins": "references", "promise": "determinism guarantee", "told": "name the actor", "somebody": "name the actor",
    "nobody": "name the actor", "somewhere": "name the place",
}  # fmt: skip
"""Words that no public text and no name may contain, with the standard term."""
BANNED_PHRASES = {
    r"step[ -]sizes?": "learning rate", r"by turns": "interleaved", r"(?:go|goes|going|went) on": "continue, resume",
}  # fmt: skip
BRITISH = re.compile(
    r"\b(?:\w*(?:optimi|normali|initiali|seriali|summari|recogni|synchroni|organi|minimi|maximi|parallelis?i|generali"
    r"|equali|utili|randomi|customi|visuali|reali|speciali|vectori|penali|emphasi|stabili|factori|tokeni)s"
    r"(?:e|es|ed|ing|er|ers|ation|ations|able)"
    r"|\w*(?:colour|behaviour|neighbour|favour|honour|labour)\w*|(?:analyse|analysed|analysing)"
    r"|(?:model|label|signal|cancel|travel|channel|total|equal|level)l(?:ed|ing|er)|cent(?:re|res|red)|kilometres?"
    r"|metres?|licence|defence|catalogue|artefacts?|grey|judgement|whilst|towards|programme)\b",
    re.IGNORECASE,
)
SLOPE_ALLOWED = ("kl_profile", "kl-profile", "kl_sweeps")
"""Parts of the names of files that speak of the slope of a fitted line. Elsewhere "fitted slope" is allowed."""
PRODUCT_NAMES = re.compile(r"TensorBoard")


class Text(NamedTuple):
    """A text and where it begins."""

    group: str
    place: str
    """`file:line`."""
    text: str


# --- texts of the code


def source_files() -> list[Path]:
    return sorted(path for folder in CODE for path in (ROOT / folder).rglob("*.py"))


def template(node: ast.expr) -> str | None:
    """A message as it is written, with X for values that are filled in; None if it is not a text."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = template(node.left), template(node.right)
        return None if left is None and right is None else f"{left or 'X'}{right or 'X'}"
    if isinstance(node, ast.IfExp):
        return template(node.body)
    return None


def is_message_call(call: ast.Call) -> bool:
    function = call.func
    if isinstance(function, ast.Name):
        return function.id in RAISED
    return isinstance(function, ast.Attribute) and function.attr in LOGGED


def docstrings(path: Path, tree: ast.Module) -> Iterator[Text]:
    """Docstrings of modules, classes and functions, and the texts below attributes."""
    place = path.relative_to(ROOT)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for before, statement in zip([None, *body], body, strict=False):
            if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Constant):
                continue
            if isinstance(statement.value.value, str):
                group = "docstrings" if before is None else "attribute docstrings"
                yield Text(group, f"{place}:{statement.lineno}", statement.value.value)


def messages(path: Path, tree: ast.Module) -> Iterator[Text]:
    """Texts of errors, of the log, and of what commands print."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and is_message_call(node):
            texts = [text for text in map(template, node.args) if text is not None and " " in text.strip()]
            yield from (Text("messages", f"{path.relative_to(ROOT)}:{node.lineno}", text) for text in texts)


def comments(path: Path, source: str) -> Iterator[Text]:
    """Comments. Those on consecutive lines of their own are one text; directives for tools are left out."""
    lines: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or re.match(r"#!|# ?(noqa|type:|fmt:|mypy:|pragma)", token.string):
            continue
        text = re.sub(r"#+ ?(-{2,} ?)?|\s*# ?(noqa|type:|fmt:|pragma).*$", "", token.string)
        alone = token.line.lstrip().startswith("#")
        if lines and (not alone or token.start[0] != last + 1):
            yield Text("comments", f"{path.relative_to(ROOT)}:{first}", "\n".join(lines))
            lines = []
        if not lines:
            first = token.start[0]
        lines.append(text)
        last = token.start[0] if alone else -1
    if lines:
        yield Text("comments", f"{path.relative_to(ROOT)}:{first}", "\n".join(lines))


# --- texts of the documentation


def pages() -> list[Path]:
    return sorted({path for pattern in PAGES for path in ROOT.glob(pattern)})


def prose(markdown: str) -> str:
    """The sentences of a page: no code blocks, tables, headings, pictures or HTML. The lines keep their numbers."""
    kept, inside = [], False
    for line in markdown.splitlines():
        fence = line.lstrip().startswith("```")
        inside ^= fence
        skip = inside or fence or re.match(r"\s*(\||#|!\[|\[!|<)", line)
        kept.append("" if skip else line)
    text = re.sub(r"<!--.*?-->", lambda match: "\n" * match[0].count("\n"), "\n".join(kept), flags=re.DOTALL)
    return re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)


@cache
def corpus() -> list[Text]:
    """All texts whose sentences are measured."""
    found: list[Text] = []
    for path in source_files():
        source = path.read_text()
        tree = ast.parse(source)
        found += [*docstrings(path, tree), *messages(path, tree), *comments(path, source)]
    found += [Text("documentation", f"{path.relative_to(ROOT)}:1", prose(path.read_text())) for path in pages()]
    return found


# --- sentences

SECTION = re.compile(r"\s*(Args|Arguments|Returns|Raises|Yields|Attributes|Example|Examples|Note|Notes|Source):\s*$")
ENTRY = re.compile(r"^\s*([-*] |\d+\. |\*{0,2}[\w.]+(, \*{0,2}[\w.]+)*( \([^)]*\))?: )")
SENTENCE_END = re.compile(r"(?<=[.!?])[)\"'”*]*\s+")
ABBREVIATIONS = re.compile(r"\b(e\.g|i\.e|etc|vs|cf|Fig|Eq|Sec|approx|No)\.")


def blocks(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs and entries of lists, with the number of their first line. Indented code is left out."""
    block: list[str] = []
    first, margin, blank = 0, None, True
    for number, line in enumerate(text.splitlines()):
        indent = len(line) - len(line.lstrip())
        if line.strip() and number > 0:
            margin = indent if margin is None else min(margin, indent)
        code = blank and number > 0 and indent >= (margin or 0) + 4 and not ENTRY.match(line)
        if block and (not line.strip() or SECTION.match(line) or ENTRY.match(line)):
            yield first, " ".join(block)
            block = []
        if line.strip() and not code and not SECTION.match(line):
            first = first if block else number
            block.append(ENTRY.sub("", line, count=1).strip() if not block else line.strip())
        blank = not line.strip() or (blank and code)
    if block:
        yield first, " ".join(block)


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """The sentences of a text, each with the number of the line that its block begins on."""
    for first, block in blocks(text):
        joined = ABBREVIATIONS.sub(lambda match: match[0].replace(".", ""), re.sub(r"`+[^`]*`+", "`code`", block))
        yield from ((first, part) for part in SENTENCE_END.split(joined) if part and words(part))


def words(sentence: str) -> int:
    """Words of a sentence. Code in backticks is one word; numbers count, symbols alone do not."""
    return sum(bool(re.search(r"\w", word)) for word in sentence.split())


class Measured(NamedTuple):
    """The sentences of a group of texts."""

    lengths: list[int]
    longest: list[tuple[int, str, str]]
    """(words, place, sentence), the longest first."""

    @property
    def mean(self) -> float:
        return statistics.mean(self.lengths)

    @property
    def p95(self) -> float:
        return statistics.quantiles(self.lengths, n=20, method="inclusive")[-1]


def measured(group: str) -> Measured:
    found = []
    for one in corpus():
        if one.group == group:
            path, _, line = one.place.rpartition(":")
            found += [(words(s), f"{path}:{int(line) + offset}", s) for offset, s in sentences(one.text)]
    found.sort(reverse=True)
    return Measured([count for count, _, _ in found], found)


# --- banned words


def split_name(name: str) -> str:
    """The words of an identifier: `ShmAllGather` and `shm_all_gather` become "Shm All Gather" and "shm all gather"."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", " ", name)


def public_lines() -> Iterator[tuple[str, str, str]]:
    """(place, line, words) of all code and pages. The words of names and flags are separated."""
    for path in (*source_files(), *pages()):
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            yield f"{path.relative_to(ROOT)}:{number}", line, split_name(PRODUCT_NAMES.sub("", line))


def is_standard_term(word: str, place: str, line: str) -> bool:
    """Whether a banned word stands for what it means elsewhere: the slope of a fitted line, or a ring all-reduce."""
    if word.startswith("slope"):
        return any(one in place for one in SLOPE_ALLOWED) or "fitted slope" in line
    return word == "ring" and bool(re.search(r"ring[ _-]all[ _-]?reduce", line))


def banned_words() -> list[str]:
    """`place: word (the standard term)` for each banned word."""
    single = re.compile(rf"\b(?:{'|'.join(BANNED)})\b", re.IGNORECASE)
    found = []
    for place, line, separated in public_lines():
        hits = [match[0].lower() for match in single.finditer(separated)]
        found += [f"{place}: {word} ({BANNED[word]})" for word in hits if not is_standard_term(word, place, line)]
        for phrase, term in BANNED_PHRASES.items():
            found += [f"{place}: {match[0]} ({term})" for match in re.finditer(rf"\b{phrase}\b", line, re.IGNORECASE)]
    return found


def british_words() -> list[str]:
    """`place: word` for each word in British spelling."""
    return [f"{place}: {match[0]}" for place, _, separated in public_lines() for match in BRITISH.finditer(separated)]


# --- the tests


@pytest.mark.parametrize("group", GROUPS)
def test_sentences_are_short(group: str) -> None:
    found = measured(group)
    longest = "\n".join(f"{place}: {count} words: {text}" for count, place, text in found.longest[:20])
    assert len(found.lengths) > 50, "the texts are not read"
    assert found.mean <= MEAN_WORDS, f"mean {found.mean:.1f} words\n{longest}"
    assert found.p95 <= P95_WORDS, f"95th percentile {found.p95:.1f} words\n{longest}"


def test_no_banned_word() -> None:
    found = banned_words()
    assert not found, "\n".join(found)


def test_spelling_is_american() -> None:
    found = british_words()
    assert not found, "\n".join(found)


def test_sentences_are_found() -> None:
    text = """Train a policy, e.g. for a task. It has two sentences.

    Args:
        steps: number of steps, 1.5 at most.
        other: another text; it goes on
            in the next line.

    Call it as in this line:

        python -m shmppo.train --flag

    Returns:
        The `code of several words` in one.
    """
    assert [words(one) for _, one in sentences(text)] == [7, 4, 6, 9, 6, 4]
    assert prose("# Title\n\nA [link](http://a.b) is one.\n\n```\ncode\n```\n| a | b |\nEnd.").split("\n") == [
        "", "", "A link is one.", "", "", "", "", "", "End.",
    ]  # fmt: skip


def test_names_are_split_into_words() -> None:
    assert split_name("VideoRecorder.film_it") == "Video Recorder.film it"
    assert PRODUCT_NAMES.sub("", "a TensorBoard logger") == "a  logger"
    assert BRITISH.findall("optimiser normalised colours behaviour neighbour optimistic promise revise exercise") == [
        "optimiser", "normalised", "colours", "behaviour", "neighbour",
    ]  # fmt: skip


def report() -> None:
    """Print the lengths of the sentences by group, the longest ones, and the banned words."""
    for group in GROUPS:
        found = measured(group)
        print(
            f"\n{group}: {len(found.lengths)} sentences, mean {found.mean:.1f}, 95th percentile {found.p95:.0f} words"
        )
        for count, place, text in found.longest[:15]:
            print(f"  {place}: {count}: {text}")
    for title, found_words in (("banned words", banned_words()), ("British spelling", british_words())):
        print(f"\n{title}: {len(found_words)}")
        print("\n".join(f"  {one}" for one in found_words))


if __name__ == "__main__":
    report()
