"""A feed: something in files that grows, and what came after a position in it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True)
class Change:
    """What a page is told.

    Attributes:
        position: what the page has after this change. It is made of what the files hold, not of what this server
            remembers, so that a page goes on where it was after the server was started again.
        data: JSON; says itself whether it is everything or an addition.
    """

    position: str
    data: Mapping[str, Any]


@runtime_checkable
class Feed(Hashable, Protocol):
    """Something that pages follow. Equal feeds are read once for all pages that follow them."""

    def since(self, position: str | None) -> Change | None:
        """Return what came after ``position``; everything if that is None or not understood; None if nothing came.

        Raises:
            FedpingError: what the feed is about cannot be read.
        """
        ...
