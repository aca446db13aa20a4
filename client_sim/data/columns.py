"""Columns of an Arrow table as features, a target and keys."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.data.table import Target
from fedping.client_sim.learning.batch import FloatArray
from fedping.protocol.errors import FedpingError

MOST_CATEGORIES = 1000
"""Maximum distinct values of a text column; with more, it counts as identifiers or prose."""

Kind = Literal["class", "number"]


def feature(column: Any, name: str, gaps: bool = False) -> tuple[FloatArray, tuple[str, ...]]:
    """Return a column as features, shape (N, 1), or (N, categories) for texts, and their names.

    Texts become one feature per category, which is 1 in the rows of that category; features are in alphabetical order,
    named ``column=text``. Booleans are 0 and 1. With ``gaps`` a missing value is NaN, in all features of its column.

    Raises:
        FedpingError: a value is missing, or, with ``gaps``, all are; a value is not finite; the type is neither a
            number nor a text; there are more than :data:`MOST_CATEGORIES` distinct texts; or most texts, but not all,
            are numbers.
    """
    nowhere = FedpingError(f"the column '{name}' is missing in every row; leave it out of the features")
    if gaps and column.null_count == len(column):
        raise nowhere
    if not is_text(column):
        numbers = as_numbers(column, name, gaps)
        if np.isnan(numbers).all():
            raise nowhere
        return numbers[:, None], (name,)
    there = column.is_valid().to_numpy() if gaps else np.ones(len(column), np.bool_)
    if gaps:
        column = column.drop_null()
    _refuse_numbers_with_a_slip(column, name, np.flatnonzero(there))
    names, category = values_of(column, name)
    if len(names) > MOST_CATEGORIES:
        raise FedpingError(
            f"the column '{name}' has {len(names)} different texts, too many to be categories; leave it out of the "
            "features, or name it as the client"
        )
    x = np.full((len(there), len(names)), np.nan)
    x[there] = np.eye(len(names))[category]
    return x, tuple(f"{name}={text}" for text in names)


def target(column: Any, name: str, kind: Kind | None, spelled: Any = None) -> tuple[NDArray[Any], Target]:
    """Return a column as targets, and their description: by default classes for texts or booleans, else numbers.

    Classes are numbered in the order of their names; numeric names are ordered by size.

    Args:
        column: the column as Arrow read it.
        name: the column's name.
        kind: whether it is a class or a number; None for the default.
        spelled: the same column as its file spells it (:func:`reading.spellings`); None if the file has types.

    Raises:
        FedpingError: the reasons of :func:`feature`; the column should be numbers but has texts; there is only one
            class; or two spellings are the same value.
    """
    if kind is None:
        kind = "class" if is_text(column) or is_truth(column) else "number"
    if kind == "number":
        return as_numbers(column, name), Target(name)
    if spelled is None:
        names, numbers = values_of(column, name)
    else:
        names, numbers = _distinct(column, spelled, name)
    if len(names) < 2:
        raise FedpingError(f"the target '{name}' is '{names[0]}' in every row, so there is nothing to predict")
    return numbers.astype(np.int64), Target(name, tuple(map(str, names)))


def chosen(column: Any, name: str) -> tuple[NDArray[np.int64], Target]:
    """Return 1 for each chosen candidate and 0 for the others; raise :class:`FedpingError` for another value."""
    numbers = as_numbers(column, name)
    odd = np.flatnonzero((numbers != 0) & (numbers != 1))
    if len(odd):
        raise FedpingError(
            f"row {odd[0] + 1} of the column '{name}' is {numbers[odd[0]]:g}; where rows are the candidates of "
            "choices, the target is 1 for who was chosen and 0 for the others"
        )
    return numbers.astype(np.int64), Target(name, ("no", "yes"))


def keys(column: Any, name: str, spelled: Any = None) -> NDArray[Any]:
    """Return the owner of each row, shape (N,).

    Owners that a CSV file spells as numbers stay numbers, and so keep their order, unless a number can't distinguish
    them; then they are texts.

    Args:
        column: the column as Arrow read it.
        name: the column's name.
        spelled: see :func:`target`.

    Raises:
        FedpingError: an owner is missing, or two spellings are the same value.
    """
    check_none_missing(column, name)
    owners = _plain(column)
    if spelled is None:
        return owners
    texts, each = _distinct(column, spelled, name)
    return owners if len(np.unique(owners)) == len(texts) else np.array(texts)[each]


def _distinct(column: Any, spelled: Any, name: str) -> tuple[list[str], NDArray[np.intp]]:
    """Return a CSV column's texts in the order of their values, and the position of each row's text.

    Raises:
        FedpingError: a value is missing, or two texts are the same value, such as 007 and 7. The file doesn't say
            whether they are two names or one.
    """
    from pyarrow import types

    check_none_missing(column, name)
    texts, first, each = np.unique(written(spelled), return_index=True, return_inverse=True)
    if exact := types.is_floating(column.type):  # texts that round to the same float stay distinct
        as_numbers(column, name)
    read = column.take(first).to_pylist()
    values = [(number_in(text) or value) if exact else value for text, value in zip(texts.tolist(), read, strict=True)]
    known: dict[Any, int] = {}
    for position, value in enumerate(values):
        other = known.setdefault(value, position)
        if other != position:
            one, two = sorted((other, position), key=lambda at: int(first[at]))
            raise FedpingError(
                f"the column '{name}' has '{texts[one]}' in row {first[one] + 1} and '{texts[two]}' in row "
                f"{first[two] + 1}, which are the same value; write one of them everywhere, or, if they are different "
                "names, save the column as texts in Parquet"
            )
    order = np.array(sorted(range(len(values)), key=lambda at: values[at]), np.intp)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return texts[order].tolist(), place[each]


def written(spelled: Any) -> NDArray[Any]:
    """Return the texts of a column in its file's spelling, shape (N,), without surrounding blanks."""
    texts: NDArray[Any] = np.char.strip(_plain(spelled).astype(str))
    return texts


