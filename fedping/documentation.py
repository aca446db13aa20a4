"""Pages of the docs, from a checkout or a wheel's share/fedping: names, headings and text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from fedping.protocol.errors import InvalidSettings, did_you_mean
from fedping.shared_files import CHECKOUT, shared_folder

MOVED = {
    "README": {"two-commands": "two-commands-in-a-checkout"},
    "benchmarks": {
        "beside-jax-on-one-core-benchmarkspeerscompare---one-core---turns-3": (
            "beside-jax-on-one-core-benchmarkspeerscompare---one-core"
        )
    },
    "design": {
        "one-storage-for-landed-pings-and-addresses-for-everybody-else": (
            "one-storage-for-the-store-and-for-landed-pings-and-addresses-for-everybody-else"
        ),
        "the-operators-endpoints-have-a-listener-of-their-own": "the-operators-endpoints-have-their-own-listener",
        "we-decide-how-many-files-there-are-not-the-clients": "we-decide-the-number-of-files-not-the-clients",
        "what-is-told-goes-through-one-seam": "all-logging-goes-through-one-interface",
        "who-may-be-counted-is-decided-at-the-edge-and-once-more": (
            "who-may-be-counted-is-decided-at-the-edge-and-again-later"
        ),
    },
    "institutions": {"what-an-update-tells": "what-protects-your-rows"},
}
"""Maps old anchors of renamed headings to present ones, by page. They work for one release, also on the built site."""

_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^(#{1,6}) (.+?)[ \t]*$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_NEAR = 3
"""Maximum number of headings that a message suggests."""
_LISTED = re.compile(r"^- \[(.+)\]\(([^)]+)\.md\)\Z")


@dataclass(frozen=True)
class Heading:
    """A heading of a page.

    Attributes:
        level: 1 for the page's title.
        title: the heading's text, with links reduced to their words.
        anchor: the part of an address after ``#``, the same on forges and the built site.
        start: the heading's position in the page's text, in characters.
    """

    level: int
    title: str
    anchor: str
    start: int


@dataclass(frozen=True)
class Page:
    """A page of the docs.

    Attributes:
        name: the page's name for ``fedping docs``, such as ``operators``.
        title: the page's title in the index.
        group: the heading above it in the index, such as "Reference".
        path: the Markdown file.
        address: the built page's path within the site.
    """

    name: str
    title: str
    group: str
    path: Path
    address: str


def headings(text: str) -> Iterator[Heading]:
    """Yield the headings of a page, except in code blocks."""
    shown = _BLOCK.sub(lambda block: " " * len(block[0]), text)
    times: Counter[str] = Counter()
    for found in _HEADING.finditer(shown):
        title = _LINK.sub(r"\1", found[2])
        anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        yield Heading(
            len(found[1]), title, f"{anchor}-{times[anchor]}" if times[anchor] else anchor, start=found.start()
        )
        times[anchor] += 1


def present_anchor(page: Page, anchor: str) -> str:
    """Return the present anchor of a page's heading, given an anchor that may be from before a renaming.

    Raises:
        InvalidSettings: no heading has the anchor.
    """
    known = [each.anchor for each in headings(page.path.read_text("utf-8"))]
    if anchor in known:
        return anchor
    moved = MOVED.get(page.name, {}).get(anchor)
    if moved is not None:
        return moved
    asked = anchor.lower()[:80]
    near = [each for each in known if asked in each] or get_close_matches(asked, known, n=_NEAR)
    there = " or ".join(f"'{page.name}#{each}'" for each in near[:_NEAR])
    what = f"did you mean {there}?" if near else f"'fedping docs {page.name}' prints the page with all of them."
    raise InvalidSettings(f"the page '{page.name}' has no heading #{anchor[:80]}; {what}")


def section(text: str, anchor: str) -> str:
    """Return the part of a page from a heading to the next one of the same or a higher level.

    Raises:
        InvalidSettings: no heading has the anchor.
    """
    found = list(headings(text))
    for at, heading in enumerate(found):
        if heading.anchor == anchor:
            end = next((later.start for later in found[at + 1 :] if later.level <= heading.level), len(text))
            return text[heading.start : end].rstrip() + "\n"
    raise InvalidSettings(f"the page has no heading #{anchor[:80]}")


def pages() -> list[Page]:
    """Return the pages in the order of the index.

    Raises:
        FedpingError: this installation lacks the pages.
    """
    folder = shared_folder("docs", "docs", "index.md")
    found, group = [], ""
    for line in (folder / "index.md").read_text("utf-8").splitlines():
        if line.startswith("## "):
            group = line.removeprefix("## ")
        elif listed := _LISTED.match(line):
            title, link = listed[1], listed[2]
            name = link.removeprefix("../").removesuffix("/README")
            address = link.removeprefix("../") if link.startswith("../") else f"docs/{link}"
            found.append(Page(name, title, group, folder / f"{link}.md", f"{address}.html"))
    return found


def page_of(wanted: str) -> Page:
    """Return a page by its name, or by its path in messages and links, such as docs/operators.md.

    Raises:
        InvalidSettings: no page has the name.
        FedpingError: this installation lacks the pages.
    """
    known = pages()
    asked = re.sub(r"(\.md|\.html|/README|/)+$", "", wanted.removeprefix("./").removeprefix("docs/")).lower()
    for page in known:
        if asked in (page.name.lower(), page.name.lower().rpartition("/")[2]):
            return page
    near = did_you_mean(asked, (page.name for page in known)) or "."
    raise InvalidSettings(f"the docs have no page '{wanted[:80]}'{near} 'fedping docs' lists all pages.")


def built_site() -> Path | None:
    """Return the folder of the built site, from ``make docs`` or a released wheel; None if it does not exist."""
    for site in (CHECKOUT / "build" / "docs", Path(__file__).parent / "site"):
        if (site / "docs" / "index.html").is_file():
            return site
    return None
