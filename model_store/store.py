"""The model store: studies and the versions of their lines, kept as blobs.

    <study>/study.json                     the study, as created
    <study>/history/<n>.json               who has declared or changed what of it, when and why; settings that have
                                           changed (:mod:`fedping.model_store.history`)
    <study>/state.json                     whether it runs, is paused or has ended; running if there is none. It follows
                                           the history, of which older stores have none
    <study>/<line>/offer.json              what the helper of a line of shares offers now; clients send nothing before
    <study>/<line>/versions/<n>.json       version n: weights, state, lineage; the truth
    <study>/<line>/fences/<n>.json         there is a fence in the place of version n
    <study>/<line>/held/<n>.json           a version that a round has not published, but held back for people to decide,
                                           or until a stage has shown enough; or what is to be published in its place
    <study>/<line>/held/<n>.heard.json     what the last round has heard of that stage; not the truth, but told
    <study>/<line>/asked/                  what the helper of a line of shares is asked for, and has answered
                                           (:mod:`fedping.model_store.helper_requests`)
    <study>/<line>/public/<n>.json         what clients fetch, for a static file server; derived from the above
    <study>/<line>/public/latest.json      the same of the head
    <study>/<line>/public/staged-<n>.json  the same of a held version that a share of the clients gets first

The head of a line is the newest version of an unbroken chain: each file is named by its document's number, is of this
study, line and model spec, and names its parent and the parent's digest. A version's file is created or not at all, so
two publishers of one parent cannot both succeed. A number is followed by the next, unless a fence stands there, which
says where the line goes on (:func:`fedping.model_store.rollback.continue_at`). All but the public files and the markers
below ``fences`` are sealed (:mod:`fedping.model_store.checksum`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from fedping.model_store.blobs import Blobs, LocalBlobs, Sight
from fedping.model_store.chain import Chain, number_in, readable, runs
from fedping.model_store.checksum import is_whole, sealed, unsealed
from fedping.model_store.helper_requests import StoredRequest
from fedping.model_store.history import Entry, HistoryOf, Kind, Standing
from fedping.model_store.version import (
    NEWEST_FORMAT,
    Fence,
    HeldPart,
    Link,
    Outcome,
    PublicPart,
    Sources,
    StageState,
    Version,
    staged_by,
)
from fedping.protocol import __version__
from fedping.protocol.digest import canonical_json
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.extensions import with_recorded_code
from fedping.protocol.formats import NewerFormat, format_of, refuse_newer, unknown_member, with_format, without_format
from fedping.protocol.location import Bucket, Place
from fedping.protocol.model import Staged, UnfitModel, validate_document
from fedping.protocol.sharing.keys import sealer
from fedping.protocol.sharing.offer import Offer, Terms
from fedping.protocol.sharing.terms import agreed
from fedping.protocol.study import Declared, Line, Study

_T = TypeVar("_T")

SMALL = 2**20
"""Up to this size, a version is checked against its parent's digest when it is first seen, even in a request."""

MOST_FENCE_BYTES = 4096
_GOES_ON = b'"goes_on_at"'
"""What every fence has; a small file without it is a version."""

_MOST_REMEMBERED = 256


_NO_STORE = "there is no model store at {}; make one with 'fedping study create', or correct --store"


class StoreError(FedpingError):
    """The store is missing, lacks what was requested, or holds something unreadable."""


class MissingVersion(StoreError):
    """There is no version of this number."""


class VersionConflict(FedpingError):
    """Another publisher was first: the version already exists, and nothing was written."""


@dataclass(frozen=True)
class _Read:
    """A version as read; while its bytes stay the same, so do it and its digest."""

    key: str
    data: bytes
    version: Version


@dataclass(frozen=True)
class _Judged:
    """The verdict on a file, valid while it looks the same. ``thoroughly``: the parent's digest was compared."""

    sight: Sight | None
    before: Sight | None
    trouble: str | None
    thoroughly: bool


