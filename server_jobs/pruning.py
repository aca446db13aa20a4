"""Pruning: removing the landed pings that no version to be kept needs, and no round to come.

A version is computed again from the files of its manifest and, where late pings count, from those that earlier rounds
have used. The rounds to come take those of the newest version and of the versions before it that may still be late.
What is needed by neither, and landed before the first round of those to be kept had looked, may go. So analyses still
have all pings of every arm from then on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from fedping.model_store.store import ModelStore
from fedping.model_store.version import Sources
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.landing import Landing, landed_at, open_landing
from fedping.protocol.location import Place, key_in
from fedping.protocol.study import Line, Study
from fedping.server_jobs.deletion import in_words
from fedping.server_jobs.round.manifest import late_for

SETTLED_MS = 3_600_000
"""How long landed files are left alone: ingest looks there for retries, and for what a compaction that was killed has
landed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning:
    """What is to be removed of one study.

    Attributes:
        study: its name.
        landing: the landing folder.
        files: the landed files that go.
        bytes: their size.
        versions: by line those that can be computed again now, and cannot any more then.
        kept: by line the oldest version that can still be computed again.
    """

    study: str
    landing: Landing
    files: tuple[Place, ...]
    bytes: int
    versions: Mapping[str, tuple[int, ...]]
    kept: Mapping[str, int]

    @property
    def told(self) -> tuple[str, ...]:
        """What goes and what is given up with it, a phrase each."""
        gone = f"{len(self.files):,} landed files of {self.bytes:,} bytes"
        lost = (
            f"line {line}: versions {in_words(numbers)} can no longer be computed again, and those from "
            f"{self.kept[line]:,} on can"
            for line, numbers in self.versions.items()
            if numbers
        )
        return (gone, *lost)


def pruning(store: ModelStore, landing: Place, name: str, keep: int, now_ms: int) -> Pruning:
    """Return what of a study may go if the newest ``keep`` versions of each line are to be computed again.

    Pings of arms without a line, which are in no version, are kept as far back as those of all lines are.

    Raises:
        InvalidSettings: the study is private, whose rounds delete their pings.
        StoreError: there is no such study, or a version cannot be read.
    """
    study = store.study(name)
    if study.is_private:
        raise InvalidSettings(f"study '{name}' is private, and its rounds delete its pings: there is nothing to prune")
    latest = now_ms - SETTLED_MS
    pings = open_landing(landing)
    parts = [_of_line(store, pings, study, line, keep, latest) for line in study.lines]
    since = min((part.since for part in parts), default=0)
    files = [file for part in parts for file in part.files]
    files += _older(pings.files_by_iteration(study.name, None), min(since, latest))
    return Pruning(
        study=name,
        landing=pings,
        files=tuple(files),
        bytes=sum(_size(pings, file) for file in files),
        versions={part.line: part.versions for part in parts},
        kept={part.line: part.oldest for part in parts},
    )


def _size(landing: Landing, file: Place) -> int:
    try:
        return landing.size(file)
    except FileNotFoundError:  # by somebody else's prune
        return 0


def remove(found: Pruning) -> Iterator[int]:
    """Remove the files one by one, and folders that are empty then; yield how many are gone so far."""
    for number, file in enumerate(found.files, 1):
        found.landing.remove(file)
        yield number


@dataclass(frozen=True, slots=True)
class _Part:
    """What goes of a line; ``since`` is the landing time from which on its pings are kept, 0 for all of them."""

    line: str
    files: tuple[Place, ...]
    versions: tuple[int, ...]
    oldest: int
    since: int


def _of_line(store: ModelStore, landing: Landing, study: Study, line: Line, keep: int, latest: int) -> _Part:
    head = store.head(study.name, line.name)
    numbers = store.iterations(study.name, line.name)
    sources = {number: store.versions.sources(study.name, line.name, number) for number in numbers}
    kept = numbers[-keep:]
    needed = {path for number in kept for path in _needed(store, study, line, sources[number])}
    staleness = line.pipeline.staleness
    # one version more, for a round on the version before that is about to lose against the newest
    floor = head.iteration - 1 - (0 if staleness is None else staleness.most)
    parent = sources[kept[0]].parent
    since = 0 if parent is None else sources[parent].lineage.window_end_ms
    landed = landing.files_by_iteration(study.name, line.name)
    older = _older(landed, min(latest, since), floor)
    files = tuple(file for file in older if key_in(landing.place, file) not in needed)
    going = {key_in(landing.place, file) for file in files}
    keys = {key_in(landing.place, file) for file in chain.from_iterable(landed.values())}
    # a version that was made of files which are no longer all there was given up before
    there = [number for number in numbers[:-keep] if 0 < len(made := _inputs(sources[number])) == len(made & keys)]
    given_up = tuple(number for number in there if going.intersection(_needed(store, study, line, sources[number])))
    return _Part(line.name, files, given_up, kept[0], since)


def _needed(store: ModelStore, study: Study, line: Line, version: Sources) -> Iterator[str]:
    """Yield the paths of the files that a version is computed again from."""
    inputs = version.lineage.inputs
    yield from (file.path for file in inputs)
    if version.parent is not None and any(file.age for file in inputs):
        late = late_for(store, study.name, line, version.parent)
        yield from (file.path for file in (late.before(inputs, version.parent) if late else ()))


def _inputs(version: Sources) -> set[str]:
    return {file.path for file in version.lineage.inputs}


def _older(landed: Mapping[int, list[Place]], upto_ms: int, floor: int | None = None) -> Iterator[Place]:
    """Yield the files of a line that landed until then, of versions below ``floor``; those of foreign names stay."""
    for number, files in landed.items():
        if floor is None or number < floor:
            yield from (file for file in files if (stamp := landed_at(file)) is not None and stamp <= upto_ms)
