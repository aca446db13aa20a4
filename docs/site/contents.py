"""Write the list of contents at the top of long pages, from their headings.

    python -m docs.site.contents

The list stands between two comments, ``START`` and ``END``; a page has one where it has these.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]
PAGES = ("operators.md", "reference.md")
START = "<!-- contents, by python -m docs.site.contents -->"
END = "<!-- end of contents -->"

_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^(#{1,6}) (.+?)\s*$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def headings(page: str) -> Iterator[tuple[int, str, str]]:
    """Yield the level of each heading of a page, its title without links, and its anchor on a forge."""
    times: Counter[str] = Counter()
    for found in _HEADING.finditer(_BLOCK.sub("", page)):
        title = _LINK.sub(r"\1", found[2])
        anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        yield len(found[1]), title, f"{anchor}-{times[anchor]}" if times[anchor] else anchor
        times[anchor] += 1


def with_contents(page: str) -> str:
    """Return a page with the list of its headings of the levels 2 and 3 between the two comments.

    Raises:
        ValueError: it lacks the comments.
    """
    before, start, rest = page.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise ValueError(f"the page lacks {START} and {END}")
    lines = [
        f"{'  ' * (level - 2)}- [{title}](#{anchor})" for level, title, anchor in headings(page) if level in (2, 3)
    ]
    return "\n".join([f"{before}{START}", "", *lines, "", f"{END}{after}"])


if __name__ == "__main__":
    for name in PAGES:
        path = DOCS / name
        path.write_text(with_contents(path.read_text("utf-8")), "utf-8")
