"""Data sets of Hugging Face by its library ``datasets``: from a folder saved by ``save_to_disk``, or from the hub.

Only columns that the settings name are read, in Arrow's types. A data set's code never runs: versions of the library
that can run it are rejected. Pictures are decoded from the bytes in the table; paths and addresses in the table are
not opened.

Source: the documentation of ``datasets``, *Process* and *Load*.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from fedping.client_sim.data import columns
from fedping.client_sim.data.originals import reading
from fedping.client_sim.data.originals.reading import damaged, library
from fedping.client_sim.data.table import Table, Target
from fedping.client_sim.learning.batch import FloatArray
from fedping.protocol.errors import FedpingError, InvalidSettings

NAME, EXTRA = "hugging-face", "huggingface"

MOST_ON_HUB = 2**35
"""Maximum unpacked bytes of a data set on the hub; a data set without a stated size isn't checked."""

OLDEST = 4
"""The first version of ``datasets`` that runs no code of data sets."""

_OF_THE_HUB = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", re.ASCII)
_PLAIN = re.compile(r"[\w-][\w.-]*", re.ASCII)
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP")
"""The allowed formats of pictures. Document formats are excluded, because they can run programs."""

_MOST_PIXELS = 2**22
_MOST_STATE = 2**24

_Split = Annotated[str, Meta(min_length=1, max_length=200)]
_Column = Annotated[str, Meta(min_length=1, max_length=1000)]


class OfHub(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of a Hugging Face data set: ``features`` and ``label`` are the columns to predict from and to predict.

    ``client`` is the column of the natural key. ``path`` is the name on the hub if no folder is given, with its
    ``config`` and ``revision`` if it has several. ``split`` is the split to read, and ``test_split`` the one with the
    authors' test examples, if any. ``kind`` states whether the label is a class or a number, if the column doesn't show
    it; ``rows`` is the maximum number of rows of a split.
    """

    features: Annotated[tuple[_Column, ...], Meta(min_length=1, max_length=10_000)]
    label: _Column
    client: _Column | None = None
    kind: Literal["class", "number"] | None = None
    path: str | None = None
    config: _Split | None = None
    revision: _Split | None = None
    split: _Split = "train"
    test_split: _Split | None = None
    rows: Annotated[int, Meta(ge=1)] | None = None

    def __post_init__(self) -> None:
        used = self.used
        if len(set(used)) < len(used):
            raise InvalidSettings(
                f"[data.settings] of '{NAME}': features, label and client name a column twice. Name each once"
            )
        if self.path is not None and not _OF_THE_HUB.fullmatch(self.path):
            raise InvalidSettings(
                f"[data.settings] path of '{NAME}': '{self.path[:80]}' is not a name on the hub, such as owner/name. "
                "Name a saved folder as 'folder' in [data]"
            )
        if self.split == self.test_split:
            raise InvalidSettings(f"[data.settings] of '{NAME}': split and test_split are the same. Name two splits")

    @property
    def used(self) -> list[str]:
        """The columns that are read."""
        return [*self.features, self.label, *([self.client] if self.client else [])]

    @property
    def splits(self) -> list[str]:
        """The splits that are read, the one with the authors' test examples last."""
        return [self.split, *([self.test_split] if self.test_split else [])]


def hugging_face(folder: Path, settings: OfHub) -> Table:
    """Return a data set of Hugging Face: pictures, lists of numbers, numbers and categories as features.

    The data set is read from a folder that the library saved by ``save_to_disk`` or, without ``folder``, from the hub
    by ``path``.
    """
    if settings.path is not None:
        raise InvalidSettings(f"[data] of '{NAME}' has 'folder' and settings.path, a name on the hub. Remove one")
    datasets = _library()
    return _table(datasets, [_saved(datasets, folder, split) for split in settings.splits], settings)


def from_hub(settings: OfHub) -> Table:
    """Return a data set of the hub, in the form of :func:`hugging_face`.

    Raises:
        FedpingError: the library is missing, the hub cannot be reached, or the data set is too large or unsuited.
    """
    if settings.path is None:
        raise InvalidSettings(
            f"[data] of '{NAME}' names no data. Set 'folder' to a folder saved by save_to_disk, or settings.path to a "
            "name on the hub, such as owner/name"
        )
    if Path(settings.path).exists():  # the library prefers this local path
        raise InvalidSettings(
            f"[data.settings] path of '{NAME}': '{settings.path}' is also here, and the hub's data would not be read. "
            "Run from another folder, or name a saved folder as 'folder' in [data]"
        )
    datasets = _library()
    try:
        builder = datasets.load_dataset_builder(settings.path, settings.config, revision=settings.revision)
        sizes = [size for size in (builder.info.download_size, builder.info.dataset_size) if size]
        if max(sizes, default=0) > MOST_ON_HUB:
            raise FedpingError(
                f"the data set '{settings.path}' has {max(sizes):,} bytes, and at most {MOST_ON_HUB:,} are read from "
                "the hub. Save some of its rows by save_to_disk, and name that folder as 'folder' in [data]"
            )
        read = [
            datasets.load_dataset(settings.path, settings.config, revision=settings.revision, split=split)
            for split in settings.splits
        ]
    except FedpingError:
        raise
    except Exception as error:  # any error: the library passes on errors of several other libraries
        raise FedpingError(
            f"cannot read the data set '{settings.path}' from the hub of Hugging Face ({_said(error)}). Check the name "
            "and the network, or name a folder saved by save_to_disk as 'folder' in [data]"
        ) from error
    return _table(datasets, read, settings)


def files_of_saved(folder: Path) -> list[Path]:
    """Return the files of a folder that ``save_to_disk`` has written, in their order.

    Raises:
        FedpingError: there are too many files.
    """
    files = sorted(each for each in folder.rglob("*") if each.is_file())
    if len(files) > reading.MOST_FILES:
        raise FedpingError(
            f"the folder {folder} has {len(files):,} files, and at most {reading.MOST_FILES:,} are read. Name the "
            "folder that save_to_disk has made"
        )
    return files


def _library() -> Any:
    datasets = library("datasets", f"the data set '{NAME}'", EXTRA)
    if int(datasets.__version__.partition(".")[0]) < OLDEST:
        raise FedpingError(
            f"the installed package datasets {datasets.__version__} can run code of data sets. Run: pip install "
            f'"fedping[{EXTRA}]", which installs {OLDEST}.0 or newer'
        )
    return datasets


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0][:200]


