"""Write the docs as a site, a folder of HTML pages that needs no server.

    python -m docs.site.build [OUT]

OUT is ``build/docs`` unless given. The exit code is 1 after a warning of Sphinx, or if a link has no target.
"""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

from sphinx.cmd.build import build_main

from fedping.documentation import MOVED, pages

ROOT = Path(__file__).resolve().parents[2]
PICTURES = Path("docs") / "pictures"
"""Folder of the pictures that pages show by HTML, which Sphinx does not process."""

START = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>The docs of fedping</title>
<meta http-equiv="refresh" content="0; url=docs/index.html">
<a href="docs/index.html">The docs of fedping</a>
</html>
"""

LATER = Path("api") / "index.html"
"""Page that the site links to, written after the site by :mod:`docs.api.build`."""

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)


@dataclass
class _Page(HTMLParser):
    """The anchors of a page, and the addresses in its links."""

    anchors: set[str] = field(default_factory=set)
    addresses: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the anchors and addresses of an element."""
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.addresses.add(value)
            elif name == "srcset" and value:
                self.addresses.update(part.split()[0] for part in value.split(",") if part.strip())


def broken_links(out: Path) -> list[str]:
    """Return a sentence for each link within a site whose file or anchor does not exist, sorted."""
    pages = {path.resolve(): _Page() for path in out.rglob("*.html")}
    for path, page in pages.items():
        page.feed(path.read_text("utf-8"))
    targets = {(out / LATER).resolve(): _Page(), **pages}
    return sorted(
        f"{path.relative_to(out.resolve())}: the link {address} leads nowhere"
        for path, page in pages.items()
        for address in page.addresses
        if not _SCHEME.match(address) and not _leads_somewhere(address, path, targets)
    )


def _leads_somewhere(address: str, path: Path, pages: dict[Path, _Page]) -> bool:
    name, _, anchor = address.partition("#")
    name = unquote(name.partition("?")[0])
    target = (path.parent / name).resolve() if name else path
    if target not in pages:
        return target.is_file()
    return not anchor or unquote(anchor) in pages[target].anchors


def keep_moved(out: Path) -> list[str]:
    """Add the old anchors of renamed headings to them; return a sentence for each anchor whose heading is missing."""
    lost = []
    for page in pages():
        file = out / page.address
        for old, new in MOVED.get(page.name, {}).items():
            text, heading = file.read_text("utf-8"), f'id="{new}">'
            if text.count(heading) != 1:
                lost.append(f"{page.address}: the old anchor #{old} leads to #{new}, which is not there")
            file.write_text(text.replace(heading, f'{heading}<span id="{old}"></span>', 1), "utf-8")
    return lost


def build(out: Path) -> int:
    """Write the site, replacing the previous one, and return the exit code."""
    shutil.rmtree(out, ignore_errors=True)
    options = ["-c", str(ROOT / "docs" / "site"), "-d", f"{out}.doctrees", "-b", "html", "-q", "-W", "-E"]
    if build_main([*options, str(ROOT), str(out)]):
        return 1
    shutil.copytree(ROOT / PICTURES, out / PICTURES)
    (out / "index.html").write_text(START, "utf-8")
    broken = keep_moved(out) + broken_links(out)
    print("\n".join(broken), end="\n" if broken else "", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("build/docs")
    code = build(folder)
    if code == 0:
        print(folder / "index.html")
    sys.exit(code)
