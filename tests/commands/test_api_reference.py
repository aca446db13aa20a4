"""`make docs`: the API reference builds without warnings, and contains the public names of `import fedping`."""

import html
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedping
from tests.support.effort import in_full

ROOT = Path(__file__).parents[2]


@pytest.mark.thorough
def test_the_reference_is_made_without_warnings_and_has_the_public_names(tmp_path: Path) -> None:
    """`make test` builds three pages, `make test-long` all."""
    out = tmp_path / "docs"
    pages = () if in_full() else ("fedping", "fedping.client_sim.learning", "fedping.protocol.spec")
    ended = subprocess.run(
        [sys.executable, "-m", "docs.api.build", str(out), *pages], cwd=ROOT, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    offered = {name for name in fedping.__all__ if not name.startswith("_")}
    assert offered <= names_in(out / "fedping.html")
    assert {"Model", "own_loss", "learner_for"} <= names_in(out / "fedping" / "client_sim" / "learning.html")
    assert {"ModelSpec", "ModelSpec.digest"} <= names_in(out / "fedping" / "protocol" / "spec.html")
    assert listed_in(out / "index.html") == {
        path.relative_to(out).as_posix() for path in out.rglob("*.html") if path.name != "index.html"
    }
    assert not list((out / "fedping").glob("dashboard*"))
    assert not [path for path in out.rglob("*.html") if str(ROOT) in path.read_text()], "they tell where they were made"


def names_in(page: Path) -> set[str]:
    """Return the names that a page describes."""
    return set(re.findall(r'<(?:section|div) id="([\w.]+)"', page.read_text()))


def listed_in(index: Path) -> set[str]:
    """Return the pages linked from the index, each with a description."""
    entries = re.findall(r'<dt><a href="([^"]+)">.*?</dt>\s*<dd>(.*?)</dd>', index.read_text(), re.DOTALL)
    assert all(html.unescape(told).startswith("<p>") for _, told in entries)
    return {page for page, _ in entries}
