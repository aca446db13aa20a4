"""Runs Deque's axe-core, vendored, on a page in its current state."""

from pathlib import Path
from typing import Any

from playwright.sync_api import Page

AXE = Path(__file__).parents[1] / "vendor" / "axe-core" / "axe.min.js"
TAGS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")


def axe_violations(page: Page, within: str | None = None, *, tags: tuple[str, ...] = TAGS) -> list[str]:
    """Return axe's violations, one line for each element: the rule, its impact, the element and the fix.

    Args:
        page: the page, in the colour scheme and width to check.
        within: a selector, to check only a part.
        tags: the tags of axe's rules to apply.
    """
    # Evaluated, because a strict content security policy rightly forbids adding it as an element.
    if not page.evaluate("typeof globalThis.axe === 'object'"):
        page.evaluate(AXE.read_text())
    asked = {"runOnly": {"type": "tag", "values": list(tags)}, "resultTypes": ["violations"]}
    script = "([within, asked]) => axe.run(within ?? document, asked)"
    found: list[dict[str, Any]] = page.evaluate(script, [within, asked])["violations"]
    return [_line(rule, node) for rule in found for node in rule["nodes"]]


def _line(rule: dict[str, Any], node: dict[str, Any]) -> str:
    summary = " ".join(node.get("failureSummary", "").split())
    return f"{rule['id']} ({rule['impact']}): {node['html'][:200]}: {summary}"
