"""Deque's axe-core, vendored, over a page as it stands."""

from pathlib import Path
from typing import Any

from playwright.sync_api import Page

AXE = Path(__file__).parents[1] / "vendor" / "axe-core" / "axe.min.js"
TAGS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")


def axe_violations(page: Page, within: str | None = None, *, tags: tuple[str, ...] = TAGS) -> list[str]:
    """Return what axe finds wrong, one line an element: the rule, how grave it is, the element and what to do.

    Args:
        page: as it is to be judged, its colour scheme and width included.
        within: a selector, to judge only that part.
        tags: which of axe's rules.
    """
    # Evaluated, not added as an element: a strict content security policy forbids that, and rightly.
    if not page.evaluate("typeof globalThis.axe === 'object'"):
        page.evaluate(AXE.read_text())
    asked = {"runOnly": {"type": "tag", "values": list(tags)}, "resultTypes": ["violations"]}
    script = "([within, asked]) => axe.run(within ?? document, asked)"
    found: list[dict[str, Any]] = page.evaluate(script, [within, asked])["violations"]
    return [_line(rule, node) for rule in found for node in rule["nodes"]]


def _line(rule: dict[str, Any], node: dict[str, Any]) -> str:
    summary = " ".join(node.get("failureSummary", "").split())
    return f"{rule['id']} ({rule['impact']}): {node['html'][:200]}: {summary}"
