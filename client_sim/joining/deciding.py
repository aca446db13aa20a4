"""The decision whether an institution's rows are protected: by its options, its folder and its ledger."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.data.table import Table
from fedping.client_sim.joining import consent as consents
from fedping.client_sim.joining.columns import AgreedColumns
from fedping.client_sim.joining.folder import Consent, StateFolder
from fedping.client_sim.joining.ledger import Book, Ledger, LedgerTrouble, Role, ledger_of
from fedping.client_sim.joining.protection import Decided, Protection, persons_of, row_contents
from fedping.client_sim.joining.terms import Membership
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.row_privacy import EPSILON, VERSIONS, usual_delta


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The choices of a person in a run, and the table that they are about.

    Attributes:
        data: the table's file.
        epsilon, delta, versions, person, ledger: the options of this name; None if they were not given.
        accepts: whether the person accepts that rows can be computed.
        shows: whether the run only shows a ping and sends nothing.
        held_out: share of the rows that are held out; None if none are.
        a_day: maximum number of pings in 24 hours; None without a limit.
        columns: the agreed columns, if any.
        colluding: number of institutions of a sum that may collude; None for the study's number.
    """

    data: Path
    epsilon: float | None
    delta: float | None
    versions: int | None
    person: str | None
    ledger: Path | None
    accepts: bool
    shows: bool
    held_out: float | None
    a_day: int | None
    columns: AgreedColumns | None
    colluding: int | None = None

    @property
    def holds_out(self) -> bool:
        """Whether rows are held out."""
        return self.held_out is not None

    @property
    def says_so(self) -> bool:
        """Whether a person has made a decision in this run."""
        given = (self.epsilon, self.delta, self.versions, self.person, self.colluding)
        return self.accepts or any(each is not None for each in given)


@dataclass(frozen=True)
class Deciding:
    """The outcome of the decisions.

    Attributes:
        consent: the consent.
        member: the institution's place in the study.
        about: the table.
        ledger: ledger of the table; None without protection.
        table: digest of its rows, if they are protected.
        division: digest of the division of the rows between the roles; empty if no rows are held out. A person's rows
            stay together.
        persons: person of each row; None if rows are protected, or without protection.
        a_day: maximum number of pings in 24 hours; None without a limit.
        begins: whether this run begins the protection: earlier runs, if any, did not protect the rows.
        heaviest: the largest weight of a class, if classes have any.
    """

    consent: Consent
    member: Membership
    about: consents.Table
    ledger: Ledger | None = None
    table: str = ""
    division: str = ""
    persons: NDArray[np.intp] | None = None
    a_day: int | None = None
    begins: bool = False
    heaviest: float = 1.0

    @property
    def _book(self) -> Book | None:
        consent = self.consent
        return None if self.ledger is None else self.ledger.read().with_budget(consent.epsilon, consent.delta)

    @cached_property
    def sentences(self) -> tuple[str, ...]:
        """The facts that a person has to know."""
        return consents.sentences(self.consent, self.member, self.about, self._book)

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that a person has to know, as JSON, with the budget spent so far."""
        return consents.facts(self.consent, self.member, self.about, self._book)

    def keep(self, folder: StateFolder) -> None:
        """Write the consent to the institution's folder."""
        if folder.consent != self.consent:
            folder.keep_consent(self.consent)

    def with_persons(self, rows: Table) -> Table:
        """Return the rows of the table, with their persons if persons are protected."""
        return rows if self.persons is None else replace(rows, key=self.persons)

    def without_persons(self, rows: Table) -> Table:
        """Return the rows that the model learns from, without the column of persons."""
        return rows if rows.key is None else replace(rows, key=None)

    def of_client(self, rows: Table, role: Role = "training") -> Decided:
        """Return the decisions for the client of these rows."""
        # earlier pings came from the client that trains
        consent = self.consent if role == "training" else msgspec.structs.replace(self.consent, begun=0)
        if self.ledger is None:
            return Decided(consent, a_day=self.a_day)
        own = rows.key if rows.key is not None else self.persons
        persons = None if self.persons is None or own is None else np.unique(own, return_inverse=True)[1]
        protection = Protection(self.ledger, consent, self.table, role, self.division, persons, self.heaviest)
        return Decided(consent, protection, self.a_day, discards=self.begins)


