"""Which examples a training uses, and what is done to them before it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct
from msgspec.structs import replace

from protocol.errors import InvalidSettings

Share: TypeAlias = Annotated[float, Meta(ge=0, lt=1)]


class Data(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A data set by ``name``, or a ``file`` of one's own (CSV, Parquet or Arrow) with its ``target`` column.

    Of a file ``features`` are the columns to predict from, all others if None; ``client`` the one that says whose a row
    is, for a partition by key; ``kind`` whether the target is a class or a number, if that cannot be seen.

    ``test`` and ``validation`` are the
    shares of every client's examples that are set apart, stratified by class unless ``stratified`` is false. With
    ``folds`` every seed is run that often, each time with another part as the test examples (cross-validation), and
    ``test`` is of no use.

    ``most`` is how many of its training examples a client learns from at most, drawn at random.

    The other settings are worked out from sums over the clients' training examples, and applied to all: ``clip`` cuts
    each feature at this quantile, such as 0.99; with ``clip_beyond`` only a feature whose largest value is over so many
    times its quantile. ``drop_constant`` leaves out features of one value, ``standardise`` takes the others to mean 0
    and deviation 1, ``class_weights`` lets rare classes weigh as much as common ones.

    Raises:
        InvalidSettings: neither or both of name and file, a file without target, or no examples left to train on.
    """

    name: str | None = None
    file: str | None = None
    target: str | None = None
    features: tuple[str, ...] | None = None
    client: str | None = None
    kind: Literal["class", "number"] | None = None
    test: Share = 0.2
    validation: Share = 0.0
    folds: Annotated[int, Meta(ge=2, le=1000)] | None = None
    stratified: bool = True
    most: Annotated[int, Meta(ge=1)] | None = None
    clip: Annotated[float, Meta(gt=0, le=1)] | None = None
    clip_beyond: Annotated[float, Meta(gt=1)] | None = None
    drop_constant: bool = False
    standardise: bool = False
    class_weights: bool = False

    def __post_init__(self) -> None:
        if (self.name is None) == (self.file is None):
            raise InvalidSettings("[data] needs either a 'name' or a 'file', and not both; give one of them")
        if self.file is not None and self.target is None:
            raise InvalidSettings(f"[data] file = \"{self.file}\" needs 'target', the column that is to be predicted")
        if self.clip_beyond is not None and self.clip is None:
            raise InvalidSettings("[data] clip_beyond needs 'clip', the quantile to cut at, such as clip = 0.99")
        if self.file is None and (self.target or self.features or self.client or self.kind):
            raise InvalidSettings("[data] target, features, client and kind are of a 'file'; a data set has its own")
        if self.test_share + self.validation >= 1:
            raise InvalidSettings(
                f"test ({self.test_share:g}) and validation ({self.validation:g}) leave nothing to train on; lower one"
            )

    @property
    def test_share(self) -> float:
        """The share of the test examples, whether drawn or a fold."""
        return self.test if self.folds is None else 1 / self.folds

    def at(self, folder: Path) -> Data:
        """Return the same with the file's path as seen from here, if it was relative to ``folder``."""
        return self if self.file is None else replace(self, file=str(folder / self.file))
