"""The files that a round reads. They are listed once, with their rows, and recorded in the version's lineage."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from msgspec.structs import replace

from fedping.model_store.store import ModelStore
from fedping.model_store.version import InputFile
from fedping.protocol.landing import Landing, landed_at, open_landing
from fedping.protocol.location import Place, absolute, child, key_in
from fedping.protocol.ping import DocumentType
from fedping.protocol.study import Line, Study
from fedping.server_jobs.round.ping_file import open_ping_file
from fedping.server_jobs.round.plan import LateFile, Rules, Work

AHEAD_MS = 86_400_000
"""Maximum milliseconds by which clocks of ingest hosts may be ahead of the round's clock: a day."""


@dataclass(frozen=True, slots=True)
class Late:
    """The pings of older versions that a round merges, each ping in at most one round.

    ``first`` is the oldest version whose pings still count. ``used`` has the files that rounds used, by version.
    """

    first: int
    used: Mapping[int, Sequence[InputFile]]

    @property
    def used_paths(self) -> frozenset[str]:
        """The paths of all used files."""
        return frozenset(file.path for file in chain.from_iterable(self.used.values()))

    def before(self, inputs: Sequence[InputFile], iteration: int) -> tuple[InputFile, ...]:
        """Return the files used by earlier rounds, for those older versions that a round's inputs contain.

        A ping that landed again after its round is both in these files and in the inputs, so the round must recognise
        it.
        """
        ages = sorted({file.age for file in inputs if file.age})
        return tuple(
            InputFile(file.path, file.rows, age, file.digest)
            for age in ages
            for file in self.used.get(iteration - age, ())
        )


def late_for(store: ModelStore, study: str, line: Line, iteration: int) -> Late | None:
    """Return the late pings that count in a round on version ``iteration``; None if the line doesn't merge late pings.

    The used files are read from the lineages of the newest versions, up to the maximum age, so they don't depend on
    the time of the round. Pings of versions before a rollback are left out.
    """
    if line.pipeline.staleness is None:
        return None
    first = max(0, iteration - line.pipeline.staleness.most)
    used: dict[int, list[InputFile]] = defaultdict(list)
    rewritten = store.studies.rewritten(study)
    for number in range(iteration, first, -1):
        lineage = store.versions.sources(study, line.name, number).lineage
        if lineage.restored is not None:
            return Late(number, used)
        for file in lineage.inputs:
            # an erasure has replaced the file, whose remaining pings are still recognised
            current = replace(file, digest="") if file.path in rewritten else file
            used[number - 1 - file.age].append(current)
    return Late(first, used)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The files in a line's landing folders at the beginning of a round.

    Attributes:
        inputs: the files of the current version in the order of their names, then the files of older versions that
            count.
        before: files of these older versions that earlier rounds used.
        stale, future: numbers of other pings, of older and of newer versions, that landed since the previous round.
        window_end_ms: the latest plausible landing, Unix ms.
    """

    inputs: tuple[InputFile, ...]
    before: tuple[InputFile, ...] = ()
    stale: int
    future: int
    window_end_ms: int

    @property
    def rows(self) -> int:
        """The number of pings, including duplicates and unusable pings."""
        return sum(file.rows for file in self.inputs)


class Window(NamedTuple):
    """The period of landing times in which a round counts pings of other versions.

    Attributes:
        since_ms: the latest landing time counted by earlier rounds, Unix ms.
        now_ms: the time of the round, Unix ms; None for this machine's clock. A landing time in a file's name is
            ignored if it is more than :data:`AHEAD_MS` later. Otherwise, the next rounds' windows would start there.
    """

    since_ms: int = 0
    now_ms: int | None = None


ALL_LANDED = Window()


def list_landed(
    landing: Place | Landing,
    study: Study,
    line: str,
    iteration: int,
    window: Window = ALL_LANDED,
    late: Late | None = None,
) -> Manifest:
    """Return the files that a round on version ``iteration`` reads; only their footers are read here.

    Args:
        landing: the landing folder, or its address.
        study: the study.
        line: the line's name.
        iteration: the version.
        window: the landing times in which pings of other versions are counted.
        late: the older versions whose pings count too; None without late pings.

    Raises:
        FedpingError: the landing folder doesn't exist.
        UnreadableFile: a file is damaged, or doesn't contain the study's pings.
    """
    landing = open_landing(landing)
    landing.check()
    now_ms = round(time.time() * 1000) if window.now_ms is None else window.now_ms
    latest = now_ms + AHEAD_MS
    since_ms = window.since_ms if window.since_ms <= latest else now_ms
    files = landing.files_by_iteration(study.name, line)
    first, used = (late.first, late.used_paths) if late else (iteration, frozenset())
    counting = [number for number in sorted(files, reverse=True) if first <= number <= iteration]
    listed = [(file, key_in(landing.place, file), iteration - n) for n in counting for file in files[n]]
    inputs = tuple(_input(f, path, age, study.document) for f, path, age in listed if path not in used)
    times = [stamp for file in chain.from_iterable(files.values()) if (stamp := landed_at(file) or 0) <= latest]
    others = {number: _landed_between(of, since_ms, latest) for number, of in files.items() if number not in counting}
    return Manifest(
        inputs=inputs,
        before=late.before(inputs, iteration) if late else (),
        stale=sum(_rows(file, study.document) for number, of in others.items() if number < first for file in of),
        future=sum(_rows(file, study.document) for number, of in others.items() if number > iteration for file in of),
        window_end_ms=max([since_ms, *times]),
    )


def work_on(landing: Landing, inputs: Sequence[InputFile], rules: Rules, before: Sequence[InputFile] = ()) -> Work:
    """Return the work for an engine: the input files in the order of their names, and files of earlier rounds."""
    ordered = sorted(inputs, key=lambda file: file.path)
    older = [(file, True) for file in before] + [(file, False) for file in ordered if file.age]
    return Work(
        paths=tuple(_address(landing, file) for file in ordered if not file.age),
        rows=sum(file.rows for file in (*before, *inputs)),
        rules=rules,
        late=tuple(LateFile(path=_address(landing, file), age=file.age, done=done) for file, done in older),
        digests={_address(landing, file): file.digest for file in (*before, *inputs) if file.digest},
    )


def _address(landing: Landing, file: InputFile) -> str:
    return absolute(child(landing.place, file.path))


def _landed_between(files: Sequence[Place], since_ms: int, latest: int) -> list[Place]:
    return [file for file in files if since_ms < (landed_at(file) or 0) <= latest]


def _input(file: Place, path: str, age: int, document: DocumentType) -> InputFile:
    pings = open_ping_file(file, document)
    return InputFile(path, pings.rows, age, pings.landed.digest)


def _rows(file: Place, document: DocumentType) -> int:
    return open_ping_file(file, document).rows
