"""Examples as one table, before they are divided among clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedping.client_sim.learning.batch import FloatArray
from fedping.protocol.errors import FedpingError


@dataclass(frozen=True)
class Target:
    """The target of a prediction: the class of an example, or a number.

    Attributes:
        name: the name of the column.
        classes: the classes' names in the order of their numbers; empty if the target is a number.
    """

    name: str = "y"
    classes: tuple[str, ...] = ()

    @property
    def is_class(self) -> bool:
        """Whether the target is a class."""
        return bool(self.classes)


@dataclass(frozen=True)
class Table:
    """Examples with features and a target, in rows.

    Attributes:
        x: features, shape (N, d), all finite; with ``gaps``, NaN marks a missing value.
        y: targets, shape (N,): float64, or int64 from 0 to the number of classes - 1.
        features: the features' names, d of them.
        target: description of y.
        key: the natural key of each row, such as its user or country, shape (N,); None if unknown.
        choice: the choice that each row is a candidate of, shape (N,); y is then 1 for the chosen candidate, else 0
            (:mod:`fedping.client_sim.data.choice_sets`). None where every row is an example.
        for_test: whether each row is a test example by the authors' own split, shape (N,); None if they have no split.
        gaps: whether features may be missing; before training, a rule fills them or drops their rows
            (:mod:`fedping.client_sim.data.missing`).

    Raises:
        FedpingError: shapes differ, a value is not finite, or a class has no name.
    """

    x: FloatArray
    y: NDArray[Any]
    features: tuple[str, ...]
    target: Target = Target()
    key: NDArray[Any] | None = None
    choice: NDArray[Any] | None = None
    for_test: NDArray[np.bool_] | None = None
    gaps: bool = False

    def __post_init__(self) -> None:
        check_examples(self.x, self.y, self.features, self.target, gaps=self.gaps)
        for what, of_rows in (("natural keys", self.key), ("choices", self.choice), ("test marks", self.for_test)):
            if of_rows is not None and len(of_rows) != len(self.y):
                raise FedpingError(f"a table of {len(self.y)} rows has {len(of_rows)} {what}; give one a row")

    def __len__(self) -> int:
        return len(self.y)

    def rows(self, which: NDArray[Any]) -> Table:
        """Return a table of some rows, given by their positions, in that order, or by a mask, shape (N,)."""
        key, choice, for_test = (None if of is None else of[which] for of in (self.key, self.choice, self.for_test))
        return Table(self.x[which], self.y[which], self.features, self.target, key, choice, for_test, self.gaps)


def table(
    x: ArrayLike,
    y: ArrayLike,
    *,
    features: tuple[str, ...] | None = None,
    target: Target | None = None,
    key: NDArray[Any] | None = None,
    choice: NDArray[Any] | None = None,
    for_test: NDArray[np.bool_] | None = None,
    gaps: bool = False,
) -> Table:
    """Return a table from any arrays.

    Args:
        x: the features, shape (n, d).
        y: the targets, shape (n,): numbers, or the numbers of classes from 0.
        features: the features' names; x0, x1 and so on if None.
        target: the target's name, and its classes' names if it is a class; a number called y if None.
        key: each row's natural key, shape (n,); None without any.
        choice: each row's choice, shape (n,); None if rows are examples.
        for_test: whether each row is one of the authors' test examples, shape (n,); None without such a split.
        gaps: whether NaN among the features marks a missing value; else it is refused.

    Raises:
        FedpingError: the features are no matrix.
    """
    numbers = np.ascontiguousarray(x, dtype=np.float64)
    if numbers.ndim != 2:
        raise FedpingError(f"features have {numbers.ndim} dimensions; give a matrix of examples by features")
    target = target or Target()
    targets = np.ascontiguousarray(y, dtype=np.int64 if target.is_class else np.float64)
    names = features or feature_names(numbers.shape[1])
    return Table(numbers, targets, names, target, key, choice, for_test, gaps)


def feature_names(count: int) -> tuple[str, ...]:
    """Return default names for features without names."""
    return tuple(f"x{number}" for number in range(count))


def check_examples(
    x: FloatArray, y: NDArray[Any], features: tuple[str, ...], target: Target, *, gaps: bool = False
) -> None:
    """Raise :class:`FedpingError` unless these arrays are rows of examples with these features and this target."""
    if x.ndim != 2 or y.shape != x.shape[:1]:
        raise FedpingError(f"features of shape {x.shape} and targets of shape {y.shape} are not rows of one table")
    if len(features) != x.shape[1]:
        raise FedpingError(f"{x.shape[1]} features have {len(features)} names; name each of them once")
    if not ((~np.isinf(x) if gaps else np.isfinite(x)).all() and np.isfinite(y).all()):
        raise FedpingError(
            f"the examples of '{target.name}' have values that are not finite numbers; fill or drop their rows first"
        )
    if target.is_class and len(y) and not (y.min() >= 0 and y.max() < len(target.classes)):
        raise FedpingError(
            f"the target '{target.name}' has {len(target.classes)} classes, but numbers from {y.min()} to {y.max()}; "
            "number the classes from 0"
        )
