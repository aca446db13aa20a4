"""The model store: studies and the versions of their lines, kept as blobs.

    <study>/study.json                     the study, as created
    <study>/<line>/versions/<n>.json       version n: weights, state, lineage; the truth
    <study>/<line>/public/<n>.json         what clients fetch, for a static file server; derived from the above
    <study>/<line>/public/latest.json      the same of the head

The head of a line is the version with the largest *number*. It can only be followed by number + 1, and a version's file
is created or not at all, so two publishers of one parent cannot both succeed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from model_store.blobs import Blobs, LocalBlobs
from model_store.version import PublicPart, Version
from protocol.digest import canonical_json
from protocol.errors import FedpingError
from protocol.study import Study

_T = TypeVar("_T")


class StoreError(FedpingError):
    """The store is missing, lacks what was asked for, or holds something that cannot be read."""


class VersionConflict(FedpingError):
    """Another publisher was first: the version exists already, and nothing was written."""


@dataclass(frozen=True)
class _Read:
    """A version as it was read; while its bytes are the same, so is it, and so is its digest."""

    key: str
    data: bytes
    version: Version


class ModelStore:
    """Studies and versions over any :class:`model_store.blobs.Blobs`; ``where`` names it in messages."""

    def __init__(self, blobs: Blobs, where: str) -> None:
        self._blobs = blobs
        self.where = where
        self._last_read: _Read | None = None

    def create_study(self, study: Study, first_versions: tuple[Version, ...]) -> bool:
        """Store a study and version 0 of each of its lines; return False if exactly this study was there already.

        Safe to repeat: what an interrupted call left out is added.

        Raises:
            StoreError: a study of this name exists and differs.
        """
        data = canonical_json(study)
        created = self._blobs.create(f"{study.name}/study.json", data)
        if not created and self.study(study.name) != study:
            raise StoreError(
                f"the store {self.where} already has a study '{study.name}' with other settings; versions and pings "
                "depend on them, so give the changed study a new name"
            )
        for version in first_versions:
            if self._blobs.create(_version_key(version), msgspec.json.encode(version)):
                created = True
            self.refresh_public(study.name, version.line)
        return created

    def studies(self) -> list[str]:
        """Return the names of the studies, sorted."""
        return sorted(name for name in self._blobs.names("") if self._blobs.read(f"{name}/study.json") is not None)

    def study(self, name: str) -> Study:
        """Return a study; raises :class:`StoreError` if the store has none of this name."""
        data = self._blobs.read(f"{name}/study.json")
        if data is None:
            there = ", ".join(self.studies()) or "none; make one with 'fedping study create'"
            raise StoreError(f"the store {self.where} has no study '{name}'; it has {there}")
        return self._decode(data, Study, f"{name}/study.json")

    def iterations(self, study: str, line: str) -> list[int]:
        """Return the numbers of the published versions, in numeric order."""
        stems = (name.removesuffix(".json") for name in self._blobs.names(f"{study}/{line}/versions"))
        return sorted(int(stem) for stem in stems if stem.isascii() and stem.isdigit())

    def head(self, study: str, line: str) -> Version:
        """Return the newest version of a line; raises :class:`StoreError` if there is no such study or line."""
        self.study(study).line(line)
        numbers = self.iterations(study, line)
        if not numbers:
            raise StoreError(
                f"line '{line}' of study '{study}' has no version in {self.where}; run 'fedping study create' with the "
                "study's file again, which adds what is missing"
            )
        return self.version(study, line, numbers[-1])

    def version(self, study: str, line: str, iteration: int) -> Version:
        """Return one version; raises :class:`StoreError` if it does not exist or cannot be read."""
        key, data = self._version_bytes(study, line, iteration)
        last = self._last_read
        if last is None or (last.key, last.data) != (key, data):
            self._last_read = last = _Read(key, data, self._decode(data, Version, key))
        return last.version

    def _version_bytes(self, study: str, line: str, iteration: int) -> tuple[str, bytes]:
        """Return the key of a version and what is kept there."""
        key = f"{study}/{line}/versions/{iteration}.json"
        data = self._blobs.read(key)
        if data is None:
            self.study(study).line(line)
            numbers = self.iterations(study, line)
            span = f"it has {numbers[0]} to {numbers[-1]}" if numbers else "it has none"
            raise StoreError(f"line '{line}' of study '{study}' has no version {iteration} in {self.where}; {span}")
        return key, data

    def newest_from(self, study: str, line: str, known: int) -> int:
        """Return the number of the head, given that version ``known`` exists; -1 stands for none.

        Numbers follow each other without a gap, so it is enough to look for the next one until there is none: this
        costs one look-up where :meth:`iterations` lists every version, and is for whoever asks often.
        """
        while self._blobs.read(f"{study}/{line}/versions/{known + 1}.json") is not None:
            known += 1
        return known

    def publish(self, version: Version) -> None:
        """Publish a version if its parent is the head; the compare-and-swap of a line.

        Raises:
            VersionConflict: the head is no longer the version's parent; nothing was written.
            StoreError: the version does not fit its study.
        """
        line = self.study(version.study).line(version.line)
        head = self.head(version.study, version.line)
        if version.spec_digest != line.spec.digest:
            raise StoreError(f"version {version.iteration} was computed for another model spec of line '{line.name}'")
        if (version.parent, version.parent_digest) != (head.iteration, head.digest):
            raise _conflict(version, head.iteration)
        if version.iteration != head.iteration + 1:
            raise StoreError(f"version {version.iteration} cannot follow version {head.iteration}")
        if not self._blobs.create(_version_key(version), msgspec.json.encode(version)):
            raise _conflict(version, version.iteration)
        self.refresh_public(version.study, version.line)

    def refresh_public(self, study: str, line: str) -> None:
        """Bring the static files of a line up to its head: what a publisher that died early left undone."""
        folder = f"{study}/{line}/public"
        there = set(self._blobs.names(folder))
        numbers = self.iterations(study, line)
        document = b""
        for number in numbers:
            if f"{number}.json" not in there or number == numbers[-1]:
                document = self.public_document(study, line, number)
            if f"{number}.json" not in there:
                self._blobs.replace(f"{folder}/{number}.json", document)
        if numbers and self._blobs.read(f"{folder}/latest.json") != document:
            self._blobs.replace(f"{folder}/latest.json", document)

    def public_document(self, study: str, line: str, iteration: int) -> bytes:
        """Return the JSON of the model document that clients fetch."""
        key, data = self._version_bytes(study, line, iteration)
        return msgspec.json.encode(self._decode(data, PublicPart, key))

    def _decode(self, data: bytes, kind: type[_T], key: str) -> _T:
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, FedpingError) as error:
            raise StoreError(
                f"{self.where}/{key} cannot be read ({error}); it was damaged or written by something else: restore it "
                "from a copy"
            ) from error


def open_store(where: Path, *, create: bool = False) -> ModelStore:
    """Open the store in a local folder.

    Raises:
        StoreError: there is no such folder (and ``create`` is False), or the path is a file.
    """
    if where.exists() and not where.is_dir():
        raise StoreError(f"the model store {where} is a file; give the folder of a store")
    if not where.is_dir() and not create:
        raise StoreError(
            f"there is no model store at {where}; make one with 'fedping study create', or correct --store"
        )
    return ModelStore(LocalBlobs(where), str(where))


def _version_key(version: Version) -> str:
    return f"{version.study}/{version.line}/versions/{version.iteration}.json"


def _conflict(version: Version, there: int) -> VersionConflict:
    return VersionConflict(
        f"another round was first: line '{version.line}' of study '{version.study}' is already at version {there}, so "
        f"this version {version.iteration} was not published; nothing is lost and nothing needs doing"
    )