class ModelStore:
    """Studies and versions over any :class:`fedping.model_store.blobs.Blobs`; ``where`` names it in messages."""

    def __init__(self, blobs: Blobs, where: str) -> None:
        self.blobs = blobs
        self.where = where
        self._last_read: _Read | None = None
        self._judged: dict[str, _Judged] = {}
        self._fences: dict[str, tuple[Sight, Fence | None]] = {}
        self._staged: dict[str, tuple[Sight, Sight | None, Staged | None]] = {}
        self._settings: dict[str, tuple[Sight, Study]] = {}
        self._standings: dict[str, tuple[Sight, Standing]] = {}

    def create_study(
        self, study: Study, first_versions: tuple[Version, ...], noted: Mapping[str, int] | None = None
    ) -> bool:
        """Store a study and version 0 of each of its lines; return False if exactly this study already existed.

        Safe to repeat: whatever an interrupted call left out is added.

        Args:
            study: the study.
            first_versions: version 0 of each of its lines.
            noted: by line, the newest version known elsewhere to have been published; -1 for none.

        Raises:
            StoreError: a study of this name exists and differs; version 0 of a line was lost, and would be published
                a second time, or is there and was to take weights over that it did not; or another study takes
                telemetry of the same type. Nothing was written.
        """
        if study.telemetry:
            self._refuse_second_taker(study)
        for version in first_versions:
            traces = self._has_traces(study.name, version.line, (noted or {}).get(version.line, -1))
            if traces and self.blobs.sight(_version_key(version)) is None:  # checked last: another may create it too
                raise StoreError(self._without_its_versions(study.name, version.line))
            self._refuse_another_beginning(version)
        if not self.is_near:  # a store that creates what is there already would have another study in its place
            self.check_publishing()
        created = self.blobs.create(f"{study.name}/study.json", sealed(with_format(canonical_json(study))))
        if not created and (there := self.study(study.name)) != with_recorded_code(study, there):
            raise StoreError(
                f"the store {self.where} already has a study '{study.name}' with other settings; versions and pings "
                "depend on them, so give the changed study a new name, or see by 'fedping study change FILE --dry-run' "
                "whether it may change so while it runs"
            )
        for version in first_versions:
            if self.blobs.create(_version_key(version), sealed(msgspec.json.encode(version))):
                created = True
            self.refresh_public(study.name, version.line)
        return created

    def _refuse_another_beginning(self, first: Version) -> None:
        """Raise :class:`StoreError` if a version 0 that is to take weights over is there, and did not take those."""
        wanted = first.lineage.warm_start
        if wanted is None or self.blobs.sight(_version_key(first)) is None:
            return
        there = self.version(first.study, first.line, 0).lineage.warm_start
        if there is None or (there.taken.digest, there.renamed) != (wanted.taken.digest, wanted.renamed):
            began = "the start values of its spec"
            if there is not None:
                others = ", by other names" if there.taken.digest == wanted.taken.digest else ""
                began = f"weights of {there.taken.told}{others}"
            raise StoreError(
                f"line '{first.line}' of study '{first.study}' has begun already, with {began}, and clients may have "
                f"its version 0; to begin with {wanted.taken.told}, give the study a new name"
            )

    def _refuse_second_taker(self, study: Study) -> None:
        """Raise :class:`StoreError` if another study takes telemetry of the same type, which names no study."""
        for name in self.studies():
            try:
                other = self.study(name)
            except FedpingError:  # a study that cannot be read takes no telemetry either
                continue
            if name != study.name and other.telemetry and other.pings == study.pings:
                raise StoreError(
                    f"the store {self.where} has a study '{name}' that takes {other.pings} pings as telemetry, whose "
                    "paths name no study; leave out 'telemetry', or use a store of its own"
                )

    @property
    def is_near(self) -> bool:
        """Whether a look at it costs next to nothing: it is in a folder."""
        return isinstance(self.blobs, LocalBlobs)

    def is_empty(self) -> bool:
        """Return whether there is nothing at the store's place."""
        return not self.blobs.names("")

    def check_publishing(self) -> None:
        """Check, before the work on a version is done, for what would prevent it from being published.

        Raises:
            FedpingError: nothing can be written, or its place cannot publish a version once and whole.
        """
        self.blobs.check_writing()

    def study_sight(self, study: str) -> Sight | None:
        """Return what a study's file looks like from outside; None if there is none, or nobody can tell."""
        return self._seen(f"{study}/study.json")

    def sight(self, study: str, line: str, iteration: int) -> Sight | None:
        """Return what a version's file looks like from outside; None if there is none, or nobody can tell."""
        return self._seen(_key(study, line, iteration))

    def stored_bytes(self, study: str, line: str, iteration: int) -> bytes | None:
        """Return the bytes of a version's file as they are, damaged or not; None if there is none."""
        return self.blobs.read(_key(study, line, iteration))

    def _seen(self, key: str) -> Sight | None:
        try:
            return self.blobs.sight(key)
        except FedpingError:
            return None

    def studies(self) -> list[str]:
        """Return the names of the studies, sorted."""
        return sorted(name for name in self.blobs.names("") if self.blobs.sight(f"{name}/study.json") is not None)

    def study(self, name: str) -> Study:
        """Return a study as its settings are now; raises :class:`StoreError` if there is none of this name."""
        return self.settings(name)[1]

    def settings(self, name: str, number: int | None = None) -> tuple[int, Study]:
        """Return the settings of a study, and the entry of its history that they are of: 0 if they are as created.

        Args:
            name: the study's name.
            number: of the entry; None for the newest.

        Raises:
            StoreError: there is no such study, or its settings cannot be read.
        """
        created = self._created(name)
        if number is None:
            number = self._standing(name).settings
        if number == 0:
            return 0, created
        key = HistoryOf(self.blobs, self.where, name).key(number)
        seen = self.blobs.sight(key)
        known = self._settings.get(key)
        if known is None or seen is None or known[0] != seen:
            entry = self._entry(name, number)
            if entry.study is None or entry.study.name != name:
                raise StoreError(
                    f"{self.where}/{key} has no settings of study '{name}', and versions were made with them: restore "
                    "it from a copy"
                )
            known = (seen or (), entry.study)
            _remember(self._settings, key, known)
        return number, known[1]

    def settings_entry(self, name: str) -> int:
        """Return the entry of which the settings of a study are, as :meth:`settings` does, without reading them."""
        return self._standing(name).settings

    def _created(self, name: str) -> Study:
        """Return a study as it was created."""
        data = self._read(f"{name}/study.json")
        if data is None:
            there = ", ".join(self.studies()) or "none; make one with 'fedping study create'"
            raise StoreError(f"the store {self.where} has no study '{name}'; it has {there}")
        key = f"{name}/study.json"
        study = self._decode(self._without_format(unsealed(data), key), Study, key)
        if study.name != name:
            raise StoreError(
                f"{self.where}/{name}/study.json is the study '{study.name}': a copy of a study does not belong in the "
                f"store; move the folder '{name}' out of it"
            )
        return study

    def declared(self, study: str) -> Declared:
        """Return the last declared state of a study; running if none was declared.

        Raises:
            StoreError: it cannot be read, or was written by a later version; declaring it again repairs this.
        """
        key = f"{study}/state.json"
        data = self._read(key)
        told = Declared()
        if data is not None:
            told = self._decode(self._without_format(unsealed(data), key), Declared, key)
        standing = self._standing(study)
        return standing.declared if standing.number > told.entry else told

    def declare(self, study: str, declared: Declared, *, after: int | None = None) -> None:
        """Declare the state of a study, and keep in its history that it was; nothing is done if it is so already.

        Args:
            study: the study's name.
            declared: the state, since when it is so, by whom and why.
            after: the newest entry of the history that is known of; None for whatever is there.

        Raises:
            HistoryConflict: there is a newer entry; nothing was written.
            StoreError: there is no such study.
        """
        self.study(study)
        standing = self._standing(study)
        try:
            if replace(self.declared(study), entry=0) == replace(declared, entry=0):
                return
        except StoreError:
            pass  # it is replaced
        number = (standing.number if after is None else after) + 1
        declared = replace(declared, entry=number)
        HistoryOf(self.blobs, self.where, study).append(
            Entry(
                kind=declared.state,
                number=number,
                declared=declared,
                settings=standing.settings,
                at=declared.since,
                by=declared.by,
                because=declared.because,
            )
        )
        self.blobs.replace(f"{study}/state.json", sealed(with_format(msgspec.json.encode(declared))))

    def change(
        self, changed: Study, told: tuple[str, ...], *, at: str, by: str = "", because: str = "", after: int
    ) -> int:
        """Give a study other settings, from its next rounds on; return the number of the entry of its history.

        Nobody looks here whether they may change so: `fedping.protocol.study_changes` does.

        Raises:
            HistoryConflict: there is a newer entry than ``after``; nothing was written.
            StoreError: there is no such study, or another takes telemetry of the same type.
        """
        entry = self._next(changed.name, "changed", told, at, by, because, after)
        HistoryOf(self.blobs, self.where, changed.name).append(replace(entry, settings=entry.number, study=changed))
        return entry.number

    def note(
        self,
        study: str,
        kind: Kind,
        told: tuple[str, ...],
        *,
        at: str,
        by: str = "",
        because: str = "",
        versions: Mapping[str, tuple[int, ...]] | None = None,
        files: tuple[str, ...] = (),
    ) -> None:
        """Keep in the history of a study what is done to its pings; the rest as in an entry of the history.

        Raises:
            HistoryConflict: somebody has added an entry at the same moment; nothing was written.
            StoreError: there is no such study.
        """
        entry = self._next(study, kind, told, at, by, because, self._standing(study).number)
        HistoryOf(self.blobs, self.where, study).append(replace(entry, versions=dict(versions or {}), files=files))

    def _next(self, study: str, kind: Kind, told: tuple[str, ...], at: str, by: str, because: str, after: int) -> Entry:
        self._created(study)
        return Entry(
            kind=kind,
            number=after + 1,
            declared=self.declared(study),
            settings=self._standing(study).settings,
            at=at,
            by=by,
            because=because,
            told=told,
        )

    def history(self, study: str) -> list[Entry]:
        """Return the entries of a study's history, the oldest first; raises :class:`StoreError` if one is damaged."""
        self._created(study)
        newest = HistoryOf(self.blobs, self.where, study).newest()
        return [self._entry(study, number) for number in range(1, newest + 1)]

    def rewritten(self, study: str) -> frozenset[str]:
        """Return the landed files that a client's pings were removed from, by their paths below the landing folder."""
        return frozenset(path for entry in self.history(study) for path in entry.files)

    def pruned(self, study: str, line: str) -> frozenset[int]:
        """Return the versions of a line whose landed pings were given up, as its study's history tells."""
        entries = (entry for entry in self.history(study) if entry.kind == "pruned")
        return frozenset(number for entry in entries for number in entry.versions.get(line, ()))

    def entries(self, study: str) -> int:
        """Return how many entries the history of a study has; it changes whenever its settings or state do."""
        return HistoryOf(self.blobs, self.where, study).newest()

    def _standing(self, study: str) -> Standing:
        history = HistoryOf(self.blobs, self.where, study)
        newest = history.newest()
        if newest == 0:
            return Standing()
        key = history.key(newest)
        seen, known = self.blobs.sight(key), self._standings.get(key)
        if known is None or seen is None or known[0] != seen:
            known = (seen or (), self._of_history(history.standing))
            _remember(self._standings, key, known)
        return known[1]

    def _entry(self, study: str, number: int) -> Entry:
        return self._of_history(lambda: HistoryOf(self.blobs, self.where, study).entry(number))

    def _of_history(self, read: Callable[[], _T]) -> _T:
        try:
            return read()
        except FedpingError as error:
            raise StoreError(str(error)) from error

    def offer(self, study: str, line: str) -> Offer | None:
        """Return what the helper of a line of shares offers, as published; None if nothing was.

        Raises:
            StoreError: it cannot be read, or was written by a later version; publishing it again repairs this.
        """
        key = _offer_key(study, line)
        data = self._read(key)
        return None if data is None else self._decode(self._without_format(unsealed(data), key), Offer, key)

    def offers(self, study: Study) -> dict[str, Offer]:
        """Return the published offers of a study's lines of shares, by line; raises as :meth:`offer` does."""
        shared = [line.name for line in study.lines if line.privacy is not None and line.privacy.shared is not None]
        found = {name: self.offer(study.name, name) for name in shared}
        return {name: offer for name, offer in found.items() if offer is not None}

    def publish_offer(self, study: str, line: str, offer: Offer) -> Offer | None:
        """Publish what the helper of a line offers, in the place of what it offered before, which is returned.

        Clients verify it again, and so the bytes here need not be trusted, but one that does not fit would silence
        them.

        Raises:
            InvalidSettings: it does not fit the line, its key cannot be sealed for, or it is older than the present
                one.
            StoreError: there is no such study.
        """
        of = self.study(study)
        terms = agreed(offer, of, of.line(line))
        sealer(terms.seal, bytes.fromhex(terms.key))
        try:
            before = self.offer(study, line)
        except StoreError:
            before = None
        if before == offer:
            return before
        if before is not None and _made_at(terms) < _made_at(agreed(before, of, of.line(line))):
            raise InvalidSettings(
                f"the offer of {terms.made} is older than the one that line '{line}' of study '{study}' has; its key "
                "may be one that the helper no longer opens with: ask the helper for its present offer"
            )
        self.blobs.replace(_offer_key(study, line), sealed(with_format(msgspec.json.encode(offer))))
        return before

    def outcome(self, study: str, line: str, iteration: int) -> Outcome:
        """Return the outcome of a version's round, without its weights; raises as :meth:`version` does."""
        key, data = self._version_bytes(study, line, iteration)
        return self._decode(data, Outcome, key)

    def sources(self, study: str, line: str, iteration: int) -> Sources:
        """Return which landed files a version is made of, without its weights; raises as :meth:`version` does."""
        key, data = self._version_bytes(study, line, iteration)
        return self._decode(data, Sources, key)

    def chain(self, study: str, line: str) -> Chain:
        """Return which files are versions of a line; it only reads fences and, where one may be, the newest file."""
        names = self.blobs.names(f"{study}/{line}/versions")
        numbered = {name: number for name in names if (number := number_in(name)) is not None}
        marked = (number_in(name) for name in self.blobs.names(f"{study}/{line}/fences"))
        found = {number: self._fence(study, line, number) for number in marked if number is not None}
        fences = {fence.after: fence.goes_on_at for fence in found.values() if fence is not None}
        broken = {n for n, fence in found.items() if fence is None and not self._is_of_line(study, line, n)}
        taken: list[int] = []
        strays: list[int] = []
        for run in runs(set(numbered.values()) - {after + 1 for after in fences} - broken):
            tied = not taken or fences.get(taken[-1]) == run[0]
            if tied or any(self._was_published(study, line, number) for number in (run[0], run[-1])):
                taken += run
                if unmarked := self._fence(study, line, taken[-1]):
                    fences[taken.pop() - 1] = unmarked.goes_on_at
            else:
                strays += run
        return Chain(
            numbers=tuple(taken),
            fences=fences,
            strays=tuple(strays),
            foreign=tuple(sorted(name for name in names if name not in numbered)),
            unfinished=fences.get(taken[-1]) if taken else None,
            broken=tuple(sorted(broken)),
        )

    def iterations(self, study: str, line: str) -> list[int]:
        """Return the numbers of the published versions, in numeric order."""
        return list(self.chain(study, line).numbers)

    def head(self, study: str, line: str, noted: int = -1) -> Version:
        """Return the newest version of a line; ``noted`` is the newest known elsewhere to have been published.

        Raises:
            StoreError: there is no such study or line, or the newest file does not follow the version before it. Such a
                file is never skipped, because its number would be published again.
        """
        self.study(study).line(line)
        chain = self.chain(study, line)
        numbers = chain.numbers
        if not numbers:
            raise StoreError(self._no_version(study, line, noted))
        if chain.broken and chain.broken[-1] > numbers[-1]:
            raise StoreError(self._broken_fence(study, line, chain.broken[-1]))
        trouble = self._trouble_of(study, line, numbers[-1], _before(numbers, -1), thoroughly=True)
        if trouble:
            raise StoreError(trouble)
        return self.version(study, line, numbers[-1])

    def newest(self, study: str, line: str) -> int:
        """Return the number of the newest version to serve; -1 if there is none.

        That is the head, or the version before a file that does not follow it and was never published. A published
        version that is damaged still counts: clients have its number, and an older one would take them back.
        """
        numbers = self.chain(study, line).numbers
        for at in range(len(numbers) - 1, -1, -1):
            trouble = self._trouble_of(study, line, numbers[at], _before(numbers, at))
            if trouble is None or self._was_published(study, line, numbers[at]):
                return numbers[at]
        return -1

    def trouble(self, study: str, line: str) -> str | None:
        """Return why no version can be published after the newest of a line, or why the newest cannot be served."""
        try:
            chain = self.chain(study, line)
            numbers = chain.numbers
            if not numbers:
                return self._no_version(study, line)
            if chain.broken and chain.broken[-1] > numbers[-1]:
                return self._broken_fence(study, line, chain.broken[-1])
            trouble = self._trouble_of(study, line, numbers[-1], _before(numbers, -1))
            return trouble or self._loss(study, line)
        except FedpingError as error:
            return str(error)

    def notes(self, study: str, line: str) -> list[str]:
        """Return a sentence for each file that is not a version of the line, and for each gap."""
        chain, folder = self.chain(study, line), f"{self.where}/{study}/{line}/versions"
        told = [f"{folder}/{readable(name)} is no version and is left out; move it away" for name in chain.foreign]
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
            self._unmarked_fence(study, line, before + 1)
            for before, after in chain.fences.items()
            if after in chain.numbers and self.blobs.sight(_marker_key(study, line, before + 1)) is None
        )
        if chain.unfinished is not None:
            told.append(_unfinished(study, line, chain.unfinished))
        return told

    def version(self, study: str, line: str, iteration: int) -> Version:
        """Return one version; raises :class:`StoreError` if it does not exist, cannot be read, or is another."""
        key, data = self._version_bytes(study, line, iteration)
        last = self._last_read
        if last is None or (last.key, last.data) != (key, data):
            version = self._decode(data, Version, key)
            if (version.study, version.line, version.iteration) != (study, line, iteration):
                raise StoreError(self._another(key, version))
            self._last_read = last = _Read(key, data, version)
        return last.version

    def _version_bytes(self, study: str, line: str, iteration: int) -> tuple[str, bytes]:
        """Return the key of a version and the bytes stored there."""
        key = _key(study, line, iteration)
        data = self._read(key)
        may_be_fence = data is not None and len(data) <= MOST_FENCE_BYTES and _GOES_ON in data
        if data is None or (may_be_fence and self._fence(study, line, iteration)):
            if data is not None and self.blobs.sight(_marker_key(study, line, iteration)) is None:
                raise MissingVersion(self._unmarked_fence(study, line, iteration))
            self.study(study).line(line)
            numbers = self.iterations(study, line)
            span = f"its newest is {numbers[-1]}" if numbers else "it has none"
            raise MissingVersion(f"line '{line}' of study '{study}' has no version {iteration} in {self.where}; {span}")
        return key, data

    def _read(self, key: str) -> bytes | None:
        """Return the bytes of a version, a fence or a study, None if there are none; all reads of them go through here.

        Raises:
            StoreError: the bytes are not those that were written.
        """
        data = self.blobs.read(key)
        if data is not None and not is_whole(data):
            raise StoreError(self.damaged(key))
        return data

    def damaged(self, key: str) -> str:
        """Return the sentence for a document whose bytes are not those that were written."""
        return (
            f"{self.where}/{key} cannot be read (it is not what its seal says); it was damaged: restore it from a copy"
        )

    def newest_from(self, study: str, line: str, known: int) -> int:
        """Return the number of the newest version to serve, given that version ``known`` exists; -1 for none.

        Numbers follow each other, so it suffices to look for the next one until there is none. This costs two look-ups,
        while :meth:`iterations` lists every version, and is meant for frequent calls. A file is read when it is first
        seen, to check that it follows. If none is known all are checked, and also if ``known`` is gone, because an
        older copy of the store was restored.
        """
        try:
            if known < 0:
                return self.newest(study, line)
            while (after := self._follower(study, line, known)) is not None:
                known = after
            gone = self.blobs.sight(_key(study, line, known)) is None
            return self.newest(study, line) if gone else known
        except FedpingError:
            return known  # the store is not accessible; whoever reads the version is told why

    def _follower(self, study: str, line: str, known: int) -> int | None:
        after = known + 1
        if self.blobs.sight(_key(study, line, after)) is None:
            return None
        fence = self._fence(study, line, after)
        if fence is not None:
            after = fence.goes_on_at
        trouble = self._trouble_of(study, line, after, known)
        return after if trouble is None or self._was_published(study, line, after) else None

    def publish(self, version: Version) -> None:
        """Publish a version if its parent is the head; the compare-and-swap of a line.

        The version is first read as a client and as the next round would read it.

        Raises:
            VersionConflict: the head is no longer the version's parent; nothing was written.
            UnfitModel: no client could read it.
            StoreError: the version does not fit its study, versions after the head were lost, or a stray file is in
                the way; nothing was written.
        """
        line = self.study(version.study).line(version.line)
        head = self.head(version.study, version.line)
        if version.spec_digest != line.spec.digest:
            raise StoreError(f"version {version.iteration} was computed for another model spec of line '{line.name}'")
        if (version.parent, version.parent_digest) != (head.iteration, head.digest):
            raise _conflict(version, head.iteration)
        if loss := self._loss(version.study, version.line, version.iteration):
            raise StoreError(loss)
        self._refuse_a_staged_number(version)
        data = msgspec.json.encode(version)
        self._refuse_unfit(version, data, line)
        if version.iteration > head.iteration + 1 and version.lineage.origin == "continued":
            self._fence_off(version, head)
        elif version.iteration != head.iteration + 1:
            raise StoreError(f"version {version.iteration} cannot follow version {head.iteration}")
        if not self.blobs.create(_version_key(version), sealed(data)):
            raise _conflict(version, version.iteration)
        key, parent = _version_key(version), _key(version.study, version.line, head.iteration)
        _remember(self._judged, key, _Judged(self.blobs.sight(key), self.blobs.sight(parent), None, True))
        self.refresh_public(version.study, version.line)

    def _refuse_a_staged_number(self, version: Version) -> None:
        held = self.held(version.study, version.line)
        if held is not None and held.staged and held.iteration == version.iteration and held.model != version.model:
            where = f"{version.study} {version.line}"
            raise StoreError(
                f"version {held.iteration} of line '{version.line}' of study '{version.study}' is staged, and some "
                "clients have it: no other can have its number; decide first, by 'fedping round "
                f"{where} --release' or --discard"
            )

    def hold(self, version: Version) -> None:
        """Keep a version that is not to be published before it is decided; the first for its parent stays.

        If it is staged, :meth:`refresh_public` is what shows it to clients.

        Raises:
            VersionConflict: the head is no longer the version's parent; nothing was kept.
            UnfitModel: no client could read it.
        """
        head = self.head(version.study, version.line)
        if (version.parent, version.parent_digest) != (head.iteration, head.digest):
            raise _conflict(version, head.iteration)
        data = msgspec.json.encode(version)
        self._refuse_unfit(version, data, self.study(version.study).line(version.line))
        if self.held(version.study, version.line) is None:
            key = _held_key(version.study, version.line, version.iteration)
            if not self.blobs.create(key, sealed(data)) and self.held(version.study, version.line) is None:
                self.blobs.replace(key, sealed(data))  # one of another parent, which can never be published

    def held(self, study: str, line: str) -> Version | None:
        """Return the version that is held in the place of the next one, None if there is none.

        Raises:
            StoreError: it cannot be read.
        """
        return self._held_at(study, line, 1)

    def intended(self, study: str, line: str) -> Version | None:
        """Return what was decided to be published instead of a staged version, None if nothing was."""
        return self._held_at(study, line, 2)

    def intend(self, version: Version) -> Version:
        """Keep what is to be published instead of a staged version, under the number after it; the first stays.

        It takes two steps to publish it, a fence and the version. Whoever goes on where another was killed in between
        finds here what the other has decided.

        Returns:
            the one that stays.
        """
        key, data = _held_key(version.study, version.line, version.iteration), sealed(msgspec.json.encode(version))
        if not self.blobs.create(key, data):
            if (first := self.intended(version.study, version.line)) is not None:
                return first
            self.blobs.replace(key, data)  # one of another parent
        return version

    def _held_at(self, study: str, line: str, after: int) -> Version | None:
        """Return what is held under the number that is so much larger than the head's, if it is to follow the head."""
        head = self.head(study, line)
        key = _held_key(study, line, head.iteration + after)
        try:
            if (data := self._read(key)) is None:
                return None
            version = self._decode(data, Version, key)
        except StoreError as error:
            raise StoreError(
                f"{self.where}/{key}, a version that is held back, cannot be read: it was damaged, or written by "
                "something else; move it away, and the next round computes it again"
            ) from error
        return version if (version.parent, version.parent_digest) == (head.iteration, head.digest) else None

    def note_heard(self, version: Version, seen: StageState) -> None:
        """Keep what the last round has heard of the stage of a version, for those who ask."""
        key = _heard_key(version.study, version.line, version.iteration)
        self.blobs.replace(key, sealed(msgspec.json.encode(seen)))

    def heard(self, study: str, line: str, iteration: int) -> StageState | None:
        """Return what the last round has heard of a stage; None if none has looked, or it cannot be read."""
        key = _heard_key(study, line, iteration)
        try:
            data = self._read(key)
            return None if data is None else msgspec.json.decode(unsealed(data), type=StageState)
        except (FedpingError, msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def asked(self, study: str, line: str) -> StoredRequest:
        """Return what the helper of a line of shares is asked for."""
        return StoredRequest(self.blobs, self.where, study, line)

    def staged_after(self, study: str, line: str, newest: int) -> Staged | None:
        """Return which version a share of the clients is to take instead of the newest; None if there is none.

        Asked at every request for the newest model: one look-up, and two where there is something held.
        """
        key = _held_key(study, line, newest + 1)
        seen = self.blobs.sight(key)
        if seen is None:
            return None
        before = self.blobs.sight(_key(study, line, newest))
        known = self._staged.get(key)
        if known is None or known[:2] != (seen, before):
            known = (seen, before, self._read_staged(study, line, newest))
            _remember(self._staged, key, known)
        return known[2]

    def _read_staged(self, study: str, line: str, newest: int) -> Staged | None:
        key = _held_key(study, line, newest + 1)
        try:
            found = self._decode(self._read(key) or b"", HeldPart, key)
            stage = staged_by(found.lineage.guard)
            if stage is None or (found.parent, found.iteration) != (newest, newest + 1):
                return None
            size = (self.blobs.sight(_key(study, line, newest)) or (0,))[-1]
            if size <= SMALL and found.parent_digest != self.version(study, line, newest).digest:
                return None
        except FedpingError:
            return None  # rounds say why; clients stay with what is published
        return Staged(iteration=found.iteration, share=stage.share)

    def _fence_off(self, version: Version, head: Version) -> None:
        """Take the number after the head for good; raises if a round was faster, or the version's own is taken."""
        if self.blobs.sight(_version_key(version)) is not None:
            raise StoreError(
                f"{self.where}/{_version_key(version)} is there already, and no version of the line; move it away, or "
                "give a larger number"
            )
        fence = Fence(
            study=version.study,
            line=version.line,
            after=head.iteration,
            after_digest=head.digest,
            goes_on_at=version.iteration,
            created=version.created,
            code_version=version.lineage.code_version,
        )
        slot = head.iteration + 1
        if not self.blobs.create(
            _key(version.study, version.line, slot), sealed(with_format(msgspec.json.encode(fence)))
        ):
            begun = self._fence(version.study, version.line, slot)
            if begun is None:
                raise _conflict(version, slot)
            if begun.goes_on_at != version.iteration:
                raise StoreError(_unfinished(version.study, version.line, begun.goes_on_at))
        self.blobs.create(_marker_key(version.study, version.line, slot), b"{}")

    def largest_seen(self, study: str, line: str) -> int:
        """Return the largest number that was ever published, as far as the store's own folders show; -1 for none.

        After an older copy was restored, the static files or a leftover version may show more than the chain.
        """
        return self._chain_and_seen(study, line)[1]

    def _chain_and_seen(self, study: str, line: str) -> tuple[Chain, int]:
        # the static files first: they follow the versions, so that a round in between does not look like a loss
        public = [number_in(name) for name in self.blobs.names(f"{study}/{line}/public")]
        chain = self.chain(study, line)
        left = (number for number in chain.strays if self._is_of_line(study, line, number))
        return chain, max([-1, *chain.numbers[-1:], *(number for number in public if number is not None), *left])

    def _is_of_line(self, study: str, line: str, number: int) -> bool:
        try:
            link = self._decode(self._read(_key(study, line, number)) or b"", Link, "")
        except FedpingError:
            return False
        return (link.study, link.line, link.iteration) == (study, line, number)

    def _loss(self, study: str, line: str, wanted: int = 0) -> str | None:
        """Return what to do if published versions were lost, unless ``wanted`` is beyond them; None if none were."""
        chain, seen = self._chain_and_seen(study, line)
        if chain.unfinished is not None and wanted < chain.unfinished:
            return _unfinished(study, line, chain.unfinished)
        newest = chain.numbers[-1] if chain.numbers else -1
        behind = newest < seen and wanted <= seen
        if behind:
            return lost(study, line, newest, seen, f"{self.where}/{study}/{line}")
        # publishing before a stray file would make it the next version, which it is not
        stray = next((n for n in chain.strays if n in (newest + 2, wanted + 1)), None)
        if stray is not None:
            return (
                f"{self.where}/{_key(study, line, stray)} does not follow version {newest}, and would seem to follow "
                f"version {stray - 1}, which was therefore not published: move the file out of the store, or restore "
                "what is missing before it from a copy"
            )
        return None

    def _has_traces(self, study: str, line: str, noted: int = -1) -> bool:
        """Return whether anything of a line was published before, as far as its folders show."""
        folders = (f"{study}/{line}/{folder}" for folder in ("versions", "fences", "public"))
        names = {name for folder in folders for name in self.blobs.names(folder)}
        return noted >= 0 or "latest.json" in names or any(number_in(name) is not None for name in names)

    def _no_version(self, study: str, line: str, noted: int = -1) -> str:
        if self._has_traces(study, line, noted):
            return self._without_its_versions(study, line)
        return (
            f"line '{line}' of study '{study}' has no version in {self.where}; run 'fedping study create' with the "
            "study's file again, which adds what is missing"
        )

    def _without_its_versions(self, study: str, line: str) -> str:
        return (
            f"line '{line}' of study '{study}' has no version 0 in {self.where}, and it was published before: restore "
            f"{_key(study, line, 0)}, and what else was lost, from a copy; no version is published a second time"
        )

    def _broken_fence(self, study: str, line: str, slot: int) -> str:
        return (
            f"{self.where}/{_key(study, line, slot)} is lost or damaged: it is the fence that says where the line goes "
            f"on after version {slot - 1}, as {self.where}/{_marker_key(study, line, slot)} tells; restore it from a "
            "copy"
        )

    def _unmarked_fence(self, study: str, line: str, slot: int) -> str:
        return (
            f"{self.where}/{_marker_key(study, line, slot)} is missing: {_key(study, line, slot)} is a fence and no "
            "version, and that file says so; restore it from a copy"
        )

    def _refuse_unfit(self, version: Version, data: bytes, line: Line) -> None:
        public = msgspec.json.encode(msgspec.json.decode(data, type=PublicPart))
        trouble = validate_document(public, version.model, line.spec)
        if trouble is None and (where := version.unreadable):
            trouble = f"its {where} is no number that can be written"
        if trouble:
            raise UnfitModel(
                f"version {version.iteration} of line '{line.name}' of study '{version.study}' was not published, for "
                f"no client could read it: {trouble}",
                trouble,
            )

    def refresh_public(self, study: str, line: str) -> None:
        """Bring the static files of a line up to its head, finishing the work of a publisher that died early.

        Raises:
            StoreError: they show more versions than there are, so that clients may have these; nothing was changed.
        """
        folder = f"{study}/{line}/public"
        there = set(self.blobs.names(folder))
        numbers = self.iterations(study, line)
        shown = max((n for name in there if (n := number_in(name)) is not None), default=-1)
        if numbers and shown > numbers[-1]:
            raise StoreError(lost(study, line, numbers[-1], shown, f"{self.where}/{folder}"))
        document = b""
        for number in numbers:
            if f"{number}.json" not in there and self._fence(study, line, number):
                continue  # its marker is lost
            if f"{number}.json" not in there or number == numbers[-1]:
                document = self.public_document(study, line, number)
            if f"{number}.json" not in there:
                self.blobs.replace(f"{folder}/{number}.json", document)
        if not numbers:
            return
        if staged := self.staged_after(study, line, numbers[-1]):
            name, shown_first = f"{folder}/staged-{staged.iteration}.json", self.staged_document(study, line, staged)
            if self.blobs.read(name) != shown_first:
                self.blobs.replace(name, shown_first)  # before anybody is told of it
            document = self.public_document(study, line, numbers[-1], staged)
        if self.blobs.read(f"{folder}/latest.json") != document:
            self.blobs.replace(f"{folder}/latest.json", document)

    def public_document(self, study: str, line: str, iteration: int, staged: Staged | None = None) -> bytes:
        """Return the JSON of the model document that clients fetch; ``staged`` is what some are to take instead."""
        key, data = self._version_bytes(study, line, iteration)
        return self.shown(key, data, study, line, iteration, staged)

    def staged_document(self, study: str, line: str, staged: Staged) -> bytes:
        """Return the JSON of the model document of a staged version; raises :class:`StoreError` if it is gone."""
        key = _held_key(study, line, staged.iteration)
        return self.shown(key, self._read(key) or b"", study, line, staged.iteration)

    def shown(
        self, key: str, data: bytes, study: str, line: str, iteration: int, staged: Staged | None = None
    ) -> bytes:
        """Return the JSON that clients fetch of a version, from its own bytes; raises as :meth:`version` does."""
        part = self._decode(data, PublicPart, key)
        if (part.study, part.line, part.iteration) != (study, line, iteration):
            raise StoreError(self._another(key, part))
        return msgspec.json.encode(msgspec.structs.replace(part, staged=staged or UNSET))

    def _was_published(self, study: str, line: str, number: int) -> bool:
        return self.blobs.sight(f"{study}/{line}/public/{number}.json") is not None

    def _fence(self, study: str, line: str, number: int) -> Fence | None:
        """Return the fence in the place of a version, or None if it is not a fence."""
        key = _key(study, line, number)
        sight = self.blobs.sight(key)
        if sight is None or sight[-1] > MOST_FENCE_BYTES:
            return None
        known = self._fences.get(key)
        if known is None or known[0] != sight:
            known = (sight, self._read_fence(study, line, number))
            _remember(self._fences, key, known)
        return known[1]

    def _read_fence(self, study: str, line: str, number: int) -> Fence | None:
        key = _key(study, line, number)
        try:
            data = unsealed(self._read(key) or b"")
        except FedpingError:
            return None
        if _GOES_ON not in data:
            return None  # a small version, not a fence
        data = self._without_format(data, key)
        try:
            fence = msgspec.json.decode(data, type=Fence)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None
        of_here = (fence.study, fence.line, fence.after + 1) == (study, line, number)
        return fence if of_here and fence.goes_on_at > number else None

    def _trouble_of(
        self, study: str, line: str, number: int, before: int | None, *, thoroughly: bool = False
    ) -> str | None:
        """Return why a file is not the version after ``before``; cached as long as both files look the same."""
        key = _key(study, line, number)
        sight = self.blobs.sight(key)
        earlier = None if before is None else self.blobs.sight(_key(study, line, before))
        known = self._judged.get(key)
        if known is None or (known.sight, known.before) != (sight, earlier) or (thoroughly and not known.thoroughly):
            small = max(sight[-1] if sight else 0, earlier[-1] if earlier else 0) <= SMALL
            deep = thoroughly or small
            known = _Judged(sight, earlier, self._judge(study, line, number, before, deep), deep)
            _remember(self._judged, key, known)
        return known.trouble

    def _judge(self, study: str, line: str, number: int, before: int | None, thoroughly: bool) -> str | None:
        key = _key(study, line, number)
        try:
            link: Version | Link
            if thoroughly:
                link = self.version(study, line, number)
            else:
                link = self._decode(self._version_bytes(study, line, number)[1], Link, key)
        except FedpingError as error:
            return str(error)
        if (link.study, link.line, link.iteration) != (study, line, number):
            return self._another(key, link)
        if link.spec_digest != self.study(study).line(line).spec.digest:
            return self._foreign(key, "was computed for another model spec")
        if thoroughly and (later := self._written_later(number, key)):
            return later
        if number == 0 or before is None:
            return None
        if link.parent != before and (fence := self._fence(study, line, before)):
            before = fence.after  # right before the version, and the fence's marker is lost
        if link.parent != before:
            return self._foreign(key, f"follows version {link.parent}, and not version {before}")
        if thoroughly:
            try:
                parent = self.version(study, line, before)
            except FedpingError:
                return None  # which is damaged itself; the version after it stands for the line
            if link.parent_digest != parent.digest and not self._written_later(before, _key(study, line, before)):
                return self._foreign(key, f"was computed from another version {before} than the one that is here")
        return None

    def _written_later(self, number: int, key: str) -> str | None:
        """Return that the version just read has more than this program knows, and so has another digest here.

        None could follow it here: it would name that digest.
        """
        last = self._last_read
        if last is None or last.key != key:
            return None
        where = unknown_member(unsealed(last.data), last.version)
        return where and (
            f"{self.where}/{key} has '{where}', which fedping {__version__} does not know: a later version of fedping "
            f"has written it, and none can follow version {number} before fedping is upgraded here; then run the same "
            "command again"
        )

    def _another(self, key: str, found: Version | Link | PublicPart) -> str:
        return self._foreign(key, f"is version {found.iteration} of line '{found.line}' of study '{found.study}'")

    def _foreign(self, key: str, what: str) -> str:
        return (
            f"{self.where}/{key} {what}: move it out of the store if it does not belong there, or restore what was "
            "there from a copy"
        )

    def _without_format(self, data: bytes, key: str) -> bytes:
        """Return a study or a fence without its format; raises :class:`StoreError` if the format is newer."""
        try:
            return without_format(data, f"{self.where}/{key}")
        except NewerFormat as error:
            raise StoreError(str(error)) from error

    def _decode(self, data: bytes, kind: type[_T], key: str) -> _T:
        """Return a version, or a part of one, or a study without its format."""
        try:
            refuse_newer(format_of(data), f"{self.where}/{key}", NEWEST_FORMAT)
            return msgspec.json.decode(data, type=kind)
        except NewerFormat as error:
            raise StoreError(str(error)) from error
        except (msgspec.MsgspecError, UnicodeDecodeError, FedpingError) as error:
            raise StoreError(
                f"{self.where}/{key} cannot be read ({error}); it was damaged, or written by something else or by "
                "a later version of fedping, which has to be used here too: else restore it from a copy"
            ) from error


def store_at(where: Place) -> ModelStore:
    """Return the store at a place, whether or not there is one; only what is asked of it is looked at."""
    if isinstance(where, Path):
        return ModelStore(LocalBlobs(where), str(where))
    from fedping.model_store.objects import ObjectBlobs

    return ModelStore(ObjectBlobs(where), str(where))


def open_store(where: Place, *, create: bool = False) -> ModelStore:
    """Open the store in a local folder or in a bucket.

    Raises:
        StoreError: there is no such folder, or nothing in the bucket (and ``create`` is False), or the path is a file.
        FedpingError: the object store does not answer.
    """
    if isinstance(where, Bucket):
        store = store_at(where)
        if not create and store.is_empty():
            raise StoreError(_NO_STORE.format(where))
        return store
    if where.exists() and not where.is_dir():
        raise StoreError(f"the model store {where} is a file; give the folder of a store")
    if not where.is_dir() and not create:
        raise StoreError(_NO_STORE.format(where))
    return store_at(where)


def lost(study: str, line: str, newest: int, seen: int, where: str) -> str:
    """Return the sentence for a line that is behind its published versions."""
    return (
        f"line '{line}' of study '{study}' is at version {newest}, but {where} shows that version {seen} was "
        "published: the store is an older copy, and clients may have the versions in between; put back a newer one, or "
        f"let the line go on beyond them with 'fedping store continue {study} {line} --from {seen + 1}'"
    )


def _unfinished(study: str, line: str, number: int) -> str:
    return (
        f"'fedping store continue' was interrupted; finish it with 'fedping store continue {study} {line} --from "
        f"{number}'"
    )


def _before(numbers: tuple[int, ...], at: int) -> int | None:
    at %= len(numbers)
    return numbers[at - 1] if at else None


def _remember(memory: dict[str, _T], key: str, value: _T) -> None:
    if len(memory) >= _MOST_REMEMBERED:
        memory.clear()
    memory[key] = value


def _key(study: str, line: str, iteration: int) -> str:
    return f"{study}/{line}/versions/{iteration}.json"


def _held_key(study: str, line: str, iteration: int) -> str:
    return f"{study}/{line}/held/{iteration}.json"


def _heard_key(study: str, line: str, iteration: int) -> str:
    return f"{study}/{line}/held/{iteration}.heard.json"


def _marker_key(study: str, line: str, slot: int) -> str:
    return f"{study}/{line}/fences/{slot}.json"


def _offer_key(study: str, line: str) -> str:
    return f"{study}/{line}/offer.json"


def _made_at(terms: Terms) -> datetime:
    """Return when an offer was made; long ago where that cannot be read."""
    try:
        made = datetime.fromisoformat(terms.made)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return made if made.tzinfo else made.replace(tzinfo=UTC)


def _version_key(version: Version) -> str:
    return _key(version.study, version.line, version.iteration)


def _conflict(version: Version, there: int) -> VersionConflict:
    return VersionConflict(
        f"another round was first: line '{version.line}' of study '{version.study}' is already at version {there}, so "
        f"this version {version.iteration} was not published; nothing is lost and nothing needs doing"
    )
