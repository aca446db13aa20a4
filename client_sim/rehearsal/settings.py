"""The settings of a rehearsal: listed items, users' preferences and looks, and the outcomes of choices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct
from msgspec.structs import replace

from fedping.protocol.errors import InvalidSettings
from fedping.protocol.location import local_path
from fedping.protocol.settings_file import read_settings
from fedping.protocol.weights import Finite

Look: TypeAlias = Literal["all", "place", "consider", "cascade"]
"""The way in which users look at a list (:func:`fedping.client_sim.rehearsal.users.chosen`)."""

Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
NotNegative: TypeAlias = Annotated[float, Meta(ge=0, le=1e6)]


class OutcomeLaw(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Distribution of an outcome by the utility u of the chosen item, with x = ``level`` + ``slope`` · u.

    A flag is true with probability 1 / (1 + exp(-x)). A count is Poisson with mean exp(x). A number is lognormal:
    exp(x + ``spread`` · z) with z standard normal. A category is any of its values, with equal probability.

    ``chance`` is the share of choices with the outcome; for other choices nothing is reported. ``after`` is the mean
    of the exponential time, in hours, from the choice to a later outcome.
    """

    chance: Share = 1.0
    level: Finite = 0.0
    slope: Finite = 0.0
    spread: NotNegative = 0.0
    after: NotNegative = 1.0


class Rehearsal(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Lists of a product's items, and the users who choose from them.

    ``items`` is a table, CSV or Parquet, with a row per item and a column per field; without a table, every feature of
    an item has a random value. ``queries`` is a table of the queries' fields, drawn at random. Its column
    ``candidates`` may have the items that each query finds, as a list or as a text with spaces between names; the names
    are in the items' column ``key``. Otherwise ``shown`` random items are candidates.

    Users want items by ``truth``: the true weights, by name of weight or feature, 0 for all others; random ones without
    ``truth``. ``drift`` is added to them in every iteration. ``tastes`` is the standard deviation of each user's own
    weights around the truth. An item's utility is its score by these weights; ``noise`` is the scale of the Gumbel
    noise that a choice adds. ``leave`` is the share of lists that a user leaves without a choice.

    ``look`` determines the items of a list that users see. ``pinned`` is a column of the items: a list's best pinned
    item is on top, whatever its score. ``outcomes`` has the distribution of each declared outcome to rehearse.

    Raises:
        InvalidSettings: settings for a missing table.
    """

    items: str | None = None
    queries: str | None = None
    candidates: str | None = None
    key: str = "id"
    shown: Annotated[int, Meta(ge=2, le=1000)] = 10
    truth: dict[str, Finite] = {}
    drift: dict[str, Finite] = {}
    tastes: NotNegative = 0.0
    noise: NotNegative = 1.0
    leave: Share = 0.0
    look: Look = "place"
    pinned: str | None = None
    outcomes: dict[str, OutcomeLaw] = {}

    def __post_init__(self) -> None:
        if self.candidates is not None and self.queries is None:
            raise InvalidSettings(
                f"candidates = \"{self.candidates}\" names a column of the queries' table. Give 'queries' with it"
            )
        for name, needs in (("queries", self.queries), ("pinned", self.pinned)):
            if needs is not None and self.items is None:
                raise InvalidSettings(f"'{name}' needs a table of items. Give 'items' with it")

    def at(self, folder: Path) -> Rehearsal:
        """Return the rehearsal with table paths relative to the current folder; they were relative to ``folder``."""
        paths = {name: getattr(self, name) for name in ("items", "queries")}
        return replace(
            self, **{name: str(folder / local_path(path)) for name, path in paths.items() if path is not None}
        )


BY_CHANCE = Rehearsal(shown=5, look="all")
"""A rehearsal of items with random values; users see all items and choose by random weights."""


def read_rehearsal(path: Path) -> Rehearsal:
    """Read a rehearsal's file: the settings, with or without the heading ``[rehearsal]``.

    Raises:
        InvalidSettings: the file doesn't exist, or a setting is invalid.
    """
    return read_settings(path, Rehearsal, "rehearsal").at(path.parent)
