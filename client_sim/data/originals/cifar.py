"""CIFAR-10 and CIFAR-100 in the files of their authors: batches that Python pickled, or the binary version.

Source: Krizhevsky 2009, *Learning Multiple Layers of Features from Tiny Images*.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.data.originals.plain_pickle import OddPickle, loads
from fedping.client_sim.data.originals.reading import (
    MOST_NUMBERS,
    NoSettings,
    bytes_of,
    damaged,
    reading,
    sub_folder,
)
from fedping.client_sim.data.table import Table, Target
from fedping.protocol.errors import FedpingError

SIDE, COLOURS = 32, 3
NUMBERS = SIDE * SIDE * COLOURS
OBJECTS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
"""The classes of CIFAR-10."""

FINE, COARSE = 100, 20
PIXELS = tuple(f"pixel_{row}_{column}_{colour}" for row in range(SIDE) for column in range(SIDE) for colour in "rgb")
"""The features of a picture: its pixels row by row."""

_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
_PARTS = ("train", "test")
_LONGEST_NAME = 80


def cifar_10(folder: Path, _: NoSettings) -> Table:
    """Return 60,000 pictures of 10 kinds of objects by 32 x 32 pixels of three colours from 0 to 255.

    The 50,000 for training come first, in the order of the files. A picture's features are its pixels row by row, each
    with red, green and blue.
    """
    files = [file for file in files_of_cifar_10(folder) if file.name.startswith(("data_batch", "test_batch"))]
    parts = [_binary(file, (10,)) if file.suffix == ".bin" else _pickled(file, ("labels",), (10,)) for file in files]
    return _table(parts, Target("object", OBJECTS), None)


def cifar_100(folder: Path, _: NoSettings) -> Table:
    """Return 60,000 pictures of 100 kinds, like :func:`cifar_10`; the natural key is one of 20 superclasses."""
    files = files_of_cifar_100(folder)
    about = files[0].parent
    if files[0].suffix == ".bin":
        parts = [_binary(file, (COARSE, FINE)) for file in files if file.suffix == ".bin"]
        names = dict(_written_names(about))
    else:
        labels = ("coarse_labels", "fine_labels")
        parts = [_pickled(file, labels, (COARSE, FINE)) for file in files if file.name != "meta"]
        names = dict(_pickled_names(about / "meta"))
    fine = names.get("fine", tuple(map(str, range(FINE))))
    coarse = np.array(names.get("coarse", tuple(map(str, range(COARSE)))), object)
    return _table(parts, Target("object", fine), coarse)


def files_of_cifar_10(folder: Path) -> list[Path]:
    """Return the files of CIFAR-10 in a folder, or in the archive's folder in it.

    Raises:
        FedpingError: one is missing.
    """
    return _files(folder, ("cifar-10-batches-py", "cifar-10-batches-bin"), _BATCHES, ())


def files_of_cifar_100(folder: Path) -> list[Path]:
    """Return the files of CIFAR-100, like :func:`files_of_cifar_10`, followed by the files of the classes' names."""
    names = ("meta", "fine_label_names.txt", "coarse_label_names.txt")
    return _files(folder, ("cifar-100-python", "cifar-100-binary"), _PARTS, names)


def _files(folder: Path, archives: Sequence[str], parts: Sequence[str], names: Sequence[str]) -> list[Path]:
    inside = sub_folder(folder, *archives)
    for ending in ("", ".bin"):
        files = [inside / f"{part}{ending}" for part in parts]
        if any(file.is_file() for file in files):
            lacking = [file.name for file in files if not file.is_file()]
            if lacking:
                raise FedpingError(f"the folder {inside} lacks {', '.join(lacking)}. Unpack the archive again")
            return [*files, *(inside / name for name in names if (inside / name).is_file())]
    raise FedpingError(
        f"the folder {folder} has neither {parts[0]} nor {parts[0]}.bin. Unpack the authors' archive of CIFAR, and "
        "name its folder"
    )


@dataclass(frozen=True)
class _Batch:
    """Pictures, uint8 of shape (n, 3072), first all red, then all green, then all blue; labels, each of shape (n,).

    ``for_test`` is whether the authors set the pictures apart for tests.
    """

    pictures: NDArray[np.uint8]
    labels: list[NDArray[np.int64]]
    for_test: bool


