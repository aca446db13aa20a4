"""Copy a study, with all its versions, from one store into another: from a folder into a bucket, or back.

Each file is checked before it is copied, so that a damaged file never replaces a good copy: documents against their
checksums, and clients' documents against the versions that they derive from.

Files that never change (the study, versions, fences, documents of versions) are created in the other store, or must
exist there with the same bytes; all other files are replaced. ``study.json`` comes last, so an interrupted copy isn't a
study yet; the same call continues it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from fedping.model_store.documents import Documents, is_whole
from fedping.model_store.helper_requests import is_whole_request
from fedping.model_store.store import MissingVersion, ModelStore, StoreError
from fedping.model_store.version import PublicPart
from fedping.model_store.versions import Chain, number_in
from fedping.protocol.errors import FedpingError

_ORDER = ("fences", "held", "versions", "public", "asked")
_NEVER_CHANGES = re.compile(r"(study\.json|(history|notes)/[0-9]+\.json|[^/]+/(versions|fences|public)/[0-9]+\.json)\Z")
_SEALED = re.compile(
    r"((study|state)\.json|(history|notes)/[0-9]+\.json|"
    r"[^/]+/(offer\.json|versions/[0-9]+\.json|held/[0-9]+(\.heard)?\.json))\Z"
)
_REQUEST = re.compile(r"[^/]+/asked/[0-9]+(\.aside)?\.msgpack\Z")


@dataclass(frozen=True)
class Copied:
    """Result of a copy: the number of the study's files, the number that the target lacked, and the latter's bytes."""

    files: int
    new: int
    bytes: int


def copy_study(
    source: ModelStore, target: ModelStore, study: str, tell: Callable[[int], object] = lambda files: None
) -> Copied:
    """Copy a study into another store, or update an earlier copy of the study.

    Args:
        source: store to copy from.
        target: store to copy to.
        study: the study's name.
        tell: called with the number of files checked so far.

    Raises:
        StoreError: the study doesn't exist; one of its files is damaged; the target has different bytes for a file, or
            versions that the source lacks; or a version was published during the copy, so that the call must be
            repeated.
    """
    lines = [line.name for line in source.study(study).lines]
    heads = {line: source.head(study, line) for line in lines}
    for line, head in heads.items():
        there = max(target.iterations(study, line), default=-1)
        if there > head.iteration:
            raise StoreError(
                f"line '{line}' of study '{study}' is at version {there} in {target.where} and at {head.iteration} in "
                f"{source.where}: nothing was copied. Copy in the other direction, or to another place"
            )
    target.check_publishing()  # without conditional writes, existing files would be replaced
    looked = {line: _LineCheck(source, study, line, source.versions.chain(study, line)) for line in lines}
    files = new = size = 0
    for key in _keys(source.documents, study, lines):
        data = source.documents.read(key)
        if data is None:  # deleted meanwhile, such as a request to a helper
            continue
        within = key.partition("/")[2]
        if (_SEALED.match(within) and not is_whole(data)) or (_REQUEST.match(within) and not is_whole_request(data)):
            raise StoreError(source.documents.damaged(key))
        if (line := within.partition("/")[0]) in looked:
            looked[line].check(key, data)
        files += 1
        if _put(source, target, key, data, _NEVER_CHANGES.match(within) is not None):
            new, size = new + 1, size + len(data)
        tell(files)
    for line, head in heads.items():
        now, copied = source.head(study, line), target.head(study, line)
        if (now.iteration, now.digest) != (head.iteration, head.digest):
            raise StoreError(
                f"line '{line}' of study '{study}' advanced to version {now.iteration} while it was copied; run the "
                "same command again, or stop its rounds meanwhile"
            )
        if copied.digest != head.digest:
            raise StoreError(f"{target.where} has another version {copied.iteration} of line '{line}' than was copied")
    return Copied(files, new, size)


@dataclass
class _LineCheck:
    """Checks of a line's files in the order of copying: clients' documents against the versions that they derive from.

    It remembers only digests of clients' documents, because the documents may be large.
    """

    store: ModelStore
    study: str
    line: str
    chain: Chain
    digests: dict[int, bytes] = field(default_factory=dict)

    def check(self, key: str, data: bytes) -> None:
        """Raise :class:`StoreError` if a file of the line contradicts the files before it."""
        folder, name = key.split("/")[-2:]
        number = number_in(name)
        if folder == "versions" and number is not None and number in self.chain.numbers:
            self.digests[number] = _digest(self.store.public.derived(key, data, (self.study, self.line, number)))
        elif folder == "public" and not self._is_as_its_version_says(key, name, data):
            raise StoreError(
                f"{self.store.where}/{key} is not what its version says; it was damaged: restore it from a copy, or "
                "move it away, and the next version that is published writes it again"
            )

    def _is_as_its_version_says(self, key: str, name: str, data: bytes) -> bool:
        number = number_in(name)
        if name == "latest.json":
            return self._is_latest(data)
        if name.startswith("staged-"):
            return self._is_staged(name, data)
        if number is None or self._is_fenced_over(number):
            return True
        try:
            return _digest(data) == self._digest_of(number)
        except MissingVersion as error:
            raise StoreError(
                f"{self.store.where}/{key} belongs to version {number}, which is missing: restore "
                f"{self.study}/{self.line}/versions/{number}.json from a copy"
            ) from error

    def _is_latest(self, data: bytes) -> bool:
        """Return whether a document belongs to a version of the line, now or a moment ago.

        The document may lag behind the newest version and the present stage.
        """
        try:
            found = msgspec.json.decode(data, type=PublicPart)
            alone = msgspec.json.encode(replace(found, staged=UNSET))
            staged = self.store.held.staged_after(self.study, self.line, found.iteration)
            return (
                msgspec.json.encode(found) == data
                and (found.staged in (UNSET, staged) or (staged is None and _is_next(found)))
                and _digest(alone) == self._digest_of(found.iteration)
            )
        except (msgspec.MsgspecError, UnicodeDecodeError, MissingVersion):
            return False

    def _is_staged(self, name: str, data: bytes) -> bool:
        """Return whether a document belongs to the staged version; True for documents that clients no longer fetch."""
        staged = self.store.held.staged_after(self.study, self.line, self.chain.numbers[-1])
        if staged is None or name != f"staged-{staged.iteration}.json":
            return True
        return data == self.store.public.staged_document(self.study, self.line, staged)

    def _digest_of(self, number: int) -> bytes:
        """Return the digest of a version's document for clients; a version published during the copy is read for it."""
        known = self.digests.get(number)
        return known or _digest(self.store.public.document(self.study, self.line, number))

    def _is_fenced_over(self, number: int) -> bool:
        """Return whether a version was lost when a backup was restored, and the line continues at a later number."""
        return any(before < number < after for before, after in self.chain.fences.items())


