"""Which files a round reads: listed once, with their rows, and kept in the version's lineage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from model_store.version import InputFile
from protocol.documents import DocumentType
from protocol.errors import FedpingError
from protocol.landing import iterations, landed_at, landed_files, partition
from protocol.study import Study
from server_jobs.round.engine import Work
from server_jobs.round.ping_file import open_ping_file
from server_jobs.round.rules import Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What lay in a line's landing folders when the round began.

    ``inputs`` are the files of the current version in the order of their names. ``stale`` and ``future`` count the
    pings of older and newer versions that landed after the previous round had looked, ``window_end_ms`` (milliseconds
    since 1970) is the latest landing that this one has seen.
    """

    inputs: tuple[InputFile, ...]
    stale: int
    future: int
    window_end_ms: int

    @property
    def rows(self) -> int:
        """The pings of the current version, duplicates and unusable ones included."""
        return sum(file.rows for file in self.inputs)


def list_landed(landing: Path, study: Study, line: str, iteration: int, since_ms: int) -> Manifest:
    """List what a round on version ``iteration`` has to do with; reads footers only.

    Raises:
        FedpingError: there is no landing folder.
        UnreadableFile: a file is not whole, or not of the study's pings.
    """
    if not landing.is_dir():
        raise FedpingError(
            f"there is no landing folder at {landing}; start 'fedping ingest' with it, or correct --landing"
        )
    late = {
        number: _landed_since(landing, study.name, line, number, since_ms)
        for number in iterations(landing, study.name, line)
    }
    current = landed_files(partition(landing, study.name, line, iteration))
    others = {number: files for number, files in late.items() if number != iteration}
    seen = [stamp for files in (current, *others.values()) for file in files if (stamp := landed_at(file)) is not None]
    return Manifest(
        inputs=tuple(InputFile(file.relative_to(landing).as_posix(), _rows(file, study.document)) for file in current),
        stale=sum(
            _rows(file, study.document) for number, files in others.items() if number < iteration for file in files
        ),
        future=sum(
            _rows(file, study.document) for number, files in others.items() if number > iteration for file in files
        ),
        window_end_ms=max(seen, default=since_ms),
    )


def work_on(landing: Path, inputs: Sequence[InputFile], rules: Rules) -> Work:
    """Return what an engine has to do: the input files, in the order of their names."""
    ordered = sorted(inputs, key=lambda file: file.path)
    paths = tuple(str(landing.absolute() / file.path) for file in ordered)
    return Work(paths=paths, rows=sum(file.rows for file in ordered), rules=rules)


def _landed_since(landing: Path, study: str, line: str, iteration: int, since_ms: int) -> list[Path]:
    files = landed_files(partition(landing, study, line, iteration))
    return [file for file in files if (landed_at(file) or 0) > since_ms]


def _rows(file: Path, document: DocumentType) -> int:
    return open_ping_file(file, document).rows