def number_in(text: str) -> Decimal | None:
    """Return the exact number that a text spells; None if the text isn't a number."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def values_of(column: Any, name: str) -> tuple[list[Any], NDArray[np.intp]]:
    """Return the sorted values of a column of any type, as texts or numbers, and the position of each row's value."""
    if is_text(column):
        check_none_missing(column, name)
        values, category = np.unique(_plain(column).astype(str), return_inverse=True)
        return values.tolist(), category
    numbers = as_numbers(column, name)
    exact = numbers if is_truth(column) or _is_floating(column) else _plain(column)  # a float can't hold every integer
    values, category = np.unique(exact, return_inverse=True)
    if is_truth(column):
        return [("false", "true")[int(value)] for value in values], category
    names = [f"{value:.15g}" for value in values.astype(np.float64)]
    if len(set(names)) < len(names) or np.issubdtype(values.dtype, np.integer):
        names = [str(value) for value in values.tolist()]
    return names, category


def _refuse_numbers_with_a_slip(column: Any, name: str, rows: NDArray[np.intp]) -> None:
    """Raise if nearly all texts of a column are numbers: one stray text would turn every number into a category.

    ``rows`` are the positions of the column's values in the table.
    """
    from pyarrow import types

    if types.is_dictionary(column.type):  # declared as categories
        return
    check_none_missing(column, name)
    row, count = first_no_number(column)
    if 0 < count < len(column) / 2:
        raise FedpingError(
            f"row {rows[row - 1] + 1} of the column '{name}' is '{column[row - 1].as_py()}', but most of its "
            "rows are numbers; correct it or leave the column out; if these are categories, save them as a dictionary "
            "in Parquet"
        )


def reads_as_number(text: str) -> bool:
    """Return whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def as_numbers(column: Any, name: str, gaps: bool = False) -> FloatArray:
    """Return a column of numbers or booleans, shape (N,); raise :class:`FedpingError` for any other value.

    With ``gaps`` a missing value is NaN.
    """
    from pyarrow import types

    if not gaps:
        check_none_missing(column, name)
    kind = column.type
    _refuse_bytes(column, name)
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_boolean(kind)):
        raise FedpingError(
            f"the column '{name}' is of type {kind}, which is not a number; turn it into numbers, or leave it out"
        )
    missing = column.null_count > 0
    numbers: FloatArray = _plain(column.cast("float64", safe=False) if missing else column).astype(np.float64)
    odd = np.isinf(numbers) if gaps else ~np.isfinite(numbers)
    if odd.any():
        row = int(np.flatnonzero(odd)[0])
        raise FedpingError(f"row {row + 1} of the column '{name}' is {numbers[row]}; fill such rows or drop them")
    return numbers


def _refuse_bytes(column: Any, name: str) -> None:
    """Raise for a column of bytes: Arrow reads texts in an encoding other than UTF-8 as bytes."""
    from pyarrow import types

    if types.is_binary(column.type) or types.is_large_binary(column.type):
        row = next((at for at, value in enumerate(column.to_pylist(), 1) if not _is_utf_8(value)), None)
        where = "has bytes instead of texts" if row is None else f"is not in UTF-8, first in row {row}"
        raise FedpingError(f"the column '{name}' {where}; save the table as UTF-8")


def _is_utf_8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def first_no_number(column: Any) -> tuple[int, int]:
    """Return the number, from 1, of a text column's first row that isn't a number, and the count of such rows."""
    other = np.array([not reads_as_number(text) for text in _plain(column)])
    return int(other.argmax()) + 1, int(other.sum())


def check_none_missing(column: Any, name: str) -> None:
    """Raise :class:`FedpingError` if a value of a column is missing."""
    if column.null_count:
        row = column.is_null().to_numpy().argmax()
        raise FedpingError(
            f"row {row + 1} of the column '{name}' is missing, one of {column.null_count}; fill such rows or drop them"
        )


def _plain(column: Any) -> NDArray[Any]:
    """Return an Arrow column, chunked or not, as a NumPy array."""
    from pyarrow import types

    plain: NDArray[Any] = (
        column.cast(column.type.value_type) if types.is_dictionary(column.type) else column
    ).to_numpy()
    return plain


def is_text(column: Any) -> bool:
    """Return whether a column holds texts, dictionary-encoded or not."""
    from pyarrow import types

    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def is_truth(column: Any) -> bool:
    """Return whether a column holds booleans."""
    from pyarrow import types

    return bool(types.is_boolean(column.type))


def _is_floating(column: Any) -> bool:
    from pyarrow import types

    return bool(types.is_floating(column.type))
