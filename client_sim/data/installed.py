"""Files inside installed packages, read in place without importing the package."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.learning.batch import FloatArray
from fedping.protocol.errors import FedpingError


def file_of(package: str, path: str) -> Path:
    """Return a file inside an installed package.

    Args:
        package: its import name.
        path: path of the file, relative to the package's folder.

    Raises:
        FedpingError: the package is not installed, or its version lacks the file.
    """
    spec = find_spec(package)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    if not folders:
        raise not_installed(package)
    file = Path(folders[0]) / path
    if not file.is_file():
        raise FedpingError(
            f"the installed package '{package}' has no file {path}; install the version that fedping's extra asks for: "
            'pip install "fedping[laboratory]"'
        )
    return file


def not_installed(package: str) -> FedpingError:
    """Return the error for a data set whose package is missing."""
    return FedpingError(
        f"this data set lies in the package '{package}', which is not installed; "
        'install it with: pip install "fedping[laboratory]"'
    )


Columns: TypeAlias = dict[str, NDArray[Any]]


def read_columns(file: Path) -> Columns:
    """Return each column of a CSV file, compressed or not, by its name without surrounding blanks."""
    from pyarrow import csv

    read = csv.read_csv(file)
    return {name.strip(): read[name].to_numpy() for name in read.column_names}


def matrix(columns: Columns, names: list[str]) -> FloatArray:
    """Return some columns as features, shape (N, names)."""
    return np.column_stack([columns[name] for name in names]).astype(np.float64)


def table_file(name: str) -> Columns:
    """Return the columns of one of the package's tables."""
    return read_columns(file_of("mlba", f"csvFiles/{name}.csv.gz"))
