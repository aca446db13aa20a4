"""`make docs`: the docs become a site without warnings, in which all links work, also with a code forge's anchors."""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import fedping
from docs.site import build, commands, contents, settings
from docs.site.build import broken_links
from fedping.documentation import MOVED, headings, pages
from tests.commands.test_docs import PAGES, ROOT, anchors

INDEX = ROOT / "docs" / "index.md"


@pytest.fixture(scope="module")
def conf() -> ModuleType:
    """Give Sphinx's settings as a module."""
    spec = importlib.util.spec_from_file_location("site_conf", ROOT / "docs" / "site" / "conf.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site once, and give its folder."""
    out = tmp_path_factory.mktemp("site") / "docs"
    ended = subprocess.run(
        [sys.executable, "-m", "docs.site.build", str(out)], cwd=ROOT, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == f"{out / 'index.html'}\n"
    return out


@pytest.mark.long
def test_every_page_is_built_with_the_anchors_that_it_has_on_a_forge(site: Path) -> None:
    for page in PAGES:
        built = (site / page.relative_to(ROOT)).with_suffix(".html")
        assert built.is_file(), page
        assert anchors(page) <= set(re.findall(r'id="([^"]+)"', built.read_text("utf-8"))), page


@pytest.mark.long
def test_old_anchors_lead_to_the_headings_of_today(site: Path) -> None:
    for page in pages():
        for old, new in MOVED.get(page.name, {}).items():
            assert f'id="{new}"><span id="{old}"></span>' in (site / page.address).read_text("utf-8")


def test_an_old_anchor_without_a_heading_of_today_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "MOVED", {"design": {"gone": "today", "lost": "nowhere"}})
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "design.html").write_text('<section id="today"><h2>Today</h2></section>')
    assert build.keep_moved(tmp_path) == [
        "docs/design.html: the old anchor #lost leads to #nowhere, which is not there"
    ]
    page = (tmp_path / "docs" / "design.html").read_text()
    assert page == '<section id="today"><span id="gone"></span><h2>Today</h2></section>'


@pytest.mark.long
def test_it_has_search_and_dark_mode_and_loads_nothing_from_other_hosts(site: Path) -> None:
    index = (site / "docs" / "index.html").read_text("utf-8")
    assert 'action="../search.html"' in index
    assert "theme-toggle" in index
    assert "rollback" in (site / "searchindex.js").read_text("utf-8")
    for page in site.rglob("*.html"):
        loaded = re.findall(r'<(?:script|img|source)[^>]* (?:src|srcset)="(https?:[^"]*)"', page.read_text("utf-8"))
        loaded += re.findall(r'<link[^>]* rel="stylesheet"[^>]* href="(https?:[^"]*)"', page.read_text("utf-8"))
        assert not loaded, page


@pytest.mark.long
def test_it_describes_every_name_of_fedping(site: Path) -> None:
    page = (site / "docs" / "api" / "README.html").read_text("utf-8")
    described = set(re.findall(r'<dt class="sig[^>]* id="fedping\.(\w+)"', page))
    assert described == set(fedping.__all__) - {"__version__"}
    assert "~numpy" not in page
    assert 'href="../../api/index.html"' in page


@pytest.mark.long
def test_it_does_not_say_where_it_was_made(site: Path) -> None:
    assert not [path for path in site.rglob("*.html") if str(ROOT) in path.read_text("utf-8")]


# --- the index ---


def listed() -> Iterator[Path]:
    for link in re.findall(r"^- .*\]\(([^)]+\.md)\)$", INDEX.read_text("utf-8"), re.MULTILINE):
        yield (INDEX.parent / link).resolve()


def test_the_index_lists_every_page_once() -> None:
    pages = list(listed())
    assert len(pages) == len(set(pages))
    assert set(pages) == {*PAGES, ROOT / "CHANGELOG.md"} - {INDEX}


def test_the_lists_of_the_index_become_the_contents_of_the_site(conf: ModuleType) -> None:
    text = "# Docs\n\n## First\n\nA [link](a.md) within.\n\n- [B](b.md)\n\nMore:\n\n- [C](c/d.md)\n"
    text += "\n## Second\n\n- [E](../E.md)\n"
    assert conf.with_contents(text) == (
        f"{text}\n```{{toctree}}\n:hidden:\n:caption: First\n\nb\nc/d\n```\n"
        "\n```{toctree}\n:hidden:\n:caption: Second\n\n../E\n```\n"
    )