def _saved(datasets: Any, folder: Path, split: str) -> Any:
    """Return a split of a folder.

    Raises:
        FedpingError: the folder lacks it, is damaged, or names files elsewhere.
    """
    several = folder / "dataset_dict.json"
    if several.is_file():
        known = _json(several).get("splits")
        if not isinstance(known, list) or not all(isinstance(each, str) for each in known):
            raise damaged(several, "it has no list of splits")
        if split not in known or not _PLAIN.fullmatch(split):
            raise FedpingError(
                f"the folder {folder} has no split '{split[:80]}'; it has {', '.join(known)[:200]}. Set 'split' in "
                "[data.settings]"
            )
        folder = folder / split
        if folder.is_symlink():
            raise damaged(several, "a split is a link to another place")
    elif split != "train":
        raise FedpingError(f"the folder {folder} has one data set and no splits. Remove 'split' and 'test_split'")
    state = folder / "state.json"
    if not state.is_file():
        raise FedpingError(f"the folder {folder} has no state.json. Name the folder that save_to_disk has made")
    for kind in ("_data_files", "_indices_data_files"):
        for each in _json(state).get(kind) or []:
            name = each.get("filename") if isinstance(each, dict) else None
            if not isinstance(name, str) or not _PLAIN.fullmatch(name) or (folder / name).is_symlink():
                raise damaged(state, "it names a file elsewhere")
    try:
        return datasets.Dataset.load_from_disk(str(folder.resolve()), keep_in_memory=False)
    except Exception as error:  # any error: the libraries that read a damaged file may raise anything
        raise damaged(folder, _said(error)) from error


def _json(file: Path) -> dict[str, Any]:
    with reading.reading(file, ValueError, RecursionError):
        if file.stat().st_size > _MOST_STATE:
            raise damaged(file, f"it has more than {_MOST_STATE:,} bytes")
        read = json.loads(file.read_bytes())
    if not isinstance(read, dict):
        raise damaged(file, "it is not a table of settings")
    return read