def _table(parts: Sequence[_Batch], target: Target, superclasses: NDArray[Any] | None) -> Table:
    rows = sum(len(each.pictures) for each in parts)
    if rows * NUMBERS > MOST_NUMBERS:
        raise FedpingError(
            f"the folder has {rows:,} pictures, more than CIFAR-10 or CIFAR-100. Name a folder with one of them"
        )
    x = np.empty((rows, SIDE, SIDE, COLOURS))
    begin = 0
    for each in parts:
        end = begin + len(each.pictures)
        x[begin:end] = each.pictures.reshape(-1, COLOURS, SIDE, SIDE).transpose(0, 2, 3, 1)
        begin = end
    y = np.concatenate([each.labels[-1] for each in parts])
    key = None if superclasses is None else superclasses[np.concatenate([each.labels[0] for each in parts])]
    for_test = np.repeat([each.for_test for each in parts], [len(each.pictures) for each in parts])
    return Table(x.reshape(rows, NUMBERS), y, PIXELS, target, key, for_test=for_test)


def _pickled(file: Path, labels: Sequence[str], classes: Sequence[int]) -> _Batch:
    batch = _dictionary(file)
    pictures = batch.get(b"data")
    if not isinstance(pictures, np.ndarray) or pictures.dtype != np.uint8 or pictures.shape[1:] != (NUMBERS,):
        raise damaged(file, f"'data' is no array of bytes with {NUMBERS:,} columns")
    return _checked(file, pictures, [_numbers(file, name, batch) for name in labels], classes)


def _numbers(file: Path, name: str, batch: dict[Any, Any]) -> NDArray[np.int64]:
    values = batch.get(name.encode())
    if not isinstance(values, list) or not all(type(value) is int and 0 <= value < 256 for value in values):
        raise damaged(file, f"'{name}' is no list of classes")
    return np.array(values, np.int64)


def _dictionary(file: Path) -> dict[Any, Any]:
    with reading(file, OddPickle):
        batch = loads(bytes_of(file))
    if not isinstance(batch, dict):
        raise damaged(file, "it holds no dictionary")
    return {key.encode() if isinstance(key, str) else key: value for key, value in batch.items()}


def _binary(file: Path, classes: Sequence[int]) -> _Batch:
    data = np.frombuffer(bytes_of(file), np.uint8)
    width = len(classes) + NUMBERS
    if len(data) % width:
        raise damaged(file, f"its {len(data):,} bytes are no multiple of the {width:,} of a picture")
    rows = data.reshape(-1, width)
    return _checked(
        file, rows[:, len(classes) :], [rows[:, at].astype(np.int64) for at in range(len(classes))], classes
    )


def _checked(
    file: Path, pictures: NDArray[np.uint8], labels: list[NDArray[np.int64]], classes: Sequence[int]
) -> _Batch:
    for each, count in zip(labels, classes, strict=True):
        if len(each) != len(pictures):
            raise damaged(file, f"it has {len(pictures):,} pictures and {len(each):,} classes")
        if each.max(initial=0) >= count:
            raise damaged(file, f"it has the class {each.max()}; classes are 0 to {count - 1}")
    return _Batch(pictures, labels, file.name.startswith("test"))


def _pickled_names(meta: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the names of fine and coarse classes, if their file exists."""
    found = _dictionary(meta) if meta.is_file() else {}
    for which, count in (("fine", FINE), ("coarse", COARSE)):
        names = found.get(f"{which}_label_names".encode())
        if names is not None:
            texts = [_text(name) for name in names[: count + 1]] if isinstance(names, list) else []
            yield which, _checked_names(meta, texts, count)


def _written_names(folder: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    for which, count in (("fine", FINE), ("coarse", COARSE)):
        if (file := folder / f"{which}_label_names.txt").is_file():
            yield which, _checked_names(file, bytes_of(file)[:100_000].decode("utf-8", "replace").split(), count)


def _text(name: Any) -> str:
    """Return the name of a class; "", which is rejected later, for a value that isn't a text."""
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else name if isinstance(name, str) else ""


def _checked_names(file: Path, names: Sequence[str], count: int) -> tuple[str, ...]:
    if len(set(names)) != count or len(names) != count or any(len(name) > _LONGEST_NAME for name in names):
        raise damaged(file, f"it does not have {count} different names of classes")
    return tuple(names)
