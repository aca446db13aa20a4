"""Settings of Sphinx for the site of the docs; :mod:`docs.site.build` builds it.

The source folder is the repository, so that links from a page to any file work as on a forge. Pages are those of docs/
and a few of the top folder.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

from fedping import __version__

ROOT = Path(__file__).resolve().parents[2]
TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md")

project = "fedping"
author = "the authors of fedping"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = ["docs/**.md", *TOP]
exclude_patterns = [path.name for path in ROOT.iterdir() if path.name not in ("docs", *TOP)]
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]
"""References that may be missing without a warning: annotations and docstrings name types without a page."""

autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_type_aliases = {name: name for name in ("ArrayLike", "Decorator", "FloatArray", "Place", "Vector")}

myst_heading_anchors = 6

html_theme = "furo"
html_title = f"fedping {release}"
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
html_static_path: list[str] = []

_GROUP = re.compile(r"^## (.+)$")
_LINK = re.compile(r"\]\(([^)#]+)\.md\)$")
_STAR = re.compile(r"(?<![*\w])\*(?=\w)")
_MODULES = re.compile(r"~(?:\w+\.)+(?=\w)")
_FOLDER = re.compile(r"\[([^\]]*)\]\(([^)#:]+)\)")


def with_contents(index: str) -> str:
    """Return the index with a hidden table of contents for each of its lists, so that Sphinx finds the pages."""
    groups: dict[str, list[str]] = {}
    for line in index.splitlines():
        if heading := _GROUP.match(line):
            groups[heading[1]] = []
        elif line.startswith("- ") and (link := _LINK.search(line)):
            groups[list(groups)[-1]].append(link[1])
    trees = (f"```{{toctree}}\n:hidden:\n:caption: {name}\n\n" + "\n".join(pages) for name, pages in groups.items())
    return index + "".join(f"\n{tree}\n```\n" for tree in trees)


def without_folders(page: str, folder: Path) -> str:
    """Return a page's text with links to folders, which have no page in the site, replaced by plain text."""
    return _FOLDER.sub(lambda found: found[1] if (folder / found[2]).is_dir() else found[0], page)


def as_rst(line: str) -> str:
    """Return a line of a docstring whose stars, as in ``*shape``, are escaped so that they don't start emphasis."""
    parts = line.split("``")
    parts[::2] = (_STAR.sub(r"\\*", part) for part in parts[::2])
    return "``".join(parts)


def _prepare(app: Sphinx, name: str, content: list[str]) -> None:
    content[0] = without_folders(content[0], (ROOT / name).parent)
    if name == root_doc:
        content[0] = with_contents(content[0])
    elif name == "docs/api/README":
        content[0] = content[0].replace("`build/docs/api/index.html`", '<a href="../../api/index.html">a page each</a>')


def _prepare_docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = map(as_rst, lines)


def _shorten(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Return a signature without types' modules, which autodoc doesn't remove if a default is not an expression."""
    return signature and _MODULES.sub("", signature), returned and _MODULES.sub("", returned)


def setup(app: Sphinx) -> None:
    """Register the preparation of pages, docstrings and signatures, and a lexer for crontabs, which Pygments lacks."""
    app.add_lexer("cron", TextLexer)
    app.connect("source-read", _prepare)
    app.connect("autodoc-process-docstring", _prepare_docstring, priority=400)  # before napoleon
    app.connect("autodoc-process-signature", _shorten)
