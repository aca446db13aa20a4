"""The golden documents, their files, and the expected result of reading each.

`frozen/NAME.tar.gz` has documents written by fedping at :data:`COMMIT` or later, and `expected.json` with the
reader's result at the time. `generate.py` made them; never write one again because a test fails.
"""

import gzip
import importlib
import io
import json
import math
import tarfile
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

COMMIT = "3d425e4fa48c55000404126043ba7b2edb0d284b"
LATER: dict[str, str] = {
    "lists": "a8af754d2f3d8db87c2f5761ad940e1934655aae",
    "protected": "8f5dec9fbb002bc884765f4ad08da682b7fe2207",
}
"""Commits of the programs that wrote documents which :data:`COMMIT` could not, by name."""
FROZEN = Path(__file__).parent / "frozen"

GOLDEN = {
    "lines": "stores",
    "uploads": "stores",
    "guarded": "stores",
    "lives": "stores",
    "private": "private",
    "runs": "runs",
    "clients": "clients",
    "commands": "commands",
    "landings": "landings",
    "browsers": "browsers",
    "analysed": "analysed",
    "lists": "lists",
    "protected": "protected",
}
"""The module of `tests/golden/reading` for each document; its ``read`` reads, continues and recomputes the document.

`tests/golden/writing/NAME.py` wrote the document.
"""

CLOSELY = {"commands", "analysed"}
"""Documents with figures from SciPy, whose versions differ in the last digits."""

ON_SPARK = {"analysed"}
"""Documents whose readers use Spark."""

_EXACT_AUC = "the AUC is exact and was computed from bins"

EXCEPTIONS: dict[tuple[str, str], str] = {
    ("runs", "*auc*"): _EXACT_AUC,
    ("runs", "*bytes.*metrics.parquet"): f"{_EXACT_AUC}; the table has it",
    ("runs", "*notes"): f"{_EXACT_AUC}; a note says which runs have another one, and new notes have come",
    ("runs", "files.bytes.*/versions/*.json"): f"{_EXACT_AUC}, so the run begins again; its documents have new fields",
    ("lines", "after.lines/*.digest"): "the lineage of a new version counts clients whose examples were capped",
    ("analysed", "interim.*"): "interim looks decide nothing of few clients, and by values that are not winsorised",
    ("commands", "shipped.*.as a new study"): "a new study has a quorum of 1.5 %, and its losses are clipped",
    ("runs", "own.bytes.code.json"): "the folder notes the modules that a loss imports, too",
    (
        "runs",
        "hushed.summary.*sentence",
    ): "summaries have plainer sentences; they are for reading, and nothing reads them",
    ("runs", "hushed.summary.caution"): "the same",
    ("runs", "hushed.summary.results.note"): "the same",
    ("clients", "institutions.*.files"): "a folder has marks of its table's rows, so that another table is refused",
}
"""Reasons for changed values, by document and pattern of places, as in ``("runs", "*.metrics.* auc.*")``."""

CLOSE = 1e-9
"""Maximum relative difference of numbers computed by other routines of linear algebra."""

TO_THE_BIT = ("kernel", "bytes", "digest")
"""Parts of keys whose values are then not compared: digests, and lengths of numbers written as text."""

Read = Callable[[Path], dict[str, Any]]


def reader(name: str) -> Read:
    """Return the reader of a golden document: a function of the folder into which it was unpacked."""
    found: Read = importlib.import_module(f"tests.golden.reading.{GOLDEN[name]}").read
    return found


def pack(name: str, documents: Path, expected: dict[str, Any]) -> Path:
    """Freeze a folder of documents with the expected result of reading them; return the archive."""
    told = json.dumps(expected, indent=1, sort_keys=True).encode()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        about = tarfile.TarInfo("expected.json")
        about.size = len(told)
        archive.addfile(about, io.BytesIO(told))
        for path in sorted(documents.rglob("*")):
            archive.add(path, f"documents/{path.relative_to(documents)}", recursive=False, filter=_plain)
    FROZEN.mkdir(exist_ok=True)
    file = FROZEN / f"{name}.tar.gz"
    file.write_bytes(gzip.compress(packed.getvalue(), 9, mtime=0))
    return file


def _plain(about: tarfile.TarInfo) -> tarfile.TarInfo:
    about.uid = about.gid = 0
    about.uname = about.gname = ""
    about.mtime = 1_800_000_000
    return about


def unpack(name: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Unpack a golden document into a folder; return its path, and the expected result of reading it."""
    with tarfile.open(FROZEN / f"{name}.tar.gz") as archive:
        archive.extractall(folder, filter="tar")
    documents = folder / "documents"
    documents.mkdir(exist_ok=True)
    return documents, json.loads((folder / "expected.json").read_bytes())


def differences(
    expected: Any, found: Any, place: str = "", close: float = 0.0, leaving_out: tuple[str, ...] = ()
) -> dict[str, str]:
    """Return the differences from the expected JSON, in words by place; additional values don't count.

    Args:
        expected, found: JSON.
        place: the place of both in the whole document.
        close: maximum difference of numbers, relative to the larger.
        leaving_out: parts of keys whose values are not compared.
    """
    if isinstance(expected, dict) and isinstance(found, dict):
        told: dict[str, str] = {}
        if expected.get("kernel") != found.get("kernel"):  # other last bits
            close, leaving_out = CLOSE, TO_THE_BIT
        for key in expected:
            below = f"{place}.{key}" if place else str(key)
            if key not in found:
                told[below] = "is missing"
            elif not any(part in key for part in leaving_out):
                told |= differences(expected[key], found[key], below, close, leaving_out)
        return told
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = enumerate(zip(expected, found, strict=True))
        return {
            k: v
            for i, (one, two) in pairs
            for k, v in differences(one, two, f"{place}.{i}", close, leaving_out).items()
        }
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (expected, found))
    if close and numbers and math.isclose(expected, found, rel_tol=close, abs_tol=close):
        return {}
    return {} if expected == found else {place: f"was {_short(expected)}, is {_short(found)}"}


def unexcepted(name: str, told: dict[str, str]) -> dict[str, str]:
    """Return the differences of a document that no exception covers.

    Raises:
        AssertionError: an exception covers no difference.
    """
    for golden, pattern in EXCEPTIONS:
        if golden == name:
            excepted = {place for place in told if fnmatchcase(place, pattern)}
            compared = not any(part in pattern for part in TO_THE_BIT)  # on every processor
            assert excepted or not compared, f"{pattern} of {name} is as it was, and needs no exception"
            told = {place: words for place, words in told.items() if place not in excepted}
    return told


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]} …"