def test_links_to_folders_become_text(conf: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "deploy").mkdir()
    text = "See [`deploy/`](deploy/), [a page](page.md), [a site](https://deploy/) and [below](#deploy)."
    assert conf.without_folders(text, tmp_path) == text.replace("[`deploy/`](deploy/)", "`deploy/`")


def test_a_star_of_a_docstring_is_one(conf: ModuleType) -> None:
    assert conf.as_rst("x of shape (n, *shape), ``f(*x)`` and 2 * 3, *y") == (
        r"x of shape (n, \*shape), ``f(*x)`` and 2 * 3, \*y"
    )


# --- what fails the build ---


@pytest.mark.parametrize(
    ("address", "broken"),
    [
        ("b.html", False),
        ("b.html#there", False),
        ("b.html?x=1#there", False),
        ("#%CE%B5", False),
        ("https://elsewhere.example/x#y", False),
        ("c.html", True),
        ("b.html#here", True),
        ("#there", True),
        ("folder", True),
    ],
)
def test_a_link_that_leads_nowhere_is_named(tmp_path: Path, address: str, broken: bool) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.html").write_text(f'<h1 id="ε">A</h1><a href="{address}">x</a>', "utf-8")
    (tmp_path / "b.html").write_text('<h1 id="there">B</h1>', "utf-8")
    assert broken_links(tmp_path) == ([f"a.html: the link {address} leads nowhere"] if broken else [])


def test_a_picture_for_the_dark_is_a_link_too(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<source srcset="dark.png 2x, light.png"><img src="light.png">', "utf-8")
    (tmp_path / "light.png").write_bytes(b"")
    assert broken_links(tmp_path) == ["a.html: the link dark.png leads nowhere"]


# --- the page of commands ---


def test_the_page_of_commands_is_that_of_their_help() -> None:
    assert commands.PAGE.read_text("utf-8") == commands.page(), "run 'python -m docs.site.commands'"


def test_a_command_has_its_usage_help_options_and_defaults() -> None:
    _, _, rest = commands.page().partition("\n## fedping round\n")
    shown = rest.partition("\n## ")[0]
    assert shown.startswith("\n```text\nfedping round [OPTIONS] STUDY [LINE]\n```\n\nCompute the next version")
    assert "| `--store PATH` |" in shown
    assert "(`FEDPING_STORE` in the environment) | store |" in shown
    assert "[default" not in shown
    assert all(row.count(" | ") == 2 for row in shown.splitlines() if row.startswith("| `"))


# --- the page of settings ---


def test_the_page_of_settings_is_that_of_the_classes() -> None:
    assert settings.PAGE.read_text("utf-8") == settings.page(), "run 'python -m docs.site.settings'"


def test_a_setting_has_its_values_default_and_meaning() -> None:
    shown = settings.page().partition("\n## Guardrail\n")[2].partition("\n## ")[0]
    assert "Stands as `guardrail` of [Guard](#guard)." in shown
    assert "| `rounds` | integer ≥ 1, ≤ 1,000 | `3` | number of consecutive rounds" in shown
    assert all(row.count(" | ") == 3 for row in shown.splitlines() if row.startswith("| `"))


# --- lists of contents ---


@pytest.mark.parametrize("name", contents.PAGES)
def test_the_list_of_contents_is_that_of_the_headings(name: str) -> None:
    page = ROOT / "docs" / name
    text = page.read_text("utf-8")
    assert contents.with_contents(text) == text, "run 'python -m docs.site.contents'"
    assert {heading.anchor for heading in headings(text)} == anchors(page)


def test_a_list_of_contents_has_two_levels_and_no_code() -> None:
    page = (
        f"# A\n\n{contents.START}\nold\n{contents.END}\n\n## B, `b`\n\n```sh\n## no\n```\n\n### C\n\n#### D\n\n## C\n"
    )
    made = contents.with_contents(page)
    assert (
        made.partition(contents.END)[0] == f"# A\n\n{contents.START}\n\n- [B, `b`](#b-b)\n  - [C](#c)\n- [C](#c-1)\n\n"
    )
    assert made.partition(contents.END)[2] == page.partition(contents.END)[2]
    assert contents.with_contents(made) == made
    with pytest.raises(ValueError, match="lacks"):
        contents.with_contents("# A\n")
