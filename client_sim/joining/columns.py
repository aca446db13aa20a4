"""What institutions agree on before they join: which columns, in which order and in which units, and which classes.

A model spec says how many features and classes there are, and neither their names nor their units. Were each
institution to number its own classes, or to scale by its own mean, the same weight would mean something else in each.
So the operator hands out one file, and all read their tables by it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from fedping.protocol.errors import UnfitTable
from fedping.protocol.settings_file import converted, read_toml
from fedping.protocol.weights import Finite, Positive

NonNegativeNumber = Annotated[float, Meta(ge=0, le=1e30)]
Column = Annotated[str, Meta(min_length=1, max_length=1000)]


class Feature(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A column that is learned from: a number, less ``mean`` and divided by ``deviation``; or one of ``categories``.

    Categories become a feature each, in this order, which is 1 in the rows of that category.
    """

    name: Column
    mean: Finite = 0.0
    deviation: Positive = 1.0
    categories: Annotated[tuple[str, ...], Meta(min_length=1, max_length=1000)] | None = None

    def __post_init__(self) -> None:
        if self.categories is not None and (self.mean, self.deviation) != (0.0, 1.0):
            raise UnfitTable(f"the feature '{self.name}' has categories, which have no scale; leave one of them out")
        _refuse_repeated(self.categories or (), f"the feature '{self.name}' has two categories")

    @property
    def width(self) -> int:
        """How many features of the model the column becomes."""
        return 1 if self.categories is None else len(self.categories)


class AgreedColumns(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The columns of every institution's table; others in it are not read.

    Attributes:
        features: in the order of the model's.
        label: the column to predict; None for a model that predicts none, or where each institution says its own.
        classes: its values in the order of the classes' numbers; None if it is a number.
        class_weights: how much an example of each class counts when it is learned from; all the same if None.
        moments: for a study of scales (`fedping.client_sim.joining.scaling`): the model learns from each number and
            its square, and from no category.
        counts: for such a study too: the model learns from which class each row is of, after ``moments`` if both.

    Raises:
        InvalidSettings: a name or a class is there twice, or there are no classes to count or to weigh.
    """

    features: Annotated[tuple[Feature, ...], Meta(min_length=1)]
    label: Column | None = None
    classes: Annotated[tuple[str, ...], Meta(min_length=2)] | None = None
    moments: bool = False
    counts: bool = False
    class_weights: tuple[NonNegativeNumber, ...] | None = None

    def __post_init__(self) -> None:
        names = tuple(feature.name for feature in self.features)
        _refuse_repeated(names, "there are two features")
        _refuse_repeated(self.classes or (), "there are two classes")
        if self.label in names:
            raise UnfitTable(f"the label '{self.label}' is among the features; leave it out there")
        if self.moments and not self.numbers:
            raise UnfitTable("moments = true is for numbers, and all features have categories; leave it out")
        if self.counts and (self.label is None or self.classes is None):
            raise UnfitTable("counts = true is for the classes of a label; name both, or leave it out")
        if self.class_weights is not None:
            self._check_weights(self.class_weights)

    def _check_weights(self, weights: tuple[float, ...]) -> None:
        if self.moments or self.counts:
            raise UnfitTable("class_weights are for learning, and moments and counts for before; leave one of them out")
        if len(weights) != len(self.classes or ()) or not any(weights):
            raise UnfitTable(
                f"there are {len(weights)} class_weights and {len(self.classes or ())} classes; give each class a "
                "weight, not all of them 0"
            )

    @property
    def numbers(self) -> tuple[Feature, ...]:
        """The features that are numbers."""
        return tuple(feature for feature in self.features if feature.categories is None)

    @property
    def for_scales(self) -> bool:
        """Whether they are for a study of scales."""
        return self.moments or self.counts

    @property
    def width(self) -> int:
        """How many features of the model they become."""
        if not self.for_scales:
            return sum(feature.width for feature in self.features)
        classes = len(self.classes or ()) if self.counts else 0
        return classes + (2 * len(self.numbers) if self.moments else 0)


def read_columns(path: Path) -> AgreedColumns:
    """Read a file of agreed columns; raise :class:`InvalidSettings` if it is none."""
    where = "the file of columns"
    return converted(read_toml(path, where.removeprefix("the ")), AgreedColumns, f"{where} {path}: ")


def _refuse_repeated(names: tuple[str, ...], there: str) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UnfitTable(f"{there} '{twice}'; name each once")
