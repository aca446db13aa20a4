"""Writes AOL4FOLTR as a table for the laboratory: real users, their queries with 20 candidates each, and their clicks.

The data set (Gregoriadis, Kang and Pouwelse 2025) has two files, which users download themselves. ``metadata.csv`` has
a row for each query, with ``qid``, ``user_id`` and ``timestamp``. ``letor.txt``, also as ``.gz``, has a line for each
candidate, with a query's candidates together: whether it was clicked, ``qid:7``, and 103 features as ``1:0.5 2:0 ...``.

The table has a row for each candidate with ``qid``, ``user_id``, ``timestamp``, ``clicked`` and ``f1`` to ``f103``. A
feature is scaled to [0, 1] within its list, as in the authors' experiments. One that all candidates of a list share,
such as the length of the query, is 0: it cannot change their order.

    python -m fedping.experiments.papers.scripts.aol4foltr letor.txt.gz metadata.csv aol.parquet --users 100
"""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fedping.protocol.errors import FedpingError

FEATURES = 103
"""Number of features of a candidate."""

MOST_CANDIDATES = 1000
"""Maximum number of candidates of a query."""

LONGEST_LINE = 65_536
"""Maximum length of a line, in characters."""

_ROWS_AT_A_TIME = 100_000


class Candidates(NamedTuple):
    """The candidates of a query: its id, whether each was clicked, shape (c,), and their features, shape (c, 103)."""

    qid: int
    clicked: NDArray[np.bool_]
    features: NDArray[np.float64]


class Written(NamedTuple):
    """Numbers of lists: written, without exactly one click, and of users that are left out."""

    lists: int
    odd: int
    others: int


def candidates_in(path: Path) -> Iterator[Candidates]:
    """Yield the queries of a LETOR file in its order.

    Raises:
        FedpingError: the file does not exist, or a line has another form.
    """
    if not path.is_file():
        raise FedpingError(f"{path} does not exist. Give the path of letor.txt or letor.txt.gz")
    qid, clicked, rows = -1, list[bool](), list[NDArray[np.float64]]()
    with _opened(path) as lines:
        for number, (label, query, values) in _parsed(path, lines):
            if query != qid and rows:
                yield Candidates(qid, np.array(clicked), np.array(rows))
                clicked, rows = [], []
            if len(rows) == MOST_CANDIDATES:
                raise FedpingError(f"{path} line {number}: query {query} has more than {MOST_CANDIDATES:,} candidates")
            qid = query
            clicked.append(label)
            rows.append(values)
    if rows:
        yield Candidates(qid, np.array(clicked), np.array(rows))


def _opened(path: Path) -> IO[str]:
    return gzip.open(path, "rt", encoding="ascii") if path.suffix == ".gz" else path.open(encoding="ascii")


def _parsed(path: Path, lines: IO[str]) -> Iterator[tuple[int, tuple[bool, int, NDArray[np.float64]]]]:
    number = 0
    try:
        while line := lines.readline(LONGEST_LINE):
            number += 1
            words = line.partition("#")[0].split()
            if words:
                yield number, _candidate(words)
    except (ValueError, EOFError, gzip.BadGzipFile) as error:
        raise FedpingError(
            f"{path} line {number}: expected a label, qid:NUMBER and features such as 1:0.5, up to {FEATURES}. Check "
            "that the file is complete"
        ) from error


def _candidate(words: Sequence[str]) -> tuple[bool, int, NDArray[np.float64]]:
    name, _, query = words[1].partition(":") if len(words) > 1 else ("", "", "")
    if name != "qid":
        raise ValueError(name)
    values = np.zeros(FEATURES)
    for word in words[2:]:
        at, _, value = word.partition(":")
        if not 1 <= int(at) <= FEATURES:
            raise ValueError(at)
        values[int(at) - 1] = float(value)
    return float(words[0]) > 0, int(query), np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)


