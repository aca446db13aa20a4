"""The files promised by docs/stability.md exist, and code forges can read the files for reports and citations."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from fedping import __version__
from fedping.main import SUBCOMMANDS, cli, main

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "stability.md").read_text()
ROOMS = [path for path in (ROOT / "fedping").iterdir() if path.is_dir() and not path.name.startswith("__")]


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_every_command_is_in_the_list() -> None:
    stated = section("Commands").partition("Stable are")[2].partition("with their subcommands")[0]
    assert set(re.findall(r"`([a-z]+)`", stated)) - {"fedping"} == set(SUBCOMMANDS)


def test_every_variable_is_in_the_list() -> None:
    sources = [path.read_text() for room in ROOMS for path in room.rglob("*.py")]
    sources += [path.read_text() for path in (ROOT / "fedping").glob("*.py")]
    read = {name for text in sources for name in re.findall(r"FEDPING_[A-Z_]*[A-Z]", text)}
    assert set(re.findall(r"FEDPING_[A-Z_]*[A-Z]", section("Environment variables"))) == read


def test_the_table_leads_to_every_section() -> None:
    titles = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    linked = re.findall(r"\]\(#([a-z0-9-]+)\)", section("At a glance"))
    anchors = [re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in titles]
    assert linked == [anchor for anchor in anchors if anchor not in ("at-a-glance", "how-something-is-taken-away")]


def extras_of_commands() -> Iterator[tuple[str, str]]:
    """Yield the commands and extras that README's table of extras names in its column of uses."""
    table = (ROOT / "README.md").read_text().partition("| extra | for |")[2].partition("\n\n")[0]
    for row in table.splitlines()[2:]:
        extra, uses = (cell.strip() for cell in row.split("|")[1:3])
        for words in re.findall(r"`([^`]+)`", uses):
            yield extra, words


def test_what_readme_s_extras_are_for_exists() -> None:
    found = list(extras_of_commands())
    assert len(found) > 8
    for extra, words in found:
        name = words.split()[0]
        if name.startswith(("fedping[", "--")) or name == "fedping.run":
            continue
        assert cli.get_command(None, name) is not None, (extra, words)  # type: ignore[arg-type]


def test_the_citation_is_of_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == __version__
    assert {"cff-version", "message", "title", "authors", "license"} <= cited.keys()
    (thesis,) = cited["references"]
    assert {"type", "title", "authors", "year"} <= thesis.keys()
    assert "MPL" in cited["license"]


def test_templates_of_issues_have_what_forges_read(capsys: pytest.CaptureFixture[str]) -> None:
    templates = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.md"))
    assert len(templates) == 3
    for path in templates:
        _, head, body = path.read_text().split("---\n", 2)
        assert {"name", "about", "title", "labels"} == yaml.safe_load(head).keys()
        assert body.strip()
    assert main(["--version"]) == 0
    assert "fedping" in capsys.readouterr().out
