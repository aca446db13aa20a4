"""The studies that ingest takes pings for, kept up with the store without asking it for every ping."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from fedping.model_store import ModelStore
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.sharing.offer import Offer
from fedping.protocol.study import Declared
from fedping.server_jobs.ingest.admission.rejection import Rejection
from fedping.server_jobs.ingest.admission.rules import SETTLES_WITHIN, LineHead, StudyRules, TicketKeys, study_rules

MISS_PAUSE = 0.1
"""Seconds between looks at the store for a study that was asked for and is not known."""


LOOK_REST = 1.0
"""Seconds for which the newest version is told again that was seen in an object store: a request takes as long as a
hundred pings, and costs money."""

AFAR_EVERY, NEAR_EVERY = 5.0, 1.0
"""Seconds between two looks at a store in a bucket, where each request costs money, and at one in a folder."""

TELEMETRY = "telemetry"
"""The namespace of Firefox' own pings, whose paths name no study."""


def telemetry_of(document: str) -> str:
    """Return under which name a catalogue has the study that takes telemetry of a type of document."""
    return f"{TELEMETRY}/{document}"  # which is no name that a study can have


class Catalogue:
    """The rules of every study of a store, what is declared of it, and what helpers offer its lines of shares.

    A study is read when it is new, and again when its settings have changed; what is declared and offered is read each
    time. A study that was known once stays known: a store that is away for a moment must not cost clients their pings.
    Nor must a study that cannot be served cost those of others: it asks for what is not here, is damaged, or was
    written by a later version. Its own pings are to be sent again later.

    Args:
        store: where the studies are.
        patient: whether to go on without a store that can be read.
        ticket_keys: the file of the keys of tickets; None if there is none.

    Attributes:
        trouble: what is wrong with the store or a study of it; None if nothing is.
        unusable: why the studies cannot be served that cannot, by their names.

    Raises:
        StoreError: the store cannot be read; with ``patient``, :attr:`trouble` says so instead.
        FedpingError: there are studies and none of them can be served; likewise.
    """

    def __init__(self, store: ModelStore, *, patient: bool = False, ticket_keys: Path | None = None) -> None:
        self._store = store
        self._keys = None if ticket_keys is None else TicketKeys(ticket_keys)
        self._rules: dict[str, StudyRules] = {}
        self._entries: dict[str, int] = {}
        self._declared: dict[str, Declared] = {}
        self._offers: dict[str, dict[str, Offer]] = {}
        self._telemetry: dict[str, StudyRules] = {}
        self._refreshing, self._beginning = threading.Lock(), threading.Lock()
        self._begun, self._ended = 0.0, threading.Event()
        self._ended.set()
        self._refreshed = 0.0
        self.trouble: str | None = None
        self.unusable: dict[str, str] = {}
        if patient:
            self.refresh()
            return
        self._read()
        if self.unusable and not self._rules:
            raise FedpingError(next(iter(self.unusable.values())))

    def rules(self, study: str) -> StudyRules:
        """Return the rules of a study that is known by now; raises :class:`Rejection` if it is not.

        It does not look at the store, which may take its time: :meth:`look_for` does.
        """
        found = self._known(study)
        if found is not None:
            return found
        if study in self.unusable:
            raise Rejection("study_unreadable", f"the server cannot read the study '{study}' now; send it again later")
        if study.startswith(telemetry_of("")):
            raise Rejection(
                "unknown_study",
                f"no path of {TELEMETRY} names a study, and there is not exactly one here that takes "
                f"{study.partition('/')[2]} pings as telemetry; correct the path",
            )
        there = ", ".join(sorted(self._rules)) or "none yet"
        raise Rejection("unknown_study", f"there is no such study here; there is {there}: correct the path")

    def _known(self, study: str) -> StudyRules | None:
        return self._rules.get(study) or self._telemetry.get(study)

    def taking(self, study: str) -> StudyRules:
        """Return :meth:`rules` of a study whose pings are taken; raises :class:`Rejection` if it has ended, too."""
        rules = self.rules(study)
        if self.declared(rules.study.name).state == "ended":
            raise Rejection("study_ended", f"study '{rules.study.name}' has ended and takes no more pings; leave it")
        return rules

    def declared(self, study: str) -> Declared:
        """Return what was declared of a study when the store was last looked at."""
        return self._declared.get(study, Declared())

    def offers(self, study: str) -> Mapping[str, Offer]:
        """Return what helpers offered the lines of a study, by line, when the store was last looked at."""
        return self._offers.get(study, {})

    def found(self, study: str) -> StudyRules:
        """Return the rules of a study, looking for it if need be; raises :class:`Rejection` if there is none."""
        self.look_for(study)
        return self.rules(study)

    def look_for(self, study: str) -> None:
        """Look at the store if a study is not known, unless that was done a moment ago."""
        pause = MISS_PAUSE if self._store.is_near else LOOK_REST
        if not self.knows(study) and time.monotonic() - self._refreshed > pause:
            self.keep_up().wait(max(0.0, self._begun + SETTLES_WITHIN - time.monotonic()))

    def names(self) -> list[str]:
        """Return the names of the studies that are known, sorted."""
        return sorted(self._rules)

    def knows(self, study: str) -> bool:
        """Return whether a study is known, without a look at the store."""
        return self._known(study) is not None

    def name_of(self, study: str) -> str:
        """Return the name of a study as it is in the store, "" of one that is not known."""
        known = self._known(study)
        return known.study.name if known else ""

    @property
    def every(self) -> float:
        """Seconds after which to look at the store again."""
        return NEAR_EVERY if self._store.is_near else AFAR_EVERY

    def keep_up(self) -> threading.Event:
        """Call :meth:`refresh`; in a thread, unless one does so already, if the store takes its time.

        Returns:
            what is set when that has ended.
        """
        with self._beginning:
            if self._ended.is_set():
                self._begun = time.monotonic()
                if self._store.is_near:
                    self.refresh()
                    return self._ended
                self._ended = threading.Event()
                threading.Thread(target=self._refresh_beside, name="catalogue", daemon=True).start()
            return self._ended

    def _refresh_beside(self) -> None:
        try:
            self.refresh()
        finally:
            self._ended.set()

    def refresh(self) -> None:
        """Bring studies and heads up to the store; if it cannot be read, keep what is known and say so."""
        try:
            self._read()
            if self._keys is not None:
                self._keys.refresh()
        except (FedpingError, OSError) as error:
            self.trouble = str(error)

    def _read(self) -> None:
        with self._refreshing:
            self._refreshed = time.monotonic()
            names = self._store.studies.names()
            new, self.unusable = self._load_all(name for name in names if name not in self._rules)
            self._rules = {**self._rules, **new}
            unclear = [*self._read_changed(), *self._read_declared()]
            takers = Counter(each.document.name for each in self._rules.values() if each.study.telemetry)
            self._telemetry = {
                telemetry_of(each.document.name): each
                for each in self._rules.values()
                if each.study.telemetry and takers[each.document.name] == 1
            }
            gone = sorted(self._rules.keys() - set(names))
            for name in self._rules.keys() - set(gone):
                for head in self._rules[name].heads.values():
                    head.latest()
        if gone:
            raise FedpingError(f"the store {self._store.where} no longer has the study '{gone[0]}'; restore it")
        self.trouble = "; and ".join([*self.unusable.values(), *unclear]) or None

    def _read_changed(self) -> list[str]:
        """Read the studies again whose settings have changed; return why not, where a study stays as known."""
        unclear = []
        for name, rules in self._rules.items():
            try:
                entry = self._store.studies.settings_entry(name)
                if entry != self._entries.get(name, entry):
                    self._rules = {**self._rules, name: self._load(name, rules.heads)}
            except InvalidSettings as error:
                unclear.append(f"study '{name}' takes pings by the settings of before: {error}")
            except FedpingError as error:
                unclear.append(str(error))
        return unclear

    def _read_declared(self) -> list[str]:
        """Read what is declared of each study, and offered; return why that cannot be read where it stays as known."""
        unclear = []
        declared, offers = dict(self._declared), dict(self._offers)
        for name, rules in self._rules.items():
            try:
                declared[name] = self._store.studies.declared(name)
                offers[name] = self._store.studies.offers(rules.study)
            except FedpingError as error:
                unclear.append(str(error))
        self._declared, self._offers = declared, offers
        return unclear

    def _load_all(self, names: Iterable[str]) -> tuple[dict[str, StudyRules], dict[str, str]]:
        """Return the rules of studies, and why those cannot be served that cannot."""
        found: dict[str, StudyRules] = {}
        unusable: dict[str, str] = {}
        for name in names:
            try:
                found[name] = self._load(name)
            except InvalidSettings as error:
                unusable[name] = f"study '{name}' cannot take pings: {error}"
            except FedpingError as error:
                unusable[name] = str(error)
        return found, unusable

    def _load(self, name: str, heads: Mapping[str, LineHead] | None = None) -> StudyRules:
        """Return the rules of a study; with the ``heads`` that are known of its lines, which no change adds to."""
        entry, study = self._store.studies.settings(name)
        known = dict(heads or {})
        for line in study.lines:
            known.setdefault(
                line.name,
                LineHead(
                    self._store.lines.newest(name, line.name),
                    partial(self._store.lines.newest_from, name, line.name),
                    partial(self._store.study, name),
                    partial(self._store.held.staged_after, name, line.name),
                    rest=0.0 if self._store.is_near else LOOK_REST,
                ),
            )
        rules = study_rules(study, known, self._keys)
        self._entries[name] = entry
        return rules