def scaled(features: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return features, shape (c, 103), scaled to [0, 1] within the list; 0 if all candidates have the same value."""
    low, spread = features.min(axis=0), np.ptp(features, axis=0)
    found: NDArray[np.float64] = (features - low) / np.where(spread > 0, spread, 1.0)
    return found


def write_table(letor: Path, metadata: Path, out: Path, users: int | None = None) -> Written:
    """Write the table, and return the numbers of lists.

    Args:
        letor: the file of the data set's candidates.
        metadata: the file of its queries.
        out: path of the Parquet file.
        users: number of users to keep, those with the most queries; all if None.

    Raises:
        FedpingError: a file can't be read, or a query has no row in the metadata or is in two places.
    """
    queries = _queries(metadata)
    kept = None if users is None else _most_active(queries["user_id"], users)
    ids = queries["qid"].to_numpy()
    order = np.argsort(ids, kind="stable")
    lists = odd = others = 0
    seen = np.zeros(len(ids), np.bool_)
    waiting: list[pa.Table] = []
    with pq.ParquetWriter(out, _SCHEMA) as writer:
        for found in candidates_in(letor):
            at = int(np.searchsorted(ids, found.qid, sorter=order))
            if at == len(ids) or ids[order[at]] != found.qid:
                raise FedpingError(f"{letor} has query {found.qid}, which {metadata} lacks. Take both of one download")
            row = int(order[at])
            if seen[row]:
                raise FedpingError(f"{letor} has query {found.qid} in two places. Sort its lines by query")
            seen[row] = True
            user = queries["user_id"][row].as_py()
            if kept is not None and user not in kept:
                others += 1
            elif found.clicked.sum() != 1 or len(found.clicked) < 2:
                odd += 1
            else:
                lists += 1
                waiting.append(_rows(found, user, queries["timestamp"][row].as_py()))
            if sum(map(len, waiting)) >= _ROWS_AT_A_TIME:
                writer.write_table(pa.concat_tables(waiting))
                waiting = []
        if waiting:
            writer.write_table(pa.concat_tables(waiting))
    return Written(lists, odd, others)


_NAMES = [f"f{number}" for number in range(1, FEATURES + 1)]
_SCHEMA = pa.schema(
    [
        ("qid", pa.int64()),
        ("user_id", pa.string()),
        ("timestamp", pa.string()),
        ("clicked", pa.int8()),
        *((name, pa.float64()) for name in _NAMES),
    ]
)


def _rows(found: Candidates, user: str, time: str) -> pa.Table:
    count = len(found.clicked)
    columns = [[found.qid] * count, [user] * count, [time] * count, found.clicked.astype(np.int8)]
    return pa.table([*columns, *scaled(found.features).T], schema=_SCHEMA)


def _queries(path: Path) -> pa.Table:
    names = {"qid": pa.int64(), "user_id": pa.string(), "timestamp": pa.string()}
    options = pyarrow.csv.ConvertOptions(include_columns=list(names), column_types=names)
    try:
        parsing = pyarrow.csv.ParseOptions(newlines_in_values=True)
        return pyarrow.csv.read_csv(path, convert_options=options, parse_options=parsing)
    except (OSError, KeyError, pa.ArrowInvalid) as error:
        raise FedpingError(
            f"{path} can't be read as a table of queries with the columns {', '.join(names)}: {error}"
        ) from error


def _most_active(of_queries: pa.ChunkedArray, users: int) -> set[str]:
    counts = sorted(pc.value_counts(of_queries).to_pylist(), key=lambda each: (-each["counts"], each["values"]))
    return {each["values"] for each in counts[:users]}


def main(argv: Sequence[str] | None = None) -> None:
    """Write the table that the arguments name."""
    parser = argparse.ArgumentParser(description="AOL4FOLTR as a table for the laboratory.")
    parser.add_argument("letor", type=Path)
    parser.add_argument("metadata", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--users", type=int, help="keep this number of users, those with the most queries")
    given = parser.parse_args(argv)
    written = write_table(given.letor, given.metadata, given.out, given.users)
    print(
        f"{written.lists:,} lists in {given.out}; left out: {written.odd:,} without exactly one click among two "
        f"candidates or more, {written.others:,} of other users"
    )


if __name__ == "__main__":
    main()
