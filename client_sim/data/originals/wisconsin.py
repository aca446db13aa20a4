"""The original Wisconsin breast cancer table, ``breast-cancer-wisconsin.data``, in which 16 of 699 rows have a gap.

Source: Wolberg and Mangasarian 1990, *Multisurface Method of Pattern Separation*, and the names file that comes with
the table.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedping.client_sim.data.originals.reading import NoSettings, bytes_of, damaged, reading
from fedping.client_sim.data.table import Table, Target
from fedping.protocol.errors import FedpingError

FILE = "breast-cancer-wisconsin.data"
CELLS = (
    *("clump_thickness", "cell_size", "cell_shape", "marginal_adhesion", "epithelial_cell_size"),
    *("bare_nuclei", "bland_chromatin", "normal_nucleoli", "mitoses"),
)
"""Properties of a sample, each graded from 1 to 10."""

DIAGNOSIS = Target("diagnosis", ("benign", "malignant"))
_CLASSES = {b"2": 0, b"4": 1}
_MISSING = b"?"
_GRADES = range(1, 11)


def wisconsin(folder: Path, _: NoSettings) -> Table:
    """Return samples of breast tissue by nine grades from 1 to 10, some of them missing; class 1 is malignant.

    Each line has a sample's number, which isn't used, its grades, and 2 for benign or 4 for malignant. ``?`` marks a
    missing grade.
    """
    file = _file(folder)
    lines = [line.strip() for line in bytes_of(file).splitlines()]
    rows, classes = [], []
    with reading(file):
        for number, line in enumerate(lines, 1):
            if not line:
                continue
            fields = [field.strip() for field in line.split(b",")]
            if len(fields) != len(CELLS) + 2 or fields[-1] not in _CLASSES:
                raise damaged(file, f"line {number} isn't a sample's number, {len(CELLS)} grades, and 2 or 4")
            rows.append([_grade(field, file, number) for field in fields[1:-1]])
            classes.append(_CLASSES[fields[-1]])
    if not rows:
        raise damaged(file, "it has no samples")
    x = np.array(rows, np.float64)
    return Table(x, np.array(classes, np.int64), CELLS, DIAGNOSIS, gaps=bool(np.isnan(x).any()))


def files_of_wisconsin(folder: Path) -> list[Path]:
    """Return the file of the table in a folder.

    Raises:
        FedpingError: the file is missing.
    """
    return [_file(folder)]


def _file(folder: Path) -> Path:
    file = folder / FILE
    if not file.is_file():
        raise FedpingError(
            f"the folder {folder} has no file {FILE}. Download it from UCI's page of the data set 15, Breast Cancer "
            "Wisconsin (Original)"
        )
    return file


def _grade(field: bytes, file: Path, line: int) -> float:
    if field == _MISSING:
        return np.nan
    if not field.isdigit() or len(field) > 2 or int(field) not in _GRADES:
        raise damaged(file, f"line {line} has a grade that is neither from 1 to 10 nor ?")
    return float(field)
