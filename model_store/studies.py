"""The studies of a store: their settings and declared states, the history of both, and their helpers' offers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace

from fedping.model_store.documents import Damaged, Documents, StampCache, StoreError, sealed, unsealed
from fedping.model_store.history import Entry, History, Kind, history_key
from fedping.protocol.digest import canonical_json
from fedping.protocol.errors import FedpingError, InvalidSettings, did_you_mean
from fedping.protocol.formats import with_format
from fedping.protocol.sharing.keys import sealer
from fedping.protocol.sharing.offer import Offer, Terms
from fedping.protocol.sharing.terms import agreed
from fedping.protocol.study import Declared, Study


class Studies:
    """The studies of a store, with their declared states, changed settings and offers."""

    def __init__(self, documents: Documents, history: History) -> None:
        self._documents = documents
        self._history = history
        self._settings: StampCache[Study] = StampCache()

    def names(self) -> list[str]:
        """Return the names of the studies, sorted."""
        return sorted(name for name in self._documents.folders() if self._documents.stamp(_study_key(name)) is not None)

    def create(self, study: Study) -> bool:
        """Write the document of a new study; return False, without writing, if a study of this name exists."""
        return self._documents.create(_study_key(study.name), sealed(with_format(canonical_json(study))))

    def refuse_second_taker(self, study: Study) -> None:
        """Raise :class:`StoreError` if another study accepts telemetry of the same type; its requests name no study."""
        for name in self.names():
            try:
                other = self.study(name)
            except FedpingError:  # a study that can't be read takes no telemetry either
                continue
            if name != study.name and other.telemetry and other.pings == study.pings:
                raise StoreError(
                    f"the store {self._documents.where} has a study '{name}' that takes {other.pings} pings as "
                    "telemetry, whose paths name no study. Remove 'telemetry', or use another store"
                )

    def stamp(self, name: str) -> tuple[int, ...] | None:
        """Return the stamp of a study's file; None if it doesn't exist, or the store can't be read."""
        return self._documents.visible_stamp(_study_key(name))

    def study(self, name: str) -> Study:
        """Return a study with its present settings; raise :class:`StoreError` if it doesn't exist."""
        return self.settings(name)[1]

    def settings(self, name: str, number: int | None = None) -> tuple[int, Study]:
        """Return the settings of a study, and the number of the history entry that contains them.

        Args:
            name: the study's name.
            number: the entry's number; 0 for the settings at creation, None for the present settings.

        Raises:
            StoreError: the study doesn't exist, or its settings can't be read.
        """
        created = self.created(name)
        if number is None:
            number = self.settings_entry(name)
        if number == 0:
            return 0, created
        key = history_key(name, number)
        return number, self._settings.value(key, self._documents.stamp(key), lambda: self._changed(name, number))

    def _changed(self, name: str, number: int) -> Study:
        """Return a study as changed by an entry of its history."""
        entry = self._history.entry(name, number)
        if entry.study is None or entry.study.name != name:
            raise Damaged(
                f"{self._documents.where}/{history_key(name, number)} has no settings of study '{name}', and versions "
                "were made with them: restore it from a copy"
            )
        return entry.study

    def settings_entry(self, name: str) -> int:
        """Return the number of the history entry with the present settings, without reading these."""
        return self._history.standing(name).settings

    def created(self, name: str) -> Study:
        """Return a study with its settings at creation; raise :class:`StoreError` if it doesn't exist."""
        documents, key = self._documents, _study_key(name)
        data = documents.read_whole(key)
        if data is None:
            names = self.names()
            there = ", ".join(names) or "none; make one with 'fedping study create'"
            near = did_you_mean(name, names)
            raise StoreError(f"the store {documents.where} has no study '{name}'; it has {there}{near}")
        study = documents.decode(documents.without_format(unsealed(data), key), Study, key)
        if study.name != name:
            raise Damaged(
                f"{documents.where}/{key} is the study '{study.name}': a copy of a study does not belong in the store; "
                f"move the folder '{name}' out of it"
            )
        return study

    def declared(self, study: str) -> Declared:
        """Return the last declared state of a study; running if none was declared.

        Raises:
            StoreError: the state can't be read, or was written by a later version; declaring it again repairs this.
        """
        key = _state_key(study)
        data = self._documents.read_whole(key)
        declared = Declared()
        if data is not None:
            declared = self._documents.decode(self._documents.without_format(unsealed(data), key), Declared, key)
        standing = self._history.standing(study)
        return standing.declared if standing.number > declared.entry else declared

    def declare(self, study: str, declared: Declared, *, after: int | None = None) -> None:
        """Declare the state of a study, and record it in the history; do nothing if it is already the present state.

        Args:
            study: the study's name.
            declared: the state, its time, author and reason.
            after: the newest entry of the history that the caller knows; None for the newest that exists.

        Raises:
            HistoryConflict: a newer entry exists; nothing was written.
            StoreError: the study doesn't exist.
        """
        self.study(study)
        standing = self._history.standing(study)
        try:
            if replace(self.declared(study), entry=0) == replace(declared, entry=0):
                return
        except StoreError:
            pass  # it is replaced
        number = (standing.number if after is None else after) + 1
        declared = replace(declared, entry=number)
        entry = Entry(
            kind=declared.state,
            number=number,
            declared=declared,
            settings=standing.settings,
            at=declared.since,
            by=declared.by,
            because=declared.because,
        )
        self._history.append(study, entry)
        self._documents.replace(_state_key(study), sealed(with_format(msgspec.json.encode(declared))))

    def change(
        self, changed: Study, told: tuple[str, ...], *, at: str, by: str = "", because: str = "", after: int
    ) -> int:
        """Change a study's settings from its next rounds on; return the number of the new history entry.

        The caller checks whether these changes are allowed, with `fedping.protocol.study_changes`.

        Raises:
            HistoryConflict: a newer entry than ``after`` exists; nothing was written.
            StoreError: the study doesn't exist, or another study accepts telemetry of the same type.
        """
        entry = self._next(changed.name, "changed", told, at, by, because, after)
        self._history.append(changed.name, replace(entry, settings=entry.number, study=changed))
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
        """Record the deletion of landed pings in a study's history; arguments as in :class:`Entry`.

        Raises:
            HistoryConflict: another process added an entry at the same time; nothing was written.
            StoreError: the study doesn't exist.
        """
        entry = self._next(study, kind, told, at, by, because, self._history.standing(study).number)
        self._history.append(study, replace(entry, versions=dict(versions or {}), files=files))

    def _next(self, study: str, kind: Kind, told: tuple[str, ...], at: str, by: str, because: str, after: int) -> Entry:
        self.created(study)
        return Entry(
            kind=kind,
            number=after + 1,
            declared=self.declared(study),
            settings=self.settings_entry(study),
            at=at,
            by=by,
            because=because,
            told=told,
        )

    def history(self, study: str) -> list[Entry]:
        """Return the entries of a study's history, oldest first; raise :class:`StoreError` if an entry is damaged."""
        self.created(study)
        return [self._history.entry(study, number) for number in range(1, self._history.newest(study) + 1)]

    def rewritten(self, study: str) -> frozenset[str]:
        """Return the landed files that a client's pings were removed from, by their paths below the landing folder."""
        return frozenset(path for entry in self.history(study) for path in entry.files)

    def pruned(self, study: str, line: str) -> frozenset[int]:
        """Return the versions of a line whose landed pings were deleted."""
        entries = (entry for entry in self.history(study) if entry.kind == "pruned")
        return frozenset(number for entry in entries for number in entry.versions.get(line, ()))

    def offer(self, study: str, line: str) -> Offer | None:
        """Return the published offer of a line's helper; None if there is none.

        Raises:
            StoreError: the offer can't be read, or was written by a later version; publishing it again repairs this.
        """
        documents, key = self._documents, _offer_key(study, line)
        data = documents.read_whole(key)
        return None if data is None else documents.decode(documents.without_format(unsealed(data), key), Offer, key)

    def offers(self, study: Study) -> dict[str, Offer]:
        """Return the published offers of a study's two-server lines, by line; raise the errors of :meth:`offer`."""
        shared = [line.name for line in study.lines if line.privacy is not None and line.privacy.shared is not None]
        offers = {name: self.offer(study.name, name) for name in shared}
        return {name: offer for name, offer in offers.items() if offer is not None}

    def publish_offer(self, study: str, line: str, offer: Offer) -> Offer | None:
        """Publish the offer of a line's helper; return the previous offer, None if there was none or it is unreadable.

        The offer needn't be trusted, because clients verify it again. But with an unsuitable offer they would send
        nothing.

        Raises:
            InvalidSettings: the offer doesn't fit the line, its key is invalid, or it is older than the present offer.
            StoreError: the study doesn't exist.
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
                f"the offer of {terms.made} is older than the current offer of line '{line}' of study '{study}', and "
                "the helper may no longer have its key. Ask the helper for its current offer"
            )
        self._documents.replace(_offer_key(study, line), sealed(with_format(msgspec.json.encode(offer))))
        return before


def _study_key(study: str) -> str:
    return f"{study}/study.json"


def _state_key(study: str) -> str:
    return f"{study}/state.json"


def _offer_key(study: str, line: str) -> str:
    return f"{study}/{line}/offer.json"


def _made_at(terms: Terms) -> datetime:
    """Return the time of an offer; a time long ago if it can't be read."""
    try:
        made = datetime.fromisoformat(terms.made)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return made if made.tzinfo else made.replace(tzinfo=UTC)
