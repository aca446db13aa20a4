"""Users' own tables, from CSV, Parquet or Arrow files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedping.client_sim.data import columns
from fedping.client_sim.data.columns import Kind, is_text
from fedping.client_sim.data.table import Table
from fedping.protocol.errors import FedpingError


def load_table(
    path: Path | str,
    target: str,
    features: Sequence[str] | None = None,
    client: str | None = None,
    kind: Kind | None = None,
    choice: str | None = None,
    gaps: bool = False,
) -> Table:
    """Return the rows of a file as a table of examples.

    Args:
        path: a file that ends in .csv (or .csv.gz), .parquet, .arrow or .feather, or a folder of Parquet files.
        target: the column to predict.
        features: the columns to predict the target from, in this order; if None, all others in the file's order. A text
            column becomes one feature per category, in alphabetical order
            (:func:`fedping.client_sim.data.columns.feature`).
        client: the column with the owner of each row: the natural key.
        kind: whether the target is a ``class`` or a ``number``; if None, texts and booleans are classes.
        choice: the column with the choice that each row is a candidate of; the target is then 1 or true for the chosen
            candidate. See :mod:`fedping.client_sim.data.choice_sets`.
        gaps: whether a feature may be missing; it is NaN then. A target, a client or a choice may not.

    Raises:
        FedpingError: the file cannot be read or has no rows, a column is missing or named twice, or a value is missing
            or is not a number, text or boolean; with ``gaps``, a feature is missing in every row.
    """
    read = read_arrow(Path(path))
    used = _columns(read, target, features, [each for each in (client, choice) if each], path)
    if not read.num_rows:
        raise FedpingError(f"the file {path} has no rows; there is nothing to learn from")
    try:
        parts = [columns.feature(read[name], name, gaps) for name in used]
        names = [
            *([target] if kind == "class" or columns.is_truth(read[target]) else []),
            *filter(None, (client, choice)),
        ]
        spelled = spellings(Path(path), read, names)
        if choice is None:
            y, what = columns.target(read[target], target, kind, spelled.get(target))
        else:
            y, what = columns.chosen(read[target], target)
        return Table(
            x=np.column_stack([values for values, _ in parts]),
            y=y,
            features=tuple(name for _, names in parts for name in names),
            target=what,
            key=None if client is None else columns.keys(read[client], client, spelled.get(client)),
            choice=None if choice is None else columns.keys(read[choice], choice, spelled.get(choice)),
            gaps=gaps and any(np.isnan(values).any() for values, _ in parts),
        )
    except FedpingError as error:
        raise FedpingError(f"the file {path}: {error}") from error


def _columns(
    read: Any, target: str, features: Sequence[str] | None, owners: Sequence[str], path: Path | str
) -> list[str]:
    """Return the feature columns, after checking that all named columns exist.

    ``owners`` are the columns with the client or the choice of each row.
    """
    present: list[str] = read.column_names
    used = list(features) if features is not None else [c for c in present if c not in (target, *owners)]
    for name in [target, *owners, *used]:
        if present.count(name) != 1:
            there = "no column" if name not in present else "several columns"
            raise FedpingError(f"the file {path} has {there} '{name}'; it has {', '.join(present)}")
    if not used:
        raise FedpingError(f"the file {path} has no column beside {', '.join((target, *owners))} to predict from")
    if target in used or len(set(used)) < len(used):
        raise FedpingError(
            f"the features {', '.join(used)} have the target '{target}' or a column twice; name other columns once"
        )
    return used


_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
"""Names of the separators of tables that aren't separated by commas."""

_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
"""Byte-order marks at the beginning of files in UTF-16."""

_MOST_OF_A_LINE = 2**20


def read_arrow(path: Path) -> Any:
    """Return a file as a :class:`pyarrow.Table`, by its suffix; a folder holds Parquet files.

    Raises:
        FedpingError: the file does not exist or does not have the format of its suffix. The message names rows but
            doesn't quote them, since it may end up in a log.
    """
    import pyarrow as pa

    if not path.exists():
        raise FedpingError(f"there is no file {path}; give the path of a CSV, Parquet or Arrow file")
    reader = _reader(path)
    if path.is_file() and not path.stat().st_size:
        raise FedpingError(_empty(path))
    try:
        read = reader(path)
        " ".join(read.column_names)  # raises for names that aren't UTF-8
        read.validate(full=True)  # Arrow trusts the offsets in a file, which may point anywhere in memory
    except UnicodeDecodeError as error:
        raise FedpingError(f"the names of the columns of {path} are not in UTF-8; save the table as UTF-8") from error
    except (pa.ArrowException, OSError) as error:
        if reader is _csv and isinstance(error, pa.ArrowInvalid):
            raise FedpingError(_csv_trouble(path)) from error
        reason = str(error).splitlines()[0].rstrip(".")
        raise FedpingError(f"the file {path} cannot be read as what its name says that it is: {reason}") from error
    if reader is _csv and read.num_columns == 1 and (trouble := _separator_trouble(path, _first_line(path))):
        raise FedpingError(trouble)
    return read


