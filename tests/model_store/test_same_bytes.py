"""Written data don't depend on the version of Python: they are compared with earlier files."""

from pathlib import Path

import msgspec

from fedping.protocol.json_schema import DOCUMENTS, json_schema
from fedping.server_jobs.optimize import first_state, in_order
from tests.support.written import digests, write_store

EXPECTED = Path(__file__).with_name("same_bytes.json")
"""Digests that must never change, because they identify published documents; and a store's weights. Entries for newly
published kinds are added by hand. The versions' digests are format 1's."""

FIRST_OF_FORMAT_2 = "778f8a597537bd80caf839452166864eceec105404a0909e2f38d2131d28e9a5"


def found(folder: Path) -> dict[str, object]:
    store = write_store(folder)
    written = [store.version("study", "main", n) for n in store.iterations("study", "main")]
    assert written[0].digest == FIRST_OF_FORMAT_2
    first = first_state(store.study("study").line("main"))
    versions = [msgspec.structs.replace(each, format=1, state=in_order(each.state, first)) for each in written]
    return {
        "digests": digests(),
        "version 0": versions[0].digest,
        "weights": [version.weights for version in versions],
        "state": [version.state for version in versions],
        "files": sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.parquet")),
    }


def test_digests_draws_and_versions_are_those_that_were_written_before(tmp_path: Path) -> None:
    assert msgspec.json.decode(msgspec.json.encode(found(tmp_path))) == msgspec.json.decode(EXPECTED.read_bytes())


def test_no_description_of_a_schema_shows_how_its_source_is_indented() -> None:
    """Before Python 3.13, whose compiler strips the indentation, it would."""
    descriptions = [line for name in DOCUMENTS for line in json_schema(name).splitlines() if '"description":' in line]
    assert len(descriptions) > 50
    assert [line for line in descriptions if _indented_throughout(line)] == []


def _indented_throughout(line: str) -> bool:
    """Return whether every line after the first is indented, so that the indentation isn't part of the text."""
    later = [each for each in line.split(r"\n")[1:] if each.strip('", ')]
    return bool(later) and all(each.startswith(" ") for each in later)
