"""Arrow tables from files in any of the usual formats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedping.protocol.errors import FedpingError


def read_arrow(path: Path) -> Any:
    """Return a file as a :class:`pyarrow.Table`, by its suffix; a folder holds Parquet files.

    Raises:
        FedpingError: the file does not exist or does not have the format of its suffix.
    """
    import pyarrow as pa

    if not path.exists():
        raise FedpingError(f"there is no file {path}; give the path of a CSV, Parquet or Arrow file")
    try:
        read = _reader(path)(path)
        named = " ".join(read.column_names)  # names that are no UTF-8 are found out here
    except UnicodeDecodeError as error:
        raise FedpingError(f"the names of the columns of {path} are not in UTF-8; save the table as UTF-8") from error
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise FedpingError(f"the file {path} cannot be read as what its name says that it is: {reason}") from error
    if read.num_columns == 1 and _reader(path) is _csv and any(mark in named for mark in ";\t|"):
        raise FedpingError(f"the columns of {path} are not separated by commas: {named}; save the table with commas")
    return read


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
    options = csv.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False)
    return csv.read_csv(path, convert_options=options)


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
