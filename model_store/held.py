"""Held versions, which wait for the operator's decision or a stage's results, and the versions that replace them."""

from __future__ import annotations

import msgspec

from fedping.model_store.documents import Damaged, Documents, StampCache, StoreError, sealed, unsealed
from fedping.model_store.lines import SMALL, Lines
from fedping.model_store.version import HeldPart, StageState, Version, staged_by
from fedping.model_store.versions import Versions, version_key
from fedping.protocol.errors import FedpingError
from fedping.protocol.model import Staged


class HeldVersions:
    """The held versions of all lines; a line has at most one, after its head."""

    def __init__(self, documents: Documents, versions: Versions, lines: Lines) -> None:
        self._documents = documents
        self._versions = versions
        self._lines = lines
        self._staged: StampCache[Staged | None] = StampCache()

    def held_version(self, study: str, line: str) -> Version | None:
        """Return the held version of a line; None if no version is held.

        Raises:
            StoreError: the held version can't be read.
        """
        return self._after_head(study, line, 1)

    def keep(self, version: Version, data: bytes) -> None:
        """Hold a version, with the document ``data``, until the decision; one already held for its parent stays."""
        if self.held_version(version.study, version.line) is None:
            key = held_key(version.study, version.line, version.iteration)
            if not self._documents.create(key, sealed(data)) and self.held_version(version.study, version.line) is None:
                self._documents.replace(key, sealed(data))  # one of another parent, which can never be published

    def intended(self, study: str, line: str) -> Version | None:
        """Return the version to be published instead of a staged version; None if none is recorded."""
        return self._after_head(study, line, 2)

    def intend(self, version: Version) -> Version:
        """Record the version to be published instead of a staged one, under the next number; the first record stays.

        Publishing takes two steps: a fence, and then the version. If a process is killed in between, the next process
        finds the decision here.

        Returns: the recorded version.
        """
        key, data = held_key(version.study, version.line, version.iteration), sealed(msgspec.json.encode(version))
        if not self._documents.create(key, data):
            if (first := self.intended(version.study, version.line)) is not None:
                return first
            self._documents.replace(key, data)  # one of another parent
        return version

    def _after_head(self, study: str, line: str, after: int) -> Version | None:
        """Return the version held under the head's number plus ``after``, if its parent is the head."""
        head = self._lines.head(study, line)
        key = held_key(study, line, head.iteration + after)
        try:
            if (data := self._documents.read_whole(key)) is None:
                return None
            version = self._documents.decode(data, Version, key)
        except StoreError as error:
            raise Damaged(
                f"{self._documents.where}/{key}, a version that is held back, cannot be read: it was damaged, or "
                "written by something else; move it away, and the next round computes it again"
            ) from error
        return version if (version.parent, version.parent_digest) == (head.iteration, head.digest) else None

    def note_stage(self, version: Version, state: StageState) -> None:
        """Write the state of a version's stage as read by the last round, for status pages."""
        key = _stage_key(version.study, version.line, version.iteration)
        self._documents.replace(key, sealed(msgspec.json.encode(state)))

    def stage(self, study: str, line: str, iteration: int) -> StageState | None:
        """Return the state of a version's stage as read by the last round; None if it is missing or damaged."""
        key = _stage_key(study, line, iteration)
        try:
            data = self._documents.read_whole(key)
            return None if data is None else msgspec.json.decode(unsealed(data), type=StageState)
        except (FedpingError, msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def staged_after(self, study: str, line: str, newest: int) -> Staged | None:
        """Return the version that a share of the clients gets instead of the newest; None if there is none.

        This is called for every request for the newest model. It takes one look-up, or two if a version is held.
        """
        key = held_key(study, line, newest + 1)
        stamp = self._documents.stamp(key)
        if stamp is None:
            return None
        before = self._documents.stamp(version_key(study, line, newest))
        return self._staged.value(key, (stamp, before), lambda: self._read_staged(study, line, newest))

    def _read_staged(self, study: str, line: str, newest: int) -> Staged | None:
        key = held_key(study, line, newest + 1)
        try:
            found = self._documents.decode(self._documents.read_whole(key) or b"", HeldPart, key)
            stage = staged_by(found.lineage.guard)
            if stage is None or (found.parent, found.iteration) != (newest, newest + 1):
                return None
            size = (self._documents.stamp(version_key(study, line, newest)) or (0,))[-1]
            if size <= SMALL and found.parent_digest != self._versions.version(study, line, newest).digest:
                return None
        except FedpingError:
            return None  # rounds report the error; clients keep the published version
        return Staged(iteration=found.iteration, share=stage.share)


def held_key(study: str, line: str, iteration: int) -> str:
    """Return the key of a held version."""
    return f"{study}/{line}/held/{iteration}.json"


def _stage_key(study: str, line: str, iteration: int) -> str:
    return f"{study}/{line}/held/{iteration}.heard.json"