def _table(datasets: Any, splits: Sequence[Any], settings: OfHub) -> Table:
    """Return the rows of opened splits as a table; the rows of the second split are the authors' test examples."""
    import pyarrow as pa

    for each in splits:
        if lacking := [name for name in settings.used if name not in each.column_names]:
            raise FedpingError(
                f"the data set '{NAME}' has no column '{lacking[0]}'; it has {', '.join(each.column_names)[:500]}. "
                "Correct [data.settings]"
            )
    kinds = {name: splits[0].features[name] for name in settings.used}
    if any(each.features[name] != kind for each in splits for name, kind in kinds.items()):
        raise FedpingError(f"the splits of the data set '{NAME}' have columns of different types. Read one split")
    try:
        parts = [_rows(each, settings) for each in splits]
        read = pa.concat_tables(parts)
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise FedpingError(f"cannot read the data set '{NAME}': {_said(error)}. Save or download it again") from error
    if not read.num_rows:
        raise FedpingError(f"the data set '{NAME}' has no rows. Read another split")
    found = [_feature(datasets, read[name], name, kinds[name], len(settings.features)) for name in settings.features]
    numbers = sum(x.shape[1] for x, _ in found) * read.num_rows
    _check_numbers(numbers, read.num_rows)
    y, target = _target(datasets, read[settings.label], settings.label, kinds[settings.label], settings.kind)
    return Table(
        x=np.concatenate([x for x, _ in found], axis=1),
        y=y,
        features=tuple(name for _, names in found for name in names),
        target=target,
        key=None if settings.client is None else columns.keys(read[settings.client], settings.client),
        for_test=np.repeat([False, True][: len(parts)], [part.num_rows for part in parts]),
    )


def _check_numbers(numbers: int, rows: int) -> None:
    if numbers > reading.MOST_NUMBERS:
        raise FedpingError(
            f"the data have {numbers:,} numbers in {rows:,} rows, and at most {reading.MOST_NUMBERS:,} are held in "
            f"memory. Set rows = {max(1, rows * reading.MOST_NUMBERS // (2 * numbers))} in [data.settings]"
        )


def _rows(split: Any, settings: OfHub) -> Any:
    """Return the wanted columns of a split as a table of Arrow."""
    rows = min(split.num_rows, settings.rows or split.num_rows)
    if rows > reading.MOST_NUMBERS:
        _check_numbers(rows, rows)
    wanted = split.select_columns(settings.used).with_format("arrow")
    wanted.data.table.validate(full=True)  # Arrow trusts the offsets in a file, which may point anywhere in memory
    return wanted[:rows]


def _feature(datasets: Any, column: Any, name: str, kind: Any, of: int) -> tuple[FloatArray, tuple[str, ...]]:
    """Return a column as features, shape (N, d), and their names; ``of`` is the number of columns."""
    from pyarrow import types

    if isinstance(kind, datasets.Image):
        pictures = _pictures(column, name)
        _, height, width, colours = pictures.shape
        before = "" if of == 1 else f"{name}_"
        places = [f"{before}pixel_{row}_{at}" for row in range(height) for at in range(width)]
        names = [f"{place}_{colour}" for place in places for colour in "rgb"] if colours == 3 else places
        return pictures.reshape(len(pictures), -1).astype(np.float64), tuple(names)
    if isinstance(kind, datasets.ClassLabel):
        return columns.feature(_names(column, name, kind.names), name)
    column = _stored(column)
    if types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type):
        numbers = _lists(column, name)
        return numbers, tuple(f"{name}_{at}" for at in range(numbers.shape[1]))
    if types.is_nested(column.type) or types.is_binary(column.type):
        raise FedpingError(f"the column '{name}' has values of {column.type}, not numbers, texts, lists or pictures")
    return columns.feature(column, name)


def _target(
    datasets: Any, column: Any, name: str, kind: Any, wanted: Literal["class", "number"] | None
) -> tuple[NDArray[Any], Target]:
    if not isinstance(kind, datasets.ClassLabel) or wanted == "number":
        return columns.target(_stored(column), name, wanted)
    numbers = columns.as_numbers(column, name)
    _check_classes(numbers, name, len(kind.names))
    return numbers.astype(np.int64), Target(name, tuple(kind.names))


