"""The model documents that clients fetch from a static file server, derived from the versions of a line."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from fedping.model_store.documents import Damaged, Documents, StoreError
from fedping.model_store.held import HeldVersions, held_key
from fedping.model_store.lines import lost
from fedping.model_store.version import PublicPart
from fedping.model_store.versions import Versions, number_in
from fedping.protocol.model import Staged


class PublicDocuments:
    """The static files of all lines."""

    def __init__(self, documents: Documents, versions: Versions, held: HeldVersions) -> None:
        self._documents = documents
        self._versions = versions
        self._held = held

    def refresh(self, study: str, line: str) -> None:
        """Update the static files of a line to its head, which also finishes the work of a publisher that died early.

        Raises:
            StoreError: the static files show versions that no longer exist but that clients may have; nothing was
                changed.
        """
        folder = f"{study}/{line}/public"
        present = set(self._documents.names(folder))
        numbers = self._versions.iterations(study, line)
        shown = max((n for name in present if (n := number_in(name)) is not None), default=-1)
        if numbers and shown > numbers[-1]:
            raise StoreError(lost(study, line, numbers[-1], shown, f"{self._documents.where}/{folder}"))
        document = b""
        for number in numbers:
            if f"{number}.json" not in present and self._versions.fence(study, line, number):
                continue  # its marker is lost
            if f"{number}.json" not in present or number == numbers[-1]:
                document = self.document(study, line, number)
            if f"{number}.json" not in present:
                self._documents.replace(f"{folder}/{number}.json", document)
        if not numbers:
            return
        if staged := self._held.staged_after(study, line, numbers[-1]):
            # before latest.json names it
            self._write(f"{folder}/staged-{staged.iteration}.json", self.staged_document(study, line, staged))
            document = self.document(study, line, numbers[-1], staged)
        self._write(f"{folder}/latest.json", document)

    def _write(self, key: str, document: bytes) -> None:
        if self._documents.read(key) != document:
            self._documents.replace(key, document)

    def document(self, study: str, line: str, iteration: int, staged: Staged | None = None) -> bytes:
        """Return the JSON of the model document that clients fetch.

        Args:
            study: the study's name.
            line: the line's name.
            iteration: the version's number.
            staged: the version that a share of the clients gets instead.

        Raises:
            StoreError: the version doesn't exist, can't be read, or isn't the version that its key names.
        """
        key, data = self._versions.version_bytes(study, line, iteration)
        return self.derived(key, data, (study, line, iteration), staged)

    def staged_document(self, study: str, line: str, staged: Staged) -> bytes:
        """Return the JSON of the model document of a staged version; raise :class:`StoreError` if it is gone."""
        key = held_key(study, line, staged.iteration)
        return self.derived(key, self._documents.read_whole(key) or b"", (study, line, staged.iteration))

    def derived(self, key: str, data: bytes, of: tuple[str, str, int], staged: Staged | None = None) -> bytes:
        """Return the JSON that clients fetch, derived from the bytes of a version.

        Args:
            key: the version's key, for messages.
            data: the version's bytes.
            of: the study, the line and the number that the version must have.
            staged: as in :meth:`document`.

        Raises:
            StoreError: the version can't be read, or isn't the version ``of``.
        """
        part = self._documents.decode(data, PublicPart, key)
        if (part.study, part.line, part.iteration) != of:
            raise Damaged(self._versions.another(key, part))
        return msgspec.json.encode(msgspec.structs.replace(part, staged=staged or UNSET))
