"""Settings as texts by dotted name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

Flat: TypeAlias = dict[str, str]
"""Settings as texts by dotted name."""


def flat(settings: Mapping[str, Any], before: str = "") -> Flat:
    """Return settings with names such as "training.rate"; lists are written as text."""
    found: Flat = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{before}{name}.")
        elif value is not None:
            found[before + name] = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return found