def _is_next(found: PublicPart) -> bool:
    return found.staged is not UNSET and found.staged.iteration == found.iteration + 1


def _digest(document: bytes) -> bytes:
    return sha256(document).digest()


def _keys(documents: Documents, study: str, lines: list[str]) -> Iterator[str]:
    """Yield the keys of a study's files, each file after the files that it refers to."""
    for folder in ("history", "notes"):
        for name in sorted(documents.names(f"{study}/{folder}"), key=_by_number):
            yield f"{study}/{folder}/{name}"
    last = [name for name in documents.names(study) if "." in name]
    for line in lines:
        for folder in _ORDER:
            for name in sorted(documents.names(f"{study}/{line}/{folder}"), key=_by_number):
                yield f"{study}/{line}/{folder}/{name}"
        yield from (f"{study}/{line}/{name}" for name in sorted(documents.names(f"{study}/{line}")) if "." in name)
    yield from (f"{study}/{name}" for name in sorted(last, key="study.json".__eq__))


def _by_number(name: str) -> tuple[int, str]:
    number = name.partition(".")[0]
    return (int(number) if number.isdecimal() else 2**62), name


def _put(source: ModelStore, target: ModelStore, key: str, data: bytes, lasting: bool) -> bool:
    """Put a file into a store; return whether the store lacked these bytes.

    The target's file is read first: most files of a repeated copy exist, and a put would send all of them again.
    """
    there = target.documents.read(key)
    if there is None:
        if target.documents.create(key, data):
            return True
        there = target.documents.read(key)  # another copy was faster
    if there == data:
        return False
    if lasting:
        raise FedpingError(
            f"{target.where}/{key} differs from {source.where}/{key}: it is of another study of this name, or damaged; "
            "copy to another place, or restore it"
        )
    target.documents.replace(key, data)
    return True
