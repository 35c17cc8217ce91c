"""MkDocs hooks: publish pictures, tables, and source files with the pages, and keep short code in one line.

The pages are in docs/, the pictures in figures/. On the repository's web page the link ../figures/… is
right. MkDocs only knows files below docs/, so the pictures are added to the site as figures/….
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PUBLISHED = (
    "figures/**/*.svg", "figures/*/*.md", "figures/*/*.csv", "figures/**/*.py", "shmppo/**/*.py", "shmppo/**/*.h",
    "examples/**/*",
)  # fmt: skip
OUTSIDE = re.compile(r"\]\(((?:\.\./)*)\.\./(figures|shmppo|examples)/")
"""A link out of docs/: the last `../` leads from docs/ to the root of the repository."""

SHORT_CODE = re.compile(r"<code>([^<\n]{1,24})</code>")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pictures, the tables, and the source files to the files of the site."""
    for pattern in PUBLISHED:
        for path in sorted(path for path in ROOT.glob(pattern) if path.is_file() and path.suffix != ".pyc"):
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Point the links of a page to the added files."""
    return OUTSIDE.sub(r"](\1\2/", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Mark short code within a sentence, for example a flag, which extra.css keeps in one line."""
    return SHORT_CODE.sub(r'<code class="short">\1</code>', html)
