"""Text for generated pages: escapes plain text for Markdown and for cells of tables."""

from __future__ import annotations

import re

_MARKUP = re.compile(r"([*<\[\]])")


def escaped(text: str) -> str:
    """Return text in which only words between backquotes are markup."""
    parts = text.split("`")
    parts[::2] = (_MARKUP.sub(r"\\\1", part) for part in parts[::2])
    return "`".join(parts)


def cell(text: str) -> str:
    """Return text for a cell of a table."""
    return text.replace("|", "\\|")
