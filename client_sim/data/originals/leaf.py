"""FEMNIST and Shakespeare in the JSON files of LEAF (Caldas et al. 2018): ``users``, ``num_samples``, ``user_data``.

Source: Caldas et al. 2018, *LEAF: A Benchmark for Federated Settings*, and the scripts of its repository.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.data.originals.reading import (
    OfOneUser,
    OfUsers,
    bytes_of,
    damaged,
    files_in,
    of_users,
    reading,
)
from fedping.client_sim.data.table import Table, Target, feature_names

SIDE = 28
PIXELS = tuple(f"pixel_{row}_{column}" for row in range(SIDE) for column in range(SIDE))
CHARACTERS = Target("character", tuple(digits + ascii_uppercase + ascii_lowercase))
"""The classes of FEMNIST in LEAF's order."""

LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's 80 characters of Shakespeare, in its order."""

NEXT = Target("next", tuple(LETTERS))
BLANK = LETTERS.index(" ")
LONGEST_SEQUENCE = 10_000
WHOSE = "LEAF or of TensorFlow Federated"


def femnist(folder: Path, settings: OfUsers) -> Table:
    """Return handwritten characters of 62 classes by 28 x 28 pixels from 0 to 1; the natural key is the writer."""
    return of_users(
        _pictures(folder),
        features=lambda _: PIXELS,
        target=CHARACTERS,
        most=settings.users,
    )


def shakespeare(folder: Path, settings: OfUsers) -> Table:
    """Return sequences of 80 characters, each with the next as one of 80 classes; the natural key is the speaking role.

    Features are the numbers of the characters in :data:`LETTERS`; characters that LEAF doesn't know become blanks.
    """
    return of_users(_sequences(folder), features=feature_names, target=NEXT, most=settings.users)


class Pictures(msgspec.Struct):
    """The examples of a writer."""

    x: list[list[float]]
    y: list[int]


class Sequences(msgspec.Struct):
    """The examples of a role."""

    x: list[str]
    y: list[str]


U = TypeVar("U", Pictures, Sequences)


class _File(msgspec.Struct):
    users: list[str]
    num_samples: list[int]
    user_data: dict[str, msgspec.Raw]


def files_of_leaf(folder: Path) -> list[Path]:
    """Return LEAF's files: those in ``train`` and ``test`` if both exist, else in ``all_data``, else in the folder."""
    data = folder / "data" if (folder / "data").is_dir() else folder
    if (data / "train").is_dir() and (data / "test").is_dir():
        return list(chain(*(files_in(data / part, ".json", WHOSE) for part in ("train", "test"))))
    return files_in(data / "all_data" if (data / "all_data").is_dir() else data, ".json", WHOSE)


def _users(folder: Path, kind: type[U]) -> Iterator[tuple[Path, str, U]]:
    for path in files_of_leaf(folder):
        with reading(path, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            file = msgspec.json.decode(bytes_of(path), type=_File)
        if len(file.users) != len(file.num_samples):
            raise damaged(path, f"it has {len(file.users)} 'users' and {len(file.num_samples)} 'num_samples'")
        if len(set(file.users)) < len(file.users):  # the examples of a repeated name would be read repeatedly
            raise damaged(path, "'users' names one twice")
        for user, count in zip(file.users, file.num_samples, strict=True):
            if (raw := file.user_data.get(user)) is None:
                raise damaged(path, f"'user_data' lacks the user '{user[:80]}'")
            with reading(path, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                examples: Any = msgspec.json.decode(raw, type=kind)
            if not len(examples.x) == len(examples.y) == count:
                raise damaged(
                    path,
                    f"the user '{user[:80]}' has {len(examples.x)} x, {len(examples.y)} y and {count} in 'num_samples'",
                )
            yield path, user, examples


def _is_for_test(path: Path) -> bool:
    return path.parent.name == "test"


def _pictures(folder: Path) -> Iterator[OfOneUser]:
    for path, user, examples in _users(folder, Pictures):
        odd = next((len(each) for each in examples.x if len(each) != SIDE**2), None)
        if odd is not None:
            raise damaged(path, f"a picture of the user '{user[:80]}' has {odd} pixels, not {SIDE**2}")
        odd = next((each for each in examples.y if not 0 <= each < len(CHARACTERS.classes)), None)
        if odd is not None:
            raise damaged(path, f"the user '{user[:80]}' has the class {odd}; classes are 0 to 61")
        with np.errstate(over="ignore"):
            x = np.array(examples.x, np.float32).reshape(-1, SIDE**2)
        if not np.isfinite(x).all():
            raise damaged(path, f"a pixel of the user '{user[:80]}' is too large")
        yield OfOneUser(user, x, np.array(examples.y, np.int64), _is_for_test(path))


def _sequences(folder: Path) -> Iterator[OfOneUser]:
    for path, user, examples in _users(folder, Sequences):
        lengths = sorted({len(each) for each in examples.x})
        if len(lengths) > 1 or (lengths and not 0 < lengths[0] <= LONGEST_SEQUENCE):
            raise damaged(path, f"x of the user '{user[:80]}' have {lengths[0]} to {lengths[-1]} characters")
        if any(len(each) != 1 for each in examples.y):
            raise damaged(path, f"y of the user '{user[:80]}' are not single characters")
        if lengths:
            x = numbers_of("".join(examples.x)).reshape(len(examples.x), lengths[0])
            yield OfOneUser(user, x, numbers_of("".join(examples.y)).astype(np.int64), _is_for_test(path))


_ORDER = np.argsort(np.array([ord(each) for each in LETTERS]))
_SORTED = np.array([ord(each) for each in LETTERS])[_ORDER]


def numbers_of(text: str) -> NDArray[np.uint8]:
    """Return each character's number in :data:`LETTERS`, shape (len(text),); unknown ones get that of a blank."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    at = np.minimum(np.searchsorted(_SORTED, points), len(_SORTED) - 1)
    return np.where(_SORTED[at] == points, _ORDER[at], BLANK).astype(np.uint8)
