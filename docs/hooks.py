"""MkDocs hook: publish the pictures in figures/ and the source with the pages, so that links work on the site, too.

The pages are in docs/, the pictures in figures/NAME/NAME.svg. On the repository's web page the link ../figures/… is
right. MkDocs only knows files below docs/, so the pictures are added to the site as figures/….
"""

from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pictures and the source files to the files of the site."""
    for picture in sorted(ROOT.glob("figures/*/*.svg")):
        name = picture.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(picture)))
    for source in sorted(ROOT.glob("shmppo/**/*.py")):
        name = source.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(source)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Point the links of a page to the added files."""
    return markdown.replace("](../figures/", "](figures/").replace("](../../shmppo/", "](../shmppo/")
