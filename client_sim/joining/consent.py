"""An institution's consent: to a protected table at a price, or to an unprotected table whose rows can be computed.

A person gets at most three sentences: that a row can be computed from one update, the number of rows that can be
computed from several, or the protection of each row and the used part of its budget. Without explicit consent to the
first two, nothing is sent. The consent is stored, and requested again after a change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from fedping.client_sim.joining.folder import Consent
from fedping.client_sim.joining.ledger import Book, BudgetEnded, ended
from fedping.client_sim.joining.terms import Membership
from fedping.client_sim.learning.models.k_means import KMeans
from fedping.client_sim.learning.models.network import Network
from fedping.client_sim.learning.submodel import Part
from fedping.protocol.digest import digest_of
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.notation import format_count
from fedping.protocol.privacy import RowSums
from fedping.protocol.row_privacy import (
    UNIT,
    discreteness,
    epsilon_of,
    mu_of_replacing,
    noise_multiplier,
    noise_of_own_share,
    noise_of_share,
    reach,
    steps_on_rows,
    why_unprotected,
)
from fedping.protocol.study import PublicLine
from fedping.protocol.training import LocalSteps, OneGradient, Training

EVALUATION = 0.2
"""The evaluation's share of a version's price, if a person may have both held-out rows and others."""


LEAST_LEFT = 1e-3
"""Minimum share of a budget that is worth planning with; with less, only noise would be left."""


class Undecided(FedpingError):
    """A person has to decide before anything is sent. Exit code 6."""

    exit_code = 6


@dataclass(frozen=True)
class Table:
    """The table that a consent is about: its numbers of rows, features and persons."""

    rows: int
    features: int
    persons: int | None = None


def unprotected(member: Membership, versions: int | None) -> Consent:
    """Return the consent to an unprotected table, whose rows can be computed from updates."""
    line = member.line
    return Consent(protected=False, numbers=line.spec.m, training=training_digest(line.training), versions=versions)


def planned(member: Membership, book: Book, versions: int, person: str | None, *, holds_out: bool) -> Consent:
    """Return the consent that spreads a table's remaining budget over this number of versions.

    In sums of institutions the study sets the noise of each version, so that a smaller budget allows fewer versions.

    Raises:
        BudgetEnded: nothing is left.
        InvalidSettings: the study has too little noise for a single version.
    """
    if book.left <= LEAST_LEFT * book.allowed:
        raise BudgetEnded(ended(book))
    line, (epsilon, delta) = member.line, book.budget
    left = book.left * (1 - 1e-9)
    both = holds_out and person is not None  # a row is either used in training or held out, and pays only for this role
    of_training, of_evaluation = (left * (1 - EVALUATION), left * EVALUATION) if both else (left, left)
    sums = sums_of(member)
    if (row_sums := row_sums_of(member.line)) is not None:
        return _planned_in_sums(member, book, versions, person, row_sums)
    return replace(
        unprotected(member, versions),
        protected=True,
        epsilon=epsilon,
        delta=delta,
        noise=noise_multiplier(of_training**0.5, versions * sums),
        noise_evaluation=noise_multiplier(of_evaluation**0.5, versions) if holds_out else 0.0,
        sums=sums,
        person=person,
        training=training_digest(line.training),
    )


def _planned_in_sums(member: Membership, book: Book, versions: int, person: str | None, rows: RowSums) -> Consent:
    epsilon, delta = book.budget
    affordable = book.versions_left(1 / rows.noise**2)
    if affordable < 1:
        raise InvalidSettings(
            f"a version of line '{member.line.name}' with noise {rows.noise:g} costs epsilon "
            f"{epsilon_of(1 / rows.noise, delta):.3g} of each row, and less is left of the table's {epsilon:g}; "
            "ask the study's operator for more noise, or decide on a larger --epsilon"
        )
    least = least_institutions(member.line)
    return replace(
        unprotected(member, min(versions, affordable)),
        protected=True,
        epsilon=epsilon,
        delta=delta,
        noise=rows.noise,
        sums=1,
        person=person,
        share=noise_of_share(rows.noise, least, rows.colluding),
        institutions=least,
        colluding=rows.colluding,
    )


def with_trust(consent: Consent, line: PublicLine, colluding: int | None) -> Consent:
    """Return a consent that protects against ``colluding`` institutions, if this number is larger than the study's.

    Raises:
        InvalidSettings: the line has no sums of institutions, or all institutions would collude.
    """
    if colluding is None:
        return consent
    rows, least = row_sums_of(line), consent.institutions
    if rows is None:
        raise InvalidSettings(f"line '{line.name}' has no sums of institutions; remove --colluding")
    if colluding >= least:
        raise InvalidSettings(
            f"--colluding {colluding:,} is too large: the smallest sum has {least - 1:,} institutions other than you. "
            f"Give {least - 1:,} to trust none of them"
        )
    feared = max(colluding, rows.colluding)
    return replace(consent, share=noise_of_own_share(rows.noise, least, rows.colluding, feared), colluding=feared)


def row_sums_of(line: PublicLine) -> RowSums | None:
    """Return the protection of rows in a line's sums of institutions; None if each institution protects them itself."""
    return None if line.privacy is None else line.privacy.rows