def decide(member: Membership, folder: StateFolder, rows: Table, chosen: Chosen) -> Deciding:
    """Return the decision on the protection of an institution's rows.

    The choice of this run has precedence, then the folder's, then the default: protected rows.

    Raises:
        InvalidSettings: the rows can't be protected, and the person doesn't accept that they can be computed.
        Undecided: a person has to decide first.
        LedgerTrouble: the table's ledger is lost or damaged.
        BudgetEnded: the table's budget is spent.
    """
    before = folder.consent
    if chosen.accepts and consents.row_sums_of(member.line) is not None:
        raise InvalidSettings(
            f"line '{member.line.name}' accepts only sums of protected rows; replace --accept-reconstruction by "
            "--epsilon"
        )
    unprotected = before is not None and not before.protected and not chosen.says_so
    if unprotected and consents.row_sums_of(member.line) is not None:
        raise consents.Undecided(
            f"line '{member.line.name}' now accepts only sums of protected rows, but you accepted before that rows can "
            "be reconstructed; give --epsilon 3 to protect each row from now on (earlier pings stay unprotected)"
        )
    if chosen.accepts or unprotected:
        versions = chosen.versions if chosen.accepts or before is None else before.versions
        now = consents.unprotected(member, versions)
        if before is not None and not before.protected and (not chosen.accepts or before.versions == versions):
            now = msgspec.structs.replace(now, begun=before.begun)
        elif versions is not None:
            now = msgspec.structs.replace(now, begun=folder.progress.contributed)
        if not chosen.accepts:
            consents.check_decided(before, now, has_trained=folder.has_trained)
        return Deciding(now, member, consents.Table(len(rows), rows.x.shape[1]), a_day=chosen.a_day)
    weights = None if chosen.columns is None else chosen.columns.class_weights
    moments = chosen.columns is not None and chosen.columns.moments
    reason = consents.why_unprotectable(member, moments=moments, weights=weights)
    if reason is not None:
        or_else = (
            "or give --accept-reconstruction to allow the study's operator to work out rows of your table"
            if consents.row_sums_of(member.line) is None
            else "because its sums accept only protected rows"
        )
        raise InvalidSettings(
            f"the rows of this table cannot be protected here: {reason}. Join another study, {or_else}"
        )
    return _protected(member, folder, rows, chosen, before)


