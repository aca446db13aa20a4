"""Joining lines: pinning their terms from the study's public file, making offers, rotating and retiring keys."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from fedping.helper.folder import HelperFolder, read_secret
from fedping.helper.records import Offered, Pinned, Records
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.formats import without_format
from fedping.protocol.local_files import write_secret
from fedping.protocol.notation import utc_now
from fedping.protocol.sharing.keys import Identity, Seal, new_private_key, public_key
from fedping.protocol.sharing.offer import Offer, Terms, signed_offer, terms_of
from fedping.protocol.sharing.terms import terms_for
from fedping.protocol.study import PublicLine, PublicStudy

if TYPE_CHECKING:
    from fedping.helper.aggregate import Key


_PRIVATE_BYTES = {"x25519": 32, "mlkem768-x25519": 96}


def read_public_study(file: Path) -> PublicStudy:
    """Return a study from the file that its clients fetch.

    Raises:
        InvalidSettings: the file can't be read, or is not a public study.
        NewerFormat: a later version of fedping has written it.
    """
    try:
        return msgspec.json.decode(without_format(file.read_bytes(), str(file)), type=PublicStudy)
    except OSError as error:
        raise InvalidSettings(
            f"{file} cannot be read: {error.strerror}; give the study file that clients fetch"
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidSettings(f"{file} is not a study as clients fetch it: {error}; take it from the leader") from error


def line_of(study: PublicStudy, name: str | None, helper: Identity) -> PublicLine:
    """Return the line of this name, or without a name the only line that names the helper.

    Raises:
        InvalidSettings: no line, or without a name several lines, of the study name the helper.
    """
    ours = [each for each in study.lines if _helper_of(each) == helper]
    if name is None and len(ours) == 1:
        return ours[0]
    named = next((each for each in study.lines if each.name == name), None)
    if named is not None and _helper_of(named) == helper:
        return named
    if name is None:
        why = f"{len(ours)} lines of study '{study.name}' name this helper" if ours else ""
    elif named is None:
        why = f"study '{study.name}' has no line '{name}'"
    else:
        other = _helper_of(named)
        why = f"line '{name}' of study '{study.name}' names " + (f"the helper {other[:16]}…" if other else "no helper")
    if not why:
        why = f"no line of study '{study.name}' names this helper"
    remedy = f"give one of {', '.join(each.name for each in ours)}" if ours else f"the leader must name {helper}"
    raise InvalidSettings(f"{why}; {remedy}")


def _helper_of(line: PublicLine) -> str | None:
    return None if line.privacy is None or line.privacy.shared is None else line.privacy.shared.helper


def join(folder: HelperFolder, study: PublicStudy, line: PublicLine, leader: Identity) -> tuple[Offer, bool]:
    """Pin a line; return the helper's offer for it, and whether the line is new.

    A line that is pinned already, with the same terms, keeps its newest offer. Until a version is answered, its leader
    can be corrected, with a new offer, because a wrong identity is noticed at the leader's first request. Shares sealed
    for the earlier offer are not opened for another leader.

    Raises:
        InvalidSettings: a helper can't join a line with these settings, or the line is pinned with other settings.
    """
    with folder.records() as records, records.writing():
        pinned = records.line(study.name, line.name)
        if pinned is not None:
            newest = current(records.offers(pinned.number))
            before = terms_of(newest, folder.identity)
            asked = _checked(study, line, leader, bytes.fromhex(before.key), before.made)
            if asked.leader != before.leader:
                if records.answers(pinned.number):
                    raise InvalidSettings(
                        f"line '{line.name}' of study '{study.name}' is pinned with the leader {before.leader[:16]}…, "
                        "which has received sums from this helper; only that leader may send "
                        "requests, with its earlier key"
                    )
                asked = replace(asked, leader=before.leader)
            if replace(asked, arms=before.arms) != before or set(asked.arms) != set(before.arms):
                raise InvalidSettings(
                    f"line '{line.name}' of study '{study.name}' is pinned with other terms, and clients rely on "
                    "them. For new terms, the leader must create a study with another name"
                )
            if leader != before.leader:
                offer = _renewed(folder, replace(before, leader=leader))
                records.add_offer(pinned.number, offer)
                return offer, True
            return newest, False
        rounds = None if line.privacy is None or line.privacy.central is None else line.privacy.central.rounds
        private = new_private_key(_seal(line))
        terms = _checked(study, line, leader, public_key(_seal(line), private), utc_now())
        offer = _kept(folder, terms, private)
        records.add_offer(records.pin(study.name, line.name, rounds), offer)
        return offer, True


def rotate(folder: HelperFolder, study: str, line: str) -> Offer:
    """Return an offer with a new key and the same terms; shares for older offers are still opened.

    Raises:
        InvalidSettings: the helper has not joined the line.
    """
    with folder.records() as records, records.writing():
        pinned = pinned_line(records, study, line)
        before = terms_of(current(records.offers(pinned.number)), folder.identity)
        offer = _renewed(folder, before)
        records.add_offer(pinned.number, offer)
        return offer


def retire(folder: HelperFolder, study: str, line: str) -> list[bytes]:
    """Delete the keys of all offers of a line except the newest; return the ids of the newly retired offers.

    Shares that were sealed for these offers can never be opened again.

    Raises:
        InvalidSettings: the line is not pinned.
    """
    with folder.records() as records:
        with records.writing():
            pinned = pinned_line(records, study, line)
            *older, _ = records.offers(pinned.number)
            retired = [each.offer.id for each in older if each.retired is None]
            for offer in retired:
                records.retire(offer, utc_now())
        for each in older:  # also the keys that an earlier, killed command has left
            folder.key_file(each.offer.id).unlink(missing_ok=True)
    return retired


def current(offers: Sequence[Offered]) -> Offer:
    """Return the newest offer of a line, which is never retired."""
    return offers[-1].offer


def pinned_line(records: Records, study: str, line: str) -> Pinned:
    """Return a line from the records.

    Raises:
        InvalidSettings: the helper has not joined the line.
    """
    pinned = records.line(study, line)
    if pinned is None:
        joined = ", ".join(f"{each.study} {each.line}" for each in records.lines()) or "none"
        raise InvalidSettings(
            f"this helper has not joined line '{line}' of study '{study}', but: {joined}; join it with 'fedping helper "
            "join'"
        )
    return pinned


def keys_of(folder: HelperFolder, offers: Sequence[Offered]) -> dict[bytes, Key]:
    """Return the keys of all offers that are not retired, by the id of the offer.

    Raises:
        InvalidSettings: a key is missing or damaged.
    """
    from fedping.helper.aggregate import Key

    keys = {}
    for offer, retired in offers:
        if retired is None:
            terms = terms_of(offer, folder.identity)
            keys[offer.id] = Key(terms, read_secret(folder.key_file(offer.id), _PRIVATE_BYTES[terms.seal]))
    return keys


def _renewed(folder: HelperFolder, terms: Terms) -> Offer:
    """Return an offer with the same terms and a new key."""
    private = new_private_key(terms.seal)
    return _kept(folder, replace(terms, key=public_key(terms.seal, private).hex(), made=utc_now()), private)


def _kept(folder: HelperFolder, terms: Terms, private: bytes) -> Offer:
    """Return the offer with these terms, after writing its key to disk, so that shares sealed for it can be opened."""
    offer = signed_offer(terms, folder.key)
    write_secret(folder.key_file(offer.id), private)
    return offer


def _seal(line: PublicLine) -> Seal:
    assert line.privacy is not None
    assert line.privacy.shared is not None
    return line.privacy.shared.seal


def _checked(study: PublicStudy, line: PublicLine, leader: Identity, key: bytes, made: str) -> Terms:
    """Return the terms of a line, after checking that they provide the guarantees of its settings.

    Raises:
        InvalidSettings: the terms don't provide a guarantee, or this helper doesn't support them.
    """
    from fedping.server_jobs.privacy.budget import beyond_promise
    from fedping.server_jobs.privacy.noise import checked_sigma

    assert line.privacy is not None
    where, central = f"line '{line.name}' of study '{study.name}'", line.privacy.central
    terms = terms_for(study, line, leader, key, made)
    if terms.leader == terms.helper:
        raise InvalidSettings(f"{where} would have one server, which sees everything; the leader must be another")
    if not terms.arms:
        raise InvalidSettings(f"no arm of study '{study.name}' follows line '{line.name}', so there is nothing to sum")
    if central is not None:
        checked_sigma(terms.sigma)
        epsilon = beyond_promise(line.privacy, line.privacy.releases or central.rounds)
        if epsilon is not None:
            raise InvalidSettings(
                f"the noise of {where} gives epsilon {epsilon:.4g}, but its clients are promised {central.epsilon:g}; "
                "the leader must create the study with more noise"
            )
    return terms
