"""Write the list of contents at the top of long pages, from their headings.

    python -m docs.site.contents

The list is written between two comments, ``START`` and ``END``; pages without them get no list.
"""

from __future__ import annotations

from pathlib import Path

from fedping.documentation import headings

DOCS = Path(__file__).resolve().parents[1]
PAGES = ("operators.md", "reference.md")
START = "<!-- contents, by python -m docs.site.contents -->"
END = "<!-- end of contents -->"


def with_contents(page: str) -> str:
    """Return a page with the list of its headings of the levels 2 and 3 between the two comments.

    Raises:
        ValueError: the page lacks the comments.
    """
    before, start, rest = page.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise ValueError(f"the page lacks {START} and {END}")
    listed = (heading for heading in headings(page) if heading.level in (2, 3))
    lines = [f"{'  ' * (each.level - 2)}- [{each.title}](#{each.anchor})" for each in listed]
    return "\n".join([f"{before}{START}", "", *lines, "", f"{END}{after}"])


if __name__ == "__main__":
    for name in PAGES:
        path = DOCS / name
        path.write_text(with_contents(path.read_text("utf-8")), "utf-8")
