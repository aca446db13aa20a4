"""`fedping docs`: lists the pages, prints one or a section of it, and opens the built page."""

import os
import subprocess
import webbrowser
from pathlib import Path

import pytest

from fedping import documentation, shared_files
from fedping.documentation import MOVED, headings, page_of, pages, present_anchor, section
from fedping.main import main
from fedping.protocol.errors import FedpingError, InvalidSettings
from tests.commands.test_docs import PAGES, ROOT
from tests.support.environments import installed_wheel

OLD = "3d425e4f"
"""The first commit with published links to its pages."""


def test_the_list_has_every_page_and_each_of_its_names_leads_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    found = pages()
    assert listed == [page.name for page in found]
    index = ROOT / "docs" / "index.md"
    assert {page.path.resolve() for page in found} == {*PAGES, ROOT / "CHANGELOG.md"} - {index}
    for page in found:
        path = page.path.resolve().relative_to(ROOT)
        for name in (page.name, page.name.upper(), str(path), str(path.with_suffix("")), f"./{path}"):
            assert page_of(name) == page


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("your_own_model", "tutorials/your_own_model"),
        ("docs/operators.html", "operators"),
        ("docs/deploy/README.md", "deploy"),
        ("docs/deploy/", "deploy"),
        ("readme", "README"),
    ],
)
def test_other_spellings_of_a_page(asked: str, name: str) -> None:
    assert page_of(asked).name == name


def test_a_page_and_a_section_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "operators.md").read_text()
    assert main(["docs", "operators"]) == 0
    assert capsys.readouterr().out == text
    assert main(["docs", "docs/operators.md#nginx"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("### nginx\n")
    assert printed in text
    assert text.partition(printed)[2].startswith("\n### The heartbeat\n")
    assert main(["docs", "operators", "--path"]) == 0
    assert Path(capsys.readouterr().out.strip()) == ROOT / "docs" / "operators.md"


def test_every_section_of_every_page_can_be_printed() -> None:
    for page in pages():
        text = page.path.read_text()
        for heading in headings(text):
            found = section(text, heading.anchor)
            assert found.startswith("#" * heading.level + " ")
            assert found in text


def test_a_section_ends_where_the_next_of_its_level_or_above_begins() -> None:
    text = "# A\n\n## B\nb\n\n```\n## no\n```\n\n### C\nc\n\n## [D](x.md)\nd\n\n## B\nagain\n"
    assert section(text, "b") == "## B\nb\n\n```\n## no\n```\n\n### C\nc\n"
    assert section(text, "c") == "### C\nc\n"
    assert section(text, "d") == "## [D](x.md)\nd\n"
    assert section(text, "b-1") == "## B\nagain\n"
    with pytest.raises(InvalidSettings, match="no heading #no"):
        section(text, "no")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["operator"], "no page 'operator'; did you mean 'operators'?"),
        (["x" * 5000], "'fedping docs' lists all pages"),
        (["../../etc/passwd"], "no page"),
        (["operators#ngin"], "did you mean 'operators#nginx'?"),
        (["#nginx"], "no page before the #"),
        (["--path"], "--path needs a PAGE"),
        (["operators", "--path", "--open"], "either --path or --open, not both"),
    ],
)
def test_what_does_not_exist_is_named(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err
    assert len(printed.err) < 300


def test_the_built_page_is_opened_at_the_heading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setattr(documentation, "CHECKOUT", tmp_path)
    assert main(["docs", "operators", "--open"]) == 1
    assert "make docs" in capsys.readouterr().err
    site = tmp_path / "build" / "docs" / "docs"
    site.mkdir(parents=True)
    (site / "index.html").write_text("")
    (site / "operators.html").write_text("")
    assert main(["docs", "--open"]) == 0
    assert main(["docs", "operators#nginx", "--open"]) == 0
    assert opened == [(site / "index.html").as_uri(), (site / "operators.html").as_uri() + "#nginx"]
    assert capsys.readouterr().out.splitlines() == opened
    assert main(["docs", "design", "--open"]) == 1
    assert "lacks docs/design.html" in capsys.readouterr().err


def test_an_installation_without_the_pages_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_files, "CHECKOUT", tmp_path)
    monkeypatch.setattr(shared_files, "distribution", lambda _: type("Bare", (), {"files": None}))
    with pytest.raises(FedpingError, match="lacks share/fedping/docs"):
        pages()


@pytest.mark.long
def test_the_wheel_prints_the_same(tmp_path: Path) -> None:
    python = installed_wheel(tmp_path / "wheel")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for page in ("operators", "README", "deploy", "tutorials/your_own_model"):
        command = [str(python.parent / "fedping"), "docs", page]
        ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert (ran.returncode, ran.stderr) == (0, "")
        assert ran.stdout == page_of(page).path.read_text()
    ran = subprocess.run([*command[:2], page, "--path"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert Path(ran.stdout.strip()).is_relative_to(tmp_path.resolve())


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (
            "operators#6-back",
            "the page 'operators' has no heading #6-back; did you mean 'operators#6-back-up-and-restore'?",
        ),
        ("operators#ngnix", "did you mean 'operators#nginx'"),
        ("operators#zzz", "no heading #zzz; 'fedping docs operators' prints the page with all of them."),
        ("operators#" + "z" * 200, f"no heading #{'z' * 80}; "),
    ],
)
def test_an_unknown_heading_is_said_with_those_that_are_near(
    asked: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["docs", asked]) == 2
    assert says in capsys.readouterr().err


def test_an_old_heading_leads_to_its_section(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", "design#what-is-told-goes-through-one-seam"]) == 0
    assert capsys.readouterr().out.startswith("## All logging goes through one interface\n")


def test_every_old_heading_of_a_page_leads_to_one_of_today() -> None:
    shown = subprocess.run(["git", "ls-tree", "-r", "--name-only", OLD], cwd=ROOT, capture_output=True, text=True)
    if shown.returncode:
        pytest.skip("the history of the repository is not here")
    old_pages = {page: path for page in pages() if (path := str(page.path.resolve().relative_to(ROOT))) in shown.stdout}
    assert len(old_pages) > 20
    renamed = set()
    for page, path in old_pages.items():
        text = subprocess.run(
            ["git", "show", f"{OLD}:{path}"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        known = {each.anchor for each in headings(page.path.read_text("utf-8"))}
        for heading in headings(text):
            anchor = present_anchor(page, heading.anchor)
            assert anchor in known, (page.name, heading.anchor)
            if anchor != heading.anchor:
                renamed.add((page.name, heading.anchor))
    assert renamed == {(name, old) for name, moved in MOVED.items() for old in moved}, "and no other is in the table"
