"""A table of factories by the type of their settings; each is registered where it is defined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

Maker = TypeVar("Maker", bound=Callable[..., Any])
Made = TypeVar("Made", bound=Callable[..., Any])


class Makers(dict[type, Maker], Generic[Maker]):
    """Functions or classes that make components, such as optimizers, by the type of their settings.

    A union of settings lists the types; a test checks that each has a maker.
    """

    def of(self, settings: type) -> Callable[[Made], Made]:
        """Return a decorator that registers the maker of a type of settings."""

        def register(maker: Made) -> Made:
            self[settings] = maker  # type: ignore[assignment]  # the table's type says what makers have to be
            return maker

        return register
