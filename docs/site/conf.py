"""Settings of Sphinx for the site of the docs; :mod:`docs.site.build` builds it.

The source folder is the repository, so that links from a page to any file hold as they do on a forge. Pages are
those of docs/ and a few of the top.
"""

from __future__ import annotations

import re
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

from fedping import __version__

ROOT = Path(__file__).resolve().parents[2]
TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md")

project = "fedping"
author = "the authors of fedping"
version = release = __version__
extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = ["docs/**.md", *TOP]
exclude_patterns = [path.name for path in ROOT.iterdir() if path.name not in ("docs", *TOP)]
nitpicky = True

myst_heading_anchors = 6

html_theme = "furo"
html_title = f"fedping {release}"
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
html_static_path: list[str] = []

_GROUP = re.compile(r"^## (.+)$")
_LINK = re.compile(r"\]\(([^)#]+)\.md\)$")
_FOLDER = re.compile(r"\[([^\]]*)\]\(([^)#:]+)\)")


def with_contents(index: str) -> str:
    """Return the index with a hidden table of contents for each of its lists, in which Sphinx looks for pages."""
    groups: dict[str, list[str]] = {}
    for line in index.splitlines():
        if heading := _GROUP.match(line):
            groups[heading[1]] = []
        elif line.startswith("- ") and (link := _LINK.search(line)):
            groups[list(groups)[-1]].append(link[1])
    trees = (f"```{{toctree}}\n:hidden:\n:caption: {name}\n\n" + "\n".join(pages) for name, pages in groups.items())
    return index + "".join(f"\n{tree}\n```\n" for tree in trees)


def without_folders(page: str, folder: Path) -> str:
    """Return a page's text in which links to folders, which a site has no page for, are plain text."""
    return _FOLDER.sub(lambda found: found[1] if (folder / found[2]).is_dir() else found[0], page)


def _prepare(app: Sphinx, name: str, content: list[str]) -> None:
    content[0] = without_folders(content[0], (ROOT / name).parent)
    if name == root_doc:
        content[0] = with_contents(content[0])


def setup(app: Sphinx) -> None:
    """Prepare each page before it is read; Pygments has no language for lines of cron."""
    app.add_lexer("cron", TextLexer)
    app.connect("source-read", _prepare)
