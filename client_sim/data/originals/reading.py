"""Shared code of the readers of original files: bounds, settings, and the sentence about a damaged file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from fedping.client_sim.data.table import Table, Target
from fedping.protocol.errors import FedpingError

MOST_BYTES = 2**31
"""Maximum bytes of one file."""

MOST_FILES = 10_000
"""Maximum files of one data set."""

MOST_NUMBERS = 2**30
"""Maximum number of values, examples times features; 8 GiB in double precision."""


class NoSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a data set that has none."""


class OfUsers(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of users' data: ``users`` is the number to read, the first in the order of the files; all if None.

    ``patience`` is the time in seconds that an HDF5 file may take for the next examples, before it counts as damaged.
    """

    users: Annotated[int, Meta(ge=1)] | None = None
    patience: Annotated[int, Meta(ge=1, le=86_400)] = 60


class OfOneUser(NamedTuple):
    """Some examples of a user: features, shape (n, d), and classes, shape (n,).

    ``for_test`` is whether the authors set them apart for tests.
    """

    user: str
    x: NDArray[np.generic]
    y: NDArray[np.int64]
    for_test: bool = False


class DamagedFile(FedpingError):
    """A file of a data set does not have the format of its authors."""


def damaged(file: Path, why: str) -> DamagedFile:
    """Return the error for a file that does not have its format; ``why`` is a clause without a full stop."""
    return DamagedFile(f"the file {file} is damaged, or not of this data set: {why}. Download it again")


@contextmanager
def reading(file: Path, *errors: type[Exception]) -> Iterator[None]:
    """Turn operating system errors, and ``errors``, into a sentence about the file."""
    try:
        yield
    except OSError as error:
        raise FedpingError(f"cannot read the file {file}: {error.strerror or error}. Check the path") from error
    except errors as error:
        raise damaged(file, str(error).partition("\n")[0][:200] or type(error).__name__) from error


def bytes_of(file: Path) -> bytes:
    """Return a file's bytes.

    Raises:
        FedpingError: the file cannot be read, or is larger than :data:`MOST_BYTES`.
    """
    with reading(file):
        size = file.stat().st_size
        if size > MOST_BYTES:
            raise FedpingError(
                f"the file {file} has {size:,} bytes, and the maximum is {MOST_BYTES:,}. Split it into several files, "
                "by users"
            )
        return file.read_bytes()


def library(module: str, what: str, extra: str) -> Any:
    """Return a library that an extra of fedping installs.

    Args:
        module: its import name.
        what: the data that need the library, as the subject of a sentence.
        extra: the extra to install.

    Raises:
        FedpingError: it is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise FedpingError(
            f'{what} needs the package {module}, which isn\'t installed. Run: pip install "fedping[{extra}]"'
        ) from error


def sub_folder(folder: Path, *names: str) -> Path:
    """Return the first of these folders that exists in ``folder``, else ``folder`` itself."""
    return next((folder / name for name in names if (folder / name).is_dir()), folder)


def files_in(folder: Path, ending: str, whose: str) -> list[Path]:
    """Return the files in a folder whose names have this ending, sorted by name.

    Raises:
        FedpingError: there are none, or more than :data:`MOST_FILES`.
    """
    files = sorted(each for each in folder.glob(f"*{ending}") if each.is_file())
    if not files:
        raise FedpingError(f"the folder {folder} has no file *{ending}. Name the folder with the files of {whose}")
    if len(files) > MOST_FILES:
        raise FedpingError(
            f"the folder {folder} has {len(files):,} files *{ending}, and at most {MOST_FILES:,} are read. Sample "
            "fewer users"
        )
    return files


def of_users(
    rows: Iterable[OfOneUser],
    *,
    features: Callable[[int], tuple[str, ...]],
    target: Target,
    most: int | None = None,
) -> Table:
    """Return a table from users' examples; a user may have several blocks.

    Args:
        rows: users' examples.
        features: returns the names of d features.
        target: the classes.
        most: maximum number of users, the first ones; all if None.

    Raises:
        FedpingError: there are no examples, features differ in number, or they are more than :data:`MOST_NUMBERS`.
    """
    kept: dict[str, list[OfOneUser]] = {}
    numbers, width = 0, None
    for each in rows:
        user, x, y, _ = each
        if user not in kept and most is not None and len(kept) == most:
            continue
        if not len(y):
            continue
        if width not in (None, x.shape[1]):
            raise FedpingError(
                f"examples have {width} features, and those of the user '{user[:80]}' {x.shape[1]}. Read one data set"
            )
        width = x.shape[1]
        numbers += x.size
        if numbers > MOST_NUMBERS:
            raise FedpingError(
                f"the data have more than {MOST_NUMBERS:,} numbers, the most that are held in memory, after "
                f"{len(kept):,} users. Set settings = {{ users = {max(1, len(kept) // 2)} }} in [data]"
            )
        kept.setdefault(user, []).append(each)
    if width is None:
        raise FedpingError("the files have no examples. Download or sample them again")
    parts = [part for each in kept.values() for part in each]
    sizes = [sum(len(part.y) for part in each) for each in kept.values()]
    table = np.empty((sum(sizes), width), np.float64)
    np.concatenate([part.x for part in parts], out=table, casting="unsafe")
    names = np.empty(len(kept), object)
    names[:] = list(kept)
    y = np.concatenate([part.y for part in parts])
    for_test = np.repeat([part.for_test for part in parts], [len(part.y) for part in parts])
    return Table(table, y, features(width), target, np.repeat(names, sizes), for_test=for_test)