def least_institutions(line: PublicLine) -> int:
    """Return the minimum number of institutions in a line's sum."""
    assert line.privacy is not None
    assert line.privacy.shared is not None
    return line.privacy.shared.min_batch


def training_digest(training: Training) -> str:
    """Return the digest of a training, which detects changes."""
    return digest_of(training)


def sums_of(member: Membership) -> int:
    """Return the number of sums over rows that a ping needs: one per training step, and one for a separate loss."""
    training, arm = member.line.training, member.arm
    if not arm.submits:
        return 1
    return steps_on_rows(training) + (0 if arm.applies else 1)


def full_batch(training: Training) -> Training:
    """Return the training with each step on all rows, so that an epoch is one step."""
    if isinstance(training, OneGradient | LocalSteps):
        return replace(training, batch=None)
    return training


def why_unprotectable(member: Membership, *, moments: bool, weights: tuple[float, ...] | None) -> str | None:
    """Return the reason why a table can't be protected in a study; None if it can.

    Args:
        member: the institution's place in the study.
        moments: whether the study asks for means and mean squares of columns without scales.
        weights: weights of classes.
    """
    training, line = member.line.training, member.line
    if moments:
        return (
            "means and squares of columns have no bound without an agreed range. Take means and deviations from the "
            "literature or the range of the instrument"
        )
    if (why := why_unprotected(training)) is not None:
        return why
    if member.arm.personal or isinstance(member.model, Part):
        return "your own model would be trained on your rows without noise, next to the shared one"
    if row_sums_of(line) is not None:
        if not (member.arm.submits and member.arm.applies):
            return f"arm '{member.arm.name}' does not both apply and train the model, as sums of institutions need"
    elif line.privacy is not None:
        return "the line is already private, which protects a client as a whole, but not each row"
    if weights is not None and not all(weights):
        return "a class has the weight 0: the number of rows would reveal the size of the remaining classes"
    return None


# Sentences


def sentences(consent: Consent, member: Membership, table: Table, book: Book | None) -> tuple[str, ...]:
    """Return the facts that a person has to know before anything is sent."""
    if consent.protected:
        assert book is not None, "a protected table has a ledger"
        return (_protected(consent, member, table, book),)
    return (*_exactly(member, table), _several(consent, table))


def _exactly(member: Membership, table: Table) -> tuple[str, ...]:
    """Return the first sentence, if a single row can be computed from one update."""
    line = member.line
    batch = getattr(line.training, "batch", None)
    whole = member.model.whole if isinstance(member.model, Part) else member.model
    many = isinstance(whole, Network) or (isinstance(whole, KMeans) and whole.clusters > 1)
    if not (many or batch == 1 or table.rows <= 2) or not member.arm.submits:
        return ()
    rows = reach(table.rows, 1, line.spec.m, table.features)
    return (
        f"a row of your table can be worked out exactly from one update: its {line.spec.m:,} numbers have room for "
        f"{rows:,} of your {table.rows:,} rows, and the server chooses the weights that decide which",
    )


def _several(consent: Consent, table: Table) -> str:
    if consent.versions is None:
        return (
            f"the party that chooses the model can work out all of your {table.rows:,} rows in enough versions, with "
            "any number of rows and any batch: updates are not protected"
        )
    worked_out = reach(table.rows, consent.versions, consent.numbers, table.features)
    return (
        f"the party that chooses the model can work out up to {worked_out:,} of your {table.rows:,} rows in "
        f"{consent.versions:,} versions, by the attacks that are known: updates are not protected"
    )


def _protected(consent: Consent, member: Membership, table: Table, book: Book) -> str:
    unit = "row" if consent.person is None else "person"
    units = table.rows if table.persons is None else table.persons
    return _in_sums(consent) + (
        f"each {unit} of your {units:,} is protected by noise, with epsilon "
        f"{epsilon_of(consent.mu, consent.delta):.3g} and delta {consent.delta:.2g}: everything sent in "
        f"{format_count(consent.versions or 0, 'version')} is at most e^epsilon times as likely with the {unit} "
        "as without it, except with probability delta; spent so far, over all studies of this table: epsilon "
        f"{book.spent_epsilon:.3g} of {consent.epsilon:g}"
    )