def _check_classes(numbers: FloatArray, name: str, count: int) -> None:
    odd = np.flatnonzero((numbers < 0) | (numbers >= count))
    if len(odd):
        raise FedpingError(
            f"row {odd[0] + 1} of the column '{name}' has the class {numbers[odd[0]]:g}; classes are 0 to {count - 1}, "
            "and -1 is a missing one. Read a split with labels"
        )


def _names(column: Any, name: str, names: Sequence[str]) -> Any:
    """Return a column of classes as texts."""
    import pyarrow as pa

    numbers = columns.as_numbers(column, name)
    _check_classes(numbers, name, len(names))
    return pa.chunked_array([pa.array(np.array(names, object)[numbers.astype(int)].tolist(), pa.string())])


def _stored(column: Any) -> Any:
    """Return a column's plain values, without the library's own types, such as that of a matrix."""
    import pyarrow as pa

    if not isinstance(column.type, pa.BaseExtensionType):
        return column
    kind = column.type.storage_type
    return pa.chunked_array([chunk.storage for chunk in column.chunks], kind)


def _lists(column: Any, name: str) -> FloatArray:
    """Return lists of numbers of one length, or lists of such lists, shape (N, d)."""
    from pyarrow import compute, types

    rows = len(column)
    while types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type):
        columns.check_none_missing(column, name)
        lengths = compute.min_max(compute.list_value_length(column)).as_py()
        if lengths["min"] != lengths["max"] or not lengths["max"]:
            raise FedpingError(
                f"the column '{name}' has lists of {lengths['min']} to {lengths['max']} values. Choose a column whose "
                "lists have the same length"
            )
        _check_numbers(len(column) * lengths["max"], rows)
        column = compute.list_flatten(column)
    return columns.as_numbers(column, name).reshape(rows, -1)


def _pictures(column: Any, name: str) -> NDArray[np.uint8]:
    """Return pictures of one size, shape (N, height, width, colours)."""
    found: NDArray[np.uint8] | None = None
    for row, picture in enumerate(_decoded(column, name)):
        if found is None:
            _check_numbers(len(column) * picture.size, len(column))
            found = np.empty((len(column), *picture.shape), np.uint8)
        if picture.shape != found.shape[1:]:
            raise FedpingError(
                f"row {row + 1} of the column '{name}' has a picture of {picture.shape} pixels and colours, and row 1 "
                f"of {found.shape[1:]}. Bring pictures to one size, and save the data set again"
            )
        found[row] = picture
    assert found is not None
    return found


def _decoded(column: Any, name: str) -> Iterator[NDArray[np.uint8]]:
    """Yield each picture: grey ones with one colour, others with three."""
    pillow = library("PIL.Image", f"the column of pictures '{name}'", EXTRA)
    for row, value in enumerate(_values(_stored(column)), 1):
        data = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(data, bytes):
            raise FedpingError(
                f"row {row} of the column '{name}' has no bytes of a picture; paths and addresses are not opened. Save "
                "the data set by save_to_disk, which takes pictures into the folder"
            )
        try:
            with pillow.open(io.BytesIO(data), formats=_FORMATS) as opened:
                if opened.width * opened.height > _MOST_PIXELS:
                    raise FedpingError(
                        f"row {row} of the column '{name}' has a picture of {opened.width} x {opened.height} pixels, "
                        f"and at most {_MOST_PIXELS:,} are read. Save smaller ones"
                    )
                if opened.mode not in ("1", "L", "P", "RGB", "RGBA", "LA"):
                    raise ValueError(f"its colours are {opened.mode}")
                picture = np.asarray(opened.convert("L" if opened.mode in ("1", "L", "LA") else "RGB"), np.uint8)
        except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
            raise FedpingError(
                f"row {row} of the column '{name}' has a picture that cannot be read: {_said(error)}. Choose another "
                "column, or save the data set again"
            ) from error
        yield picture.reshape(*picture.shape[:2], -1)


def _values(column: Any) -> Iterator[Any]:
    """Yield the values of a column, with only a few in memory at a time."""
    for begin in range(0, len(column), 256):
        yield from column.slice(begin, 256).to_pylist()
