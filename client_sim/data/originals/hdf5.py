"""Reads TensorFlow Federated's HDF5 files in the calling process; :mod:`hdf5_process` does so in a separate one.

The group ``examples`` has a group for each client, which has an array for each feature, one entry an example. Nothing
outside a file is read: links to other places, external and virtual arrays, objects and references are rejected. The
HDF5 library has no time limit: a heap of texts that was damaged on purpose keeps it busy forever.

Source: TFF's ``hdf5_client_data.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

from msgspec import Struct
from numpy.typing import NDArray

from fedping.client_sim.data.originals.reading import damaged
from fedping.protocol.errors import FedpingError

Wanted: TypeAlias = Mapping[str, tuple[int, ...] | None]
"""The features to read: the shape of an example, () for one number, and None for a text."""

Columns: TypeAlias = "dict[str, NDArray[Any] | list[bytes]]"
"""Some examples of a client by feature: numbers, shape (n, numbers per example), or n texts."""

ROWS = 1024
"""Maximum examples read at a time."""


class Bounds(Struct, frozen=True, kw_only=True):
    """Maxima for a file: clients, examples per client, bytes per text, numbers per array, and bytes read at once."""

    clients: int
    examples: int
    text: int
    numbers: int
    bytes: int


@contextmanager
def _hdf5_errors(file: Path) -> Iterator[None]:
    """Turn h5py's errors about a damaged file into a sentence about the file."""
    try:
        yield
    except (OSError, KeyError, RuntimeError, TypeError, ValueError, OverflowError) as error:
        raise damaged(file, str(error).partition("\n")[0][:200] or type(error).__name__) from error


def opened(file: Path) -> Any:
    """Return an HDF5 file, opened for reading."""
    import h5py  # type: ignore[import-untyped,unused-ignore]

    with _hdf5_errors(file):
        return h5py.File(file, "r")


def names_of(file: Path, opened: Any, bounds: Bounds) -> list[str]:
    """Return the names of the clients of an opened file, in their order."""
    import h5py

    with _hdf5_errors(file):
        examples = _within(h5py, file, opened, "examples", h5py.Group)
        check_clients(file, len(examples), bounds.clients)
        names = sorted(examples)
        "".join(names).encode()  # raises for names that aren't UTF-8
        return names


def examples_of(
    file: Path, opened: Any, names: Iterable[str], wanted: Wanted, bounds: Bounds
) -> Iterator[tuple[str, Columns]]:
    """Yield the examples of these clients in blocks; a client may have several blocks."""
    import h5py

    examples = opened["examples"]
    for name in names:
        with _hdf5_errors(file):
            client = _within(h5py, file, examples, name, h5py.Group)
            arrays = {each: _within(h5py, file, client, each, h5py.Dataset) for each in wanted}
            count = _check_arrays(h5py, file, name, arrays, wanted, bounds)
        for begin in range(0, count, ROWS):
            with _hdf5_errors(file):
                rows = slice(begin, min(begin + ROWS, count))
                yield name, {each: _read(file, array, rows, wanted[each], bounds) for each, array in arrays.items()}


def _within(h5py: Any, file: Path, group: Any, name: str, kind: type) -> Any:
    """Return a group's member of a name; raise unless it has the expected kind and lies in the group itself."""
    link = group.get(name, getlink=True)
    if link is None:
        raise damaged(file, f"{group.name[:80]} lacks '{name[:80]}'")
    if not isinstance(link, h5py.HardLink):
        raise damaged(file, f"'{name[:80]}' of {group.name[:80]} is a link to another place")
    found = group[name]
    if not isinstance(found, kind):
        raise damaged(file, f"'{name[:80]}' of {group.name[:80]} is a {type(found).__name__}, not a {kind.__name__}")
    return found


def _check_arrays(h5py: Any, file: Path, client: str, arrays: Mapping[str, Any], wanted: Wanted, bounds: Bounds) -> int:
    """Return the number of a client's examples.

    Raises:
        DamagedFile: an array does not have the expected shape or type, or lies elsewhere.
    """
    count = None
    for name, array in arrays.items():
        of = f"'{name}' of the client '{client[:80]}'"
        if array.external or array.is_virtual:
            raise damaged(file, f"{of} lies in another file")
        if array.ndim < 1 or (count is not None and array.shape[0] != count):
            raise damaged(file, f"{of} has the shape {array.shape}, and other features have {count} examples")
        count = int(array.shape[0])
        shape = wanted[name]
        if shape is None:
            if h5py.check_string_dtype(array.dtype) is None or array.ndim != 1:
                raise damaged(file, f"{of} is not a list of texts")
        elif array.dtype.kind not in "uif" or prod(array.shape[1:]) != prod(shape):
            raise damaged(file, f"{of} is {array.dtype} of shape {array.shape}, not numbers of shape (n, {shape})")
        _check_room(file, of, array, bounds)
    assert count is not None
    return count


def _check_room(file: Path, of: str, array: Any, bounds: Bounds) -> None:
    piece = array.chunks or (min(ROWS, array.shape[0]), *array.shape[1:])
    if (
        array.shape[0] > bounds.examples
        or array.size > bounds.numbers
        or prod(piece) * array.dtype.itemsize > bounds.bytes
    ):
        raise damaged(file, f"{of} has the shape {array.shape}, in pieces of {piece}, which is too large")


def _read(
    file: Path, array: Any, rows: slice, shape: tuple[int, ...] | None, bounds: Bounds
) -> NDArray[Any] | list[bytes]:
    if shape is not None:
        numbers: NDArray[Any] = array[rows]
        return numbers.reshape(len(numbers), prod(shape))
    if array.dtype.itemsize > bounds.text:
        raise damaged(file, f"{array.name[:80]} has texts of {array.dtype.itemsize:,} bytes")
    # Texts may share their place in the file, so that a few bytes become many.
    step = max(16, min(ROWS, bounds.bytes // max(1, file.stat().st_size)))
    texts: list[bytes] = []
    for begin in range(rows.start, rows.stop, step):
        texts += [bytes(each) for each in array[begin : min(begin + step, rows.stop)]]
        if max(map(len, texts), default=0) > bounds.text:
            raise damaged(file, f"{array.name[:80]} has a text of more than {bounds.text:,} bytes")
    return texts


def check_clients(file: Path, count: int, most: int) -> None:
    """Raise :class:`FedpingError` for a file with too many clients."""
    if count > most:
        raise FedpingError(
            f"the file {file} has {count:,} clients, and at most {most:,} are read. Divide it into several"
        )