def spellings(path: Path, read: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return columns of names, such as owners and classes, in the spelling of a CSV file.

    Args:
        path: the file.
        read: the result of :func:`read_arrow` for the file.
        names: columns that the file has once.

    Returns:
        Columns of texts by name. A column that was read as texts is left out, and so is every column of a file whose
        format has types.
    """
    import pyarrow as pa
    from pyarrow import csv, types

    wanted = [name for name in dict.fromkeys(names) if not is_text(read[name]) and not read[name].null_count]
    wanted = [name for name in wanted if not types.is_binary(read[name].type)]  # binary columns are not UTF-8
    if _reader(path) is not _csv or not wanted:
        return {}
    options = csv.ConvertOptions(include_columns=wanted, column_types=dict.fromkeys(wanted, pa.string()))
    found = csv.read_csv(path, convert_options=options)
    return {name: found[name] for name in wanted}


def _reader(path: Path) -> Callable[[Path], Any]:
    ending = ".parquet" if path.is_dir() else Path(path.name.removesuffix(".gz")).suffix.lower()
    if ending not in _READERS:
        raise FedpingError(
            f"the name of {path} ends in none of {', '.join(_READERS)}; save the table as one of these formats"
        )
    return _READERS[ending]


def _csv(path: Path) -> Any:
    from pyarrow import csv

    # An empty field in a text column is missing too; a text that looks like a missing value, such as "NA", is quoted.
    marks = [*csv.ConvertOptions().null_values, "?"]  # UCI's data sets have a question mark
    options = csv.ConvertOptions(null_values=marks, strings_can_be_null=True, quoted_strings_can_be_null=False)
    return csv.read_csv(path, convert_options=options)


def _csv_trouble(path: Path) -> str:
    """Return the problem with a CSV file that Arrow can't read. Arrow's own message would quote a row."""
    line = _first_line(path)
    if line.startswith(_UTF_16):
        return f"the file {path} is in UTF-16; save the table as CSV in UTF-8"
    if trouble := _separator_trouble(path, line):
        return trouble
    if row := _first_odd_row(path):
        number, values, columns = row
        return (
            f"row {number} of {path} has another number of columns ({values}) than the row of names ({columns}); leave "
            "an empty place between commas where a value is missing, write numbers with a decimal point, and put texts "
            "that have a comma in quotes"
        )
    if not line.strip():
        return _empty(path)
    return f"the file {path} is no table of CSV; save the table as CSV with commas in UTF-8, or as Parquet"


def _empty(path: Path) -> str:
    return f"the file {path} is empty; save the table again"


def _separator_trouble(path: Path, line: bytes) -> str | None:
    """Return the problem with a table whose first line has another separator than commas; None for commas.

    Numbers may have commas for decimal points, also in the first line if it has no names.
    """
    for mark, name in _SEPARATORS.items():
        if line.count(mark.encode()) >= max(1, line.count(b",")):
            return f"the columns of {path} are separated by {name}; save the table with commas, and decimal points"
    return None


def _first_line(path: Path) -> bytes:
    import pyarrow as pa

    with pa.input_stream(path) as opened:  # unpacks files by their suffix
        return bytes(opened.read(_MOST_OF_A_LINE)).lstrip(b"\r\n").partition(b"\n")[0]


def _first_odd_row(path: Path) -> tuple[int, int, int] | None:
    """Return the first row whose number of values differs from that of names: the row's number, and both counts.

    Rows are counted from 1 after the row of names, as elsewhere. Arrow reports the number only in a single thread.
    """
    import pyarrow as pa
    from pyarrow import csv

    found: list[tuple[int, int, int]] = []

    def seen(row: Any) -> str:
        found.append((row.number - 1, row.actual_columns, row.expected_columns))
        return "error"

    with contextlib.suppress(pa.ArrowInvalid):
        csv.read_csv(
            path,
            read_options=csv.ReadOptions(use_threads=False),
            parse_options=csv.ParseOptions(invalid_row_handler=seen),
        )
    return found[0] if found else None


def _parquet(path: Path) -> Any:
    from pyarrow import parquet

    return parquet.read_table(path)


def _arrow(path: Path) -> Any:
    from pyarrow import feather

    return feather.read_table(path)


_READERS: dict[str, Callable[[Path], Any]] = {
    ".csv": _csv,
    ".parquet": _parquet,
    ".arrow": _arrow,
    ".feather": _arrow,
}
