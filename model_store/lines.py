"""The heads of lines: their newest versions, checks that these follow the previous versions, and lost versions."""

from __future__ import annotations

from dataclasses import dataclass

from fedping.model_store.documents import Damaged, Documents, StampCache
from fedping.model_store.studies import Studies
from fedping.model_store.version import Link, Version
from fedping.model_store.versions import Chain, Versions, marker_key, number_in, readable, version_key
from fedping.protocol.errors import FedpingError

SMALL = 2**20
"""Maximum bytes of a version that is checked against its parent's digest on first sight, even during a request."""


@dataclass(frozen=True)
class _Verdict:
    """Result of checking a version's file: a problem, or None. ``thorough``: the parent's digest was compared."""

    trouble: str | None
    thorough: bool


class Lines:
    """The heads of all lines."""

    def __init__(self, documents: Documents, studies: Studies, versions: Versions) -> None:
        self._documents = documents
        self._studies = studies
        self._versions = versions
        self._verdicts: StampCache[_Verdict] = StampCache()

    def head(self, study: str, line: str, noted: int = -1) -> Version:
        """Return the head of a line: its newest version.

        Args:
            study: the study's name.
            line: the line's name.
            noted: the newest version that is known to have been published; -1 for none.

        Raises:
            StoreError: the study or the line doesn't exist, or the newest file doesn't follow the version before it.
                Such a file is never skipped, because its number would then be published again.
        """
        self._studies.study(study).line(line)
        chain = self._versions.chain(study, line)
        numbers = chain.numbers
        if not numbers:
            raise Damaged(self._no_version(study, line, noted))
        if chain.broken and chain.broken[-1] > numbers[-1]:
            raise Damaged(self._broken_fence(study, line, chain.broken[-1]))
        trouble = self._trouble_of(study, line, numbers[-1], _before(numbers, -1), thoroughly=True)
        if trouble:
            raise Damaged(trouble)
        return self._versions.version(study, line, numbers[-1])

    def newest(self, study: str, line: str) -> int:
        """Return the number of the newest version to serve; -1 if there is none.

        This is the head, or the version before a file that doesn't follow it and was never published. A damaged version
        that was published counts: clients have its number, and must not get an older version.
        """
        numbers = self._versions.chain(study, line).numbers
        for at in range(len(numbers) - 1, -1, -1):
            trouble = self._trouble_of(study, line, numbers[at], _before(numbers, at))
            if trouble is None or self._versions.was_published(study, line, numbers[at]):
                return numbers[at]
        return -1

    def newest_from(self, study: str, line: str, known: int) -> int:
        """Return the number of the newest version to serve, given that version ``known`` exists; -1 for none.

        For frequent calls: numbers are consecutive, so this looks for the next number until it is missing. That usually
        costs two look-ups, whereas :meth:`newest` lists all versions. A file is read when it is first seen, to check
        that it follows the previous version. All files are checked if no version is known, or if ``known`` is missing
        because a backup was restored.
        """
        try:
            if known < 0:
                return self.newest(study, line)
            while (after := self._follower(study, line, known)) is not None:
                known = after
            gone = self._documents.stamp(version_key(study, line, known)) is None
            return self.newest(study, line) if gone else known
        except FedpingError:
            return known  # the store is not accessible; the version's readers get the error

    def _follower(self, study: str, line: str, known: int) -> int | None:
        after = known + 1
        if self._documents.stamp(version_key(study, line, after)) is None:
            return None
        fence = self._versions.fence(study, line, after)
        if fence is not None:
            after = fence.goes_on_at
        trouble = self._trouble_of(study, line, after, known)
        return after if trouble is None or self._versions.was_published(study, line, after) else None

    def trouble(self, study: str, line: str) -> str | None:
        """Return the reason why a line's newest version can't be served or followed by another; else None."""
        try:
            chain = self._versions.chain(study, line)
            numbers = chain.numbers
            if not numbers:
                return self._no_version(study, line)
            if chain.broken and chain.broken[-1] > numbers[-1]:
                return self._broken_fence(study, line, chain.broken[-1])
            trouble = self._trouble_of(study, line, numbers[-1], _before(numbers, -1))
            return trouble or self.loss(study, line)
        except FedpingError as error:
            return str(error)

    def notes(self, study: str, line: str) -> list[str]:
        """Return a sentence for each file that isn't a version of the line, and for each gap."""
        chain, folder = self._versions.chain(study, line), f"{self._documents.where}/{study}/{line}/versions"
        told = [f"{folder}/{readable(name)} is not a version and is ignored; move it away" for name in chain.foreign]
        told += (
            f"{folder}/{number}.json does not follow version {chain.numbers[-1]} and is left out; move it away, or, if "
            "versions between them were lost, put them back from a copy"
            for number in chain.strays
        )
        for before, after in zip(chain.numbers, chain.numbers[1:], strict=False):
            if after != before + 1 and before not in chain.fences and before + 1 not in chain.broken:
                told.append(f"{folder} lacks {before + 1}.json to {after - 1}.json; put them back from a copy")
        told += (self._broken_fence(study, line, slot) for slot in chain.broken)
        told += (
            self._versions.unmarked_fence(study, line, before + 1)
            for before, after in chain.fences.items()
            if after in chain.numbers and self._documents.stamp(marker_key(study, line, before + 1)) is None
        )
        if chain.unfinished is not None:
            told.append(unfinished(study, line, chain.unfinished))
        return told

    def largest_seen(self, study: str, line: str) -> int:
        """Return the largest number that was published, according to the store's own folders; -1 for none.

        After a backup was restored, the static files or a leftover version may show larger numbers than the chain.
        """
        return self._chain_and_seen(study, line)[1]

    def _chain_and_seen(self, study: str, line: str) -> tuple[Chain, int]:
        # the static files first: they follow the versions, so that a round in between is not taken for a loss
        public = [number_in(name) for name in self._documents.names(f"{study}/{line}/public")]
        chain = self._versions.chain(study, line)
        left = (number for number in chain.strays if self._versions.is_of_line(study, line, number))
        return chain, max([-1, *chain.numbers[-1:], *(number for number in public if number is not None), *left])

    def loss(self, study: str, line: str, wanted: int = 0) -> str | None:
        """Return the remedy if published versions were lost and ``wanted`` isn't beyond their numbers; else None."""
        chain, seen = self._chain_and_seen(study, line)
        if chain.unfinished is not None and wanted < chain.unfinished:
            return unfinished(study, line, chain.unfinished)
        newest = chain.numbers[-1] if chain.numbers else -1
        behind = newest < seen and wanted <= seen
        if behind:
            return lost(study, line, newest, seen, f"{self._documents.where}/{study}/{line}")
        # publishing before a stray file would make it the next version, which it is not
        stray = next((n for n in chain.strays if n in (newest + 2, wanted + 1)), None)
        if stray is not None:
            return (
                f"{self._documents.where}/{version_key(study, line, stray)} does not follow version {newest}, so "
                f"version {stray - 1} is missing. Move the file out of the store, or restore the missing versions "
                "from a copy"
            )
        return None

    def has_traces(self, study: str, line: str, noted: int = -1) -> bool:
        """Return whether a line's folders, or ``noted``, show that versions of the line were published before."""
        folders = (f"{study}/{line}/{folder}" for folder in ("versions", "fences", "public"))
        names = {name for folder in folders for name in self._documents.names(folder)}
        return noted >= 0 or "latest.json" in names or any(number_in(name) is not None for name in names)

    def _no_version(self, study: str, line: str, noted: int = -1) -> str:
        if self.has_traces(study, line, noted):
            return self.without_its_versions(study, line)
        return (
            f"line '{line}' of study '{study}' has no version in {self._documents.where}; run 'fedping study create' "
            "with the study's file again, which adds what is missing"
        )

    def without_its_versions(self, study: str, line: str) -> str:
        """Return the sentence for a line whose version 0 was lost."""
        return (
            f"line '{line}' of study '{study}' has no version 0 in {self._documents.where}, but it was published. "
            f"Restore {version_key(study, line, 0)}, and other lost files, from a copy: no version is published a "
            "second time"
        )

    def _broken_fence(self, study: str, line: str, slot: int) -> str:
        return (
            f"{self._documents.where}/{version_key(study, line, slot)} is missing or damaged. It is the fence that "
            f"sets the number after version {slot - 1}, as {self._documents.where}/{marker_key(study, line, slot)} "
            "shows. Restore it from a copy"
        )

    def _trouble_of(
        self, study: str, line: str, number: int, before: int | None, *, thoroughly: bool = False
    ) -> str | None:
        """Return why a file isn't the version after ``before``, or None if it is; cached while both stamps stay."""
        key = version_key(study, line, number)
        stamp = self._documents.stamp(key)
        earlier = None if before is None else self._documents.stamp(version_key(study, line, before))
        known = self._verdicts.get(key, (stamp, earlier))
        if known is None or (thoroughly and not known.thorough):
            small = max(stamp[-1] if stamp else 0, earlier[-1] if earlier else 0) <= SMALL
            deep = thoroughly or small
            known = _Verdict(self._check(study, line, number, before, deep), deep)
            self._verdicts.put(key, (stamp, earlier), known)
        return known.trouble

    def accept(self, version: Version, parent: int) -> None:
        """Record that a version just published follows its parent."""
        key, before = (version_key(version.study, version.line, each) for each in (version.iteration, parent))
        self._verdicts.put(key, (self._documents.stamp(key), self._documents.stamp(before)), _Verdict(None, True))

    def _check(self, study: str, line: str, number: int, before: int | None, thoroughly: bool) -> str | None:
        key = version_key(study, line, number)
        try:
            link: Version | Link
            if thoroughly:
                link = self._versions.version(study, line, number)
            else:
                link = self._documents.decode(self._versions.version_bytes(study, line, number)[1], Link, key)
        except FedpingError as error:
            return str(error)
        if (link.study, link.line, link.iteration) != (study, line, number):
            return self._versions.another(key, link)
        if link.spec_digest != self._studies.study(study).line(line).spec.digest:
            return self._documents.foreign(key, "was computed for another model spec")
        if thoroughly and (later := self._versions.written_later(study, line, number)):
            return later
        if number == 0 or before is None:
            return None
        if link.parent != before and (fence := self._versions.fence(study, line, before)):
            before = fence.after  # right before the version, and the fence's marker is lost
        if link.parent != before:
            return self._documents.foreign(key, f"follows version {link.parent}, and not version {before}")
        if thoroughly:
            try:
                parent = self._versions.version(study, line, before)
            except FedpingError:
                return None  # the parent is damaged; the version after it stands for the line
            if link.parent_digest != parent.digest and not self._versions.written_later(study, line, before):
                what = f"was computed from a different version {before} than the stored one"
                return self._documents.foreign(key, what)
        return None


def lost(study: str, line: str, newest: int, seen: int, where: str) -> str:
    """Return the sentence for a line that lacks versions that were published."""
    return (
        f"line '{line}' of study '{study}' is at version {newest}, but {where} shows that version {seen} was "
        "published: the store is an older copy, and clients may have the versions in between; restore a newer "
        f"copy, or continue the line after them with 'fedping store continue {study} {line} --from {seen + 1}'"
    )


def unfinished(study: str, line: str, number: int) -> str:
    """Return the sentence for a fence whose version was not written."""
    return (
        f"'fedping store continue' was interrupted; finish it with 'fedping store continue {study} {line} --from "
        f"{number}'"
    )


def _before(numbers: tuple[int, ...], at: int) -> int | None:
    at %= len(numbers)
    return numbers[at - 1] if at else None
