"""The page of the papers' items: its files exist, its commands parse, and its figures are on the linked pages."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.commands.test_docs import anchors, refusal

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "papers.md"
EXPERIMENTS = ROOT / "experiments" / "papers"
SHAPES = ("yes", "partly", "no", "none", "built", "an illustration", "in the laboratory", "MPC and DP built")
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?|(?<![\w.])\.\d+")
SEPARATOR = re.compile(r"(?<!\\)\|")


class Item(NamedTuple):
    """The cells of a row of a paper's table."""

    line: int
    item: str
    fedping: str
    theirs: str
    ours: str
    shape: str


def items() -> Iterator[Item]:
    """Yield the rows of all tables with the items' header."""
    inside = False
    for number, line in enumerate(PAGE.read_text(encoding="utf-8").splitlines(), 1):
        inside = line.startswith("| item | fedping |") or (inside and line.startswith("|"))
        if inside and not line.startswith(("| item |", "|---")):
            yield Item(number, *(cell.strip() for cell in SEPARATOR.split(line[2:-2])))


ITEMS = list(items())
EACH = pytest.mark.parametrize("item", ITEMS, ids=lambda item: str(item.line))


def coded(text: str) -> list[str]:
    """Return the texts in backticks."""
    return re.findall(r"`([^`]+)`", text)


def section(page: Path, anchor: str) -> str:
    """Return a page's text from the heading with this anchor to the next heading of its level or a higher one."""
    lines = page.read_text(encoding="utf-8").splitlines()
    heads = [(at, line) for at, line in enumerate(lines) if re.match(r"#+ ", line)]
    for at, line in heads:
        title = re.sub(r"[^\w\- ]", "", line.lstrip("#").strip().lower()).replace(" ", "-")
        if title == anchor:
            depth = len(line.split()[0])
            ends = [end for end, other in heads if end > at and len(other.split()[0]) <= depth]
            return "\n".join(lines[at : ends[0] if ends else None])
    raise AssertionError(f"{page.name} has no heading #{anchor}")


def linked(text: str) -> str:
    """Return the text of all sections that a cell links to."""
    found = re.findall(r"\]\(([^)#]*)(?:#([^)]+))?\)", text)
    pages = [(PAGE.parent / name if name else PAGE, anchor) for name, anchor in found]
    return "\n".join(section(page, anchor) if anchor else page.read_text("utf-8") for page, anchor in pages)


def test_there_is_a_row_for_each_item_of_the_five_papers() -> None:
    assert len(ITEMS) >= 67


@EACH
def test_what_an_item_names_exists(item: Item) -> None:
    for name in coded(item.fedping):
        if re.match(r"(hartmann|fritsch|rodriguez|peterson|singhal|ghosh|uses|zhang|jiang)_[\w]+$", name):
            assert (EXPERIMENTS / f"{name}.toml").is_file(), name
        elif re.match(r"(experiments|tests)/[\w/.]+$", name):
            assert (ROOT / name).exists(), name
        elif name.startswith("python "):
            assert (ROOT / shlex.split(name)[1]).is_file(), name
        elif name.startswith("fedping "):
            assert refusal(shlex.split(name)[1:]) == "", name


@EACH
def test_an_item_says_what_it_is_compared_by(item: Item) -> None:
    """Only references to another section lack the kind of comparison; items without fedping's figures give a reason."""
    if item.shape == "":
        assert not item.ours or item.theirs == "" or "below" in item.fedping, item
    else:
        assert item.shape.startswith((*SHAPES, "no measured counterpart")), item.shape
    if item.fedping == "none":
        assert item.ours == "", item
        assert item.shape.startswith(("none", "an illustration")), item


@EACH
def test_our_figures_are_on_the_page_that_an_item_links_to(item: Item) -> None:
    there = set(NUMBER.findall(linked(item.fedping)))
    for number in NUMBER.findall(item.ours):
        assert number.rstrip(",") in {each.rstrip(",") for each in there}, (number, item.fedping)


def test_every_file_of_the_five_papers_is_in_a_row() -> None:
    named = {name for item in ITEMS for name in coded(item.fedping)}
    text = PAGE.read_text(encoding="utf-8")
    for file in EXPERIMENTS.glob("*.toml"):
        assert file.stem in named or f"`{file.stem}`" in text, file.stem


def test_a_section_ends_at_the_next_heading_of_its_level(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A\n1\n## B, c\n2\n### D\n3\n## E\n4\n")
    assert anchors(page) == {"a", "b-c", "d", "e"}
    assert section(page, "b-c") == "## B, c\n2\n### D\n3"
    assert section(page, "e") == "## E\n4"
    with pytest.raises(AssertionError, match="no heading #f"):
        section(page, "f")