def _protected(
    member: Membership, folder: StateFolder, rows: Table, chosen: Chosen, before: Consent | None
) -> Deciding:
    person = chosen.person if chosen.person is not None or before is None else before.person
    persons = None if person is None else persons_of(chosen.data, person)
    units = len(rows) if persons is None else int(persons.max(initial=-1)) + 1
    ledger = ledger_of(chosen.data) if chosen.ledger is None else Ledger(chosen.ledger)
    if before is not None and before.protected and not ledger.exists:
        raise LedgerTrouble(
            f"the ledger {ledger.path} and its copy are missing, but this institution has sent pings of the table. If "
            "the table was renamed, pass its ledger with --ledger. Otherwise restore a backup and run 'fedping join "
            f"ledger {chosen.data} --restored', or, without a backup, state an upper bound of the spent epsilon with "
            f"'fedping join ledger {chosen.data} --spent EPSILON'"
        )
    epsilon, delta = _usual_budget(ledger, units)
    epsilon = epsilon if chosen.epsilon is None else chosen.epsilon
    delta = delta if chosen.delta is None else chosen.delta
    if chosen.shows:  # a preview doesn't write a decision
        book = ledger.read() if ledger.exists else ledger.open(EPSILON, usual_delta(units), units)
        book = book.with_budget(epsilon, delta)
    else:
        book = ledger.open(epsilon, delta, units)
    contents = row_contents(chosen.data)
    table = ledger.take_table(contents, write=not chosen.shows)
    divided = chosen.holds_out and persons is None
    division = _division(folder, rows, contents, chosen) if divided else ""
    about = consents.Table(len(rows), rows.x.shape[1], None if persons is None else units)
    weights = None if chosen.columns is None else chosen.columns.class_weights
    heaviest = max(weights) if weights else 1.0
    kept = before if before is not None and before.protected else None
    versions = chosen.versions or (kept.versions if kept is not None else None) or VERSIONS
    if kept is not None and (kept.epsilon, kept.delta, kept.versions, kept.person) == (
        epsilon,
        delta,
        versions,
        person,
    ):
        now = msgspec.structs.replace(kept, **_asked(member, chosen, kept))
        if consents.still_consents(kept, now) and bool(kept.noise_evaluation) >= chosen.holds_out:
            return Deciding(kept, member, about, ledger, table, division, persons, chosen.a_day, heaviest=heaviest)
        if not chosen.says_so and not chosen.shows:
            consents.check_decided(kept, now, has_trained=folder.has_trained)
    elif not chosen.says_so and not chosen.shows and kept is None:
        consents.check_decided(
            None, msgspec.structs.replace(consents.unprotected(member, None)), has_trained=folder.has_trained
        )
    planned = consents.planned(member, book, versions, person, holds_out=chosen.holds_out)
    planned = consents.with_trust(planned, member.line, _colluding(chosen, kept))
    progress = folder.progress
    since = max(progress.version, progress.moved) if kept is None else kept.since
    now = msgspec.structs.replace(planned, begun=progress.contributed, since=since)
    begins = kept is None
    return Deciding(now, member, about, ledger, table, division, persons, chosen.a_day, begins, heaviest)


def _usual_budget(ledger: Ledger, units: int) -> tuple[float, float]:
    """Return the default budget of a run: the ledger's, if a person has decided on it."""
    usual = usual_delta(units)
    if not ledger.exists:
        return EPSILON, usual
    book = ledger.read()
    epsilon, delta = book.budget
    only_shown = len(book.entries) == 1  # perhaps a preview with --person, where delta is larger than for rows
    return epsilon, min(delta, usual) if only_shown else delta


def _division(folder: StateFolder, rows: Table, contents: Sequence[bytes], chosen: Chosen) -> str:
    """Return a digest of the rows, their order, and the draw and the share of the held-out rows."""
    order = hashlib.sha256(b"".join(contents)).hexdigest()
    classes = hashlib.sha256(rows.y.tobytes()).hexdigest()  # the held-out share is drawn in each class
    divides = f"{folder.seed} {chosen.held_out} {order} {classes}"
    return hashlib.sha256(divides.encode()).hexdigest()


def _asked(member: Membership, chosen: Chosen, kept: Consent) -> dict[str, Any]:
    asked = {
        "numbers": member.line.spec.m,
        "training": consents.training_digest(member.line.training),
        "sums": consents.sums_of(member),
    }
    rows = consents.row_sums_of(member.line)
    if rows is None:
        return asked | {"institutions": 0}
    least = consents.least_institutions(member.line)
    now = msgspec.structs.replace(kept, noise=rows.noise, institutions=least)
    trusting = consents.with_trust(now, member.line, _colluding(chosen, kept) or 0)
    return asked | {"noise": rows.noise, "institutions": least, "share": trusting.share}


def _colluding(chosen: Chosen, kept: Consent | None) -> int | None:
    """Return the number of colluding institutions in a sum, from this run or an earlier one; None if never given."""
    if chosen.colluding is not None or kept is None or not kept.institutions:
        return chosen.colluding
    return kept.colluding