def _in_sums(consent: Consent) -> str:
    """Return the assumptions behind the protection in sums of institutions; "" without sums of institutions."""
    if not consent.institutions:
        return ""
    alone = epsilon_of(consent.mu_alone, consent.delta)
    if consent.colluding == consent.institutions - 1:
        return "by your noise alone, even if all other institutions, the operator and the helper collude, "
    if not consent.colluding:  # who reads the models can take the noise off that it added itself
        against = (
            "as long as none of the others collude with the operator, were invented by it, or compare the models "
            "with what they sent"
        )
    else:
        against = (
            f"as long as at most {consent.colluding:,} of the others collude with the operator or were made up by it"
        )
    return (
        f"operator and helper see only sums of {consent.institutions:,} institutions or more, unless they put their "
        f"parts together; in these sums, {against} (if either fails, epsilon is {alone:.3g}), "
    )


def facts(consent: Consent, member: Membership, table: Table, book: Book | None) -> dict[str, Any]:
    """Return the facts of :func:`sentences` as JSON."""
    found: dict[str, Any] = {
        "protected": consent.protected,
        "sentences": sentences(consent, member, table, book),
        "rows": table.rows,
        "numbers": consent.numbers,
        "versions": consent.versions,
    }
    if not consent.protected:
        versions = consent.versions
        worked_out = table.rows if versions is None else reach(table.rows, versions, consent.numbers, table.features)
        return found | {"rows_at_risk": worked_out}
    assert book is not None, "a protected table has a ledger"
    return found | {
        "unit": "row" if consent.person is None else "person",
        "epsilon": consent.epsilon,
        "delta": consent.delta,
        "noise_multiplier": consent.noise,
        "spent_epsilon": book.spent_epsilon,
        "epsilon_of_replacing": epsilon_of(mu_of_replacing(consent.mu), consent.delta),
        **_facts_of_sums(consent, member),
    }


def _facts_of_sums(consent: Consent, member: Membership) -> dict[str, Any]:
    if not consent.institutions:
        return {}
    honest = consent.institutions - consent.colluding
    tau = discreteness(consent.share * UNIT, honest) * member.line.spec.m * (consent.versions or 0)
    privacy = member.line.privacy
    return {
        "helper": None if privacy is None or privacy.shared is None else privacy.shared.helper,
        "institutions": consent.institutions,
        "colluding": consent.colluding,
        "noise_of_share": consent.share,
        "epsilon_alone": epsilon_of(consent.mu_alone, consent.delta),
        "delta_of_shares": tau,
    }


# Decisions


def still_consents(before: Consent, now: Consent) -> bool:
    """Return whether the present terms are those of the consent: the same numbers, versions and training.

    In sums of institutions, the noise and the number of institutions have to be the same, too.
    """
    if before.institutions != now.institutions:
        return False
    if now.institutions and (before.noise, before.share) != (now.noise, now.share):
        return False
    return (before.protected, before.numbers, before.training, before.sums) == (
        now.protected,
        now.numbers,
        now.training,
        before.sums if not now.protected else now.sums,
    )


def check_decided(before: Consent | None, now: Consent, *, has_trained: bool) -> None:
    """Raise :class:`Undecided` if a person has to decide, but has not done so in this run.

    Args:
        before: the earlier consent; None without an earlier one, such as in folders of older programs.
        now: the consent that the run needs.
        has_trained: whether pings of this folder may have been sent already.
    """
    if before is None:
        if has_trained:
            raise Undecided(
                "this folder was joined by a program that sent updates without protection, and sends nothing more "
                "until you decide. Give --epsilon 3 to protect each row from now on (what was sent before stays "
                "unprotected), or --accept-reconstruction to continue without protection"
            )
        return
    if not still_consents(before, now):
        again = "--epsilon" if before.protected else "--accept-reconstruction"
        changes = "; ".join(_changes(before, now))
        raise Undecided(
            f"what the study asks for has changed since you consented ({changes}); check it with --show, and give "
            f"{again} and --agree to accept it"
        )


def _changes(before: Consent, now: Consent) -> list[str]:
    """Return the differences from the earlier consent."""
    changes = []
    if before.numbers != now.numbers:
        changes.append(f"an update has {now.numbers:,} numbers, {before.numbers:,} before")
    if before.training != now.training:
        changes.append("the training is another one")
    if before.institutions != now.institutions:
        changes.append(f"a sum has {now.institutions or 1:,} institutions or more, {before.institutions or 1:,} before")
    if now.institutions and (before.noise, before.share) != (now.noise, now.share):
        changes.append(
            f"the noise of a sum is {now.noise:g}, of which you add {now.share:.3g}; before {before.noise:g}, of "
            f"which you added {before.share:.3g}"
        )
    if now.protected and before.sums != now.sums:
        changes.append(f"a version takes {format_count(now.sums, 'sum')} over your rows, {before.sums:,} before")
    return changes or ["whether rows are protected"]
