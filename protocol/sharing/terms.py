"""Agreement of the three parties of a two-server line: checks that the helper's offered terms fit the line's settings.

Each party checks on its own: the helper before it signs, the leader before it publishes the offer, and a client before
it seals anything. So no party has to trust another party's claim about the noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import UNSET, UnsetType

from fedping.protocol.errors import InvalidSettings
from fedping.protocol.privacy import METRICS, Privacy, frame_of
from fedping.protocol.sharing.keys import Identity
from fedping.protocol.sharing.offer import Offer, Promise, Terms, terms_of
from fedping.protocol.study import Arm, Line, PublicLine, PublicStudy, Study

_LAST_DIGITS = 1 - 1e-9
"""Factor of tolerance, because a bound that was computed in another language may be slightly smaller."""


def terms_for(study: Study | PublicStudy, line: Line | PublicLine, leader: Identity, key: bytes, made: str) -> Terms:
    """Return the terms that a line's settings require of its helper.

    Args:
        study: the line's study.
        line: a two-server line.
        leader: the identity of the operator.
        key: the helper's public key, of the kind that the line requires.
        made: now, ISO 8601 in UTC.

    Raises:
        InvalidSettings: the line isn't a two-server line, or its noise was never derived.
    """
    privacy = line.privacy
    if privacy is None or privacy.shared is None:
        raise InvalidSettings(
            f"line '{line.name}' of study '{study.name}' has no helper; name a line with [lines.privacy.shared]"
        )
    return Terms(
        helper=privacy.shared.helper,
        leader=leader,
        study=study.name,
        line=line.name,
        arms=arms_of(study.arms, line.name),
        numbers=numbers_of(line),
        sigma=noise_of(line),
        promise=_promise_of(privacy),
        min_batch=privacy.shared.min_batch,
        proofs=privacy.shared.proofs,
        metric=frame_of(privacy, line.spec).metric if privacy.shared.proofs else 0,
        seal=privacy.shared.seal,
        key=key.hex(),
        made=made,
        rows=UNSET if privacy.rows is None else privacy.rows,
    )


def agreed(offer: Offer, study: Study | PublicStudy, line: Line | PublicLine) -> Terms:
    """Return the terms of an offer after checking that they fit a line.

    Raises:
        InvalidSettings: the offer is not signed by the line's helper, is for other settings, or protects clients less.
    """
    if line.privacy is None or line.privacy.shared is None:
        raise InvalidSettings(f"line '{line.name}' of study '{study.name}' has no helper, so it can have no offer")
    terms = terms_of(offer, line.privacy.shared.helper)
    for what, offered, asked in _apart(terms, study, line):
        raise InvalidSettings(
            f"the helper's offer does not fit line '{line.name}' of study '{study.name}': its {what} is {offered}, "
            f"and the study has {asked}. Ask the helper for an offer for this study's file"
        )
    return terms


def agreed_terms(study: PublicStudy, line: PublicLine) -> Terms | None:
    """Return the terms under which clients of a published line send; None if the line has no offer yet.

    Raises:
        InvalidSettings: as in :func:`agreed`.
    """
    return None if line.offer is UNSET else agreed(line.offer, study, line)


def _apart(terms: Terms, study: Study | PublicStudy, line: Line | PublicLine) -> Iterator[tuple[str, object, object]]:
    """Yield the differences between an offer and a line's settings: name, offered value and required value."""
    asked = terms_for(study, line, terms.leader, bytes.fromhex(terms.key), terms.made)
    for name in ("study", "line", "numbers", "proofs", "metric", "seal"):
        if getattr(terms, name) != getattr(asked, name):
            yield f"'{name}'", repr(getattr(terms, name)), repr(getattr(asked, name))
    if set(terms.arms) != set(asked.arms):
        yield "'arms'", ", ".join(terms.arms), ", ".join(asked.arms)
    if terms.rows != asked.rows:
        yield "noise of institutions", _of_rows(terms), _of_rows(asked)
    if terms.promise != asked.promise:
        yield "guarantee", terms.promise or "none", asked.promise or "none"
    if terms.sigma < asked.sigma * _LAST_DIGITS:
        yield "noise", f"{terms.sigma:.12g}", f"{asked.sigma:.12g}"
    if terms.min_batch < asked.min_batch:
        yield "'min_batch'", terms.min_batch, asked.min_batch


def _of_rows(terms: Terms) -> str:
    if isinstance(terms.rows, UnsetType):
        return "none"
    return f"{terms.rows.noise:g} times the norm of a row, against {terms.rows.colluding:,} that collude"


def _promise_of(privacy: Privacy) -> Promise | None:
    central = privacy.central
    if central is None or central.noise_multiplier is None:
        return None
    return Promise(
        epsilon=central.epsilon,
        delta=central.delta,
        rounds=central.rounds,
        contributions=privacy.contributions,
        noise_multiplier=central.noise_multiplier,
    )


def arms_of(arms: Sequence[Arm], line: str) -> tuple[str, ...]:
    """Return the names of the arms that follow a line, in the order of the study."""
    return tuple(arm.name for arm in arms if arm.line == line)


def numbers_of(line: Line | PublicLine) -> int:
    """Return the length of a line's vector: the count of its weights and the metrics."""
    return line.spec.m + len(METRICS)


def noise_of(line: Line | PublicLine) -> float:
    """Return the standard deviation of the noise that each of a line's servers adds; 0 without a central guarantee.

    Raises:
        InvalidSettings: the noise was never derived.
    """
    privacy = line.privacy
    if privacy is None or privacy.central is None:
        return 0.0
    if privacy.central.noise_multiplier is None:
        raise InvalidSettings(
            f"line '{line.name}' is private, and its study lacks the noise, which 'fedping study create' derives. Use "
            "the published study"
        )
    return privacy.central.noise_multiplier * frame_of(privacy, line.spec).sensitivity
