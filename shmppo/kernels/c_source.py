"""Parts of the kernels as source for one lane, in C99 with the vector extensions of GCC and Clang."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

HEADERS = ("kernels.h", "vectors.h", "products.h", "layers.h", "recurrent.h", "linear_recurrent.h", "actions.h")
"""The headers with the forward pass, in the order of their definitions."""
PRELUDE = "#define GENERIC_LANES 1\n#define WITHOUT_BF16\n"

_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_DEFINED = (
    re.compile(r"^(?:static|INLINE)\b[^;{]*?(\w+)\(", re.MULTILINE),
    re.compile(r"^#define (\w+)", re.MULTILINE),
    re.compile(r"\bX\((\w+)\)"),
    re.compile(r"^(?:typedef\b[^;{]*?|\} )(\w+)(?: __attribute__\(.*\))?;", re.MULTILINE),
)
_ENUM = re.compile(r"\benum \{([^}]*)\}")


def _definitions(text: str) -> set[str]:
    """Return the names that a part of a header defines."""
    names = {name for pattern in _DEFINED for name in pattern.findall(text)}
    return names.union(*(re.findall(r"[A-Z_]+\b", body) for body in _ENUM.findall(text)))


def forward_source(functions: Collection[str]) -> str:
    """Return the source of functions of the headers, and of everything that they use."""
    parts = [part for name in HEADERS for part in _parts((Path(__file__).parent / name).read_text(encoding="utf-8"))]
    defined = [_definitions(_COMMENT.sub("", part)) for part in parts]
    used = [set(re.findall(r"\w+", _COMMENT.sub("", part))) for part in parts]
    # Parts that define no name, such as the check of the compiler's flags, are always needed.
    needed = {i for i, names in enumerate(defined) if not names or names & set(functions)}
    while more := {i for i, names in enumerate(defined) if any(names & used[k] for k in needed)} - needed:
        needed |= more
    return PRELUDE + "\n\n".join(parts[i] for i in sorted(needed)) + "\n"


def _parts(header: str) -> list[str]:
    """Divide a header at its empty lines, without its guard and the includes of other headers."""
    _, body = re.split(r"#define SHMPPO_\w+_H\n", header)
    lines = [line for line in body.rpartition("#endif")[0].splitlines() if not line.startswith('#include "')]
    return [part for part in "\n".join(lines).strip("\n").split("\n\n") if part.strip()]
