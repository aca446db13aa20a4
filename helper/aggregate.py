"""Computation of the helper's answer to a request: noisy sums of shares, or a refusal.

The size of all input from a leader or a client is limited. A request is checked completely before any of its shares is
opened, and noise is drawn after the last check.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from fedping.protocol.sharing.exchange import (
    DOCUMENT_BYTES,
    MOST_CLIENTS,
    AnsweredArm,
    AskedArm,
    Refused,
    Request,
)
from fedping.protocol.sharing.keys import OVERHEAD, Opener, opener
from fedping.protocol.sharing.offer import OFFER_ID_BYTES, Terms
from fedping.protocol.sharing.shares import (
    PRIME,
    SEED_BYTES,
    WORDS,
    Elements,
    Ring,
    Votes,
    as_bytes,
    context_of,
    info_of,
    layout_by,
    masks,
    numbers_from,
    votes_in,
)

if TYPE_CHECKING:
    from fedping.server_jobs.privacy.noise import Noise

OLDEST = timedelta(days=7)
"""Maximum age of a request; long enough for files that people carry from one server to the other over a weekend."""

CLOCKS_APART = timedelta(minutes=10)
"""Maximum time that a leader's clock may be ahead."""

_MOST_SHOWN = 4
"""Maximum number of digests that a refusal lists."""

_MASKS_AT_A_TIME = 1 << 20
"""Bytes of masks computed at a time (memory holds a few copies); a client's mask has 8 bytes a number."""


class Key(NamedTuple):
    """The terms and the private key of an offer, which open the shares sealed for it."""

    terms: Terms
    private: bytes


def arms_answered(
    terms: Terms,
    keys: Mapping[bytes, Key],
    request: Request,
    noise: Noise,
    threads: int = 1,
    used: Set[bytes] = frozenset(),
) -> tuple[AnsweredArm, ...]:
    """Return the sums of the helper's shares by arm, with noise, in the order of the request.

    A share is left out, and its position returned, if it can't be opened as the request describes it, was sealed for an
    offer that is not in ``keys`` or has other terms, or belongs to a document that is in an earlier answer. Such a
    document doesn't invalidate the request, because clients choose document ids and could otherwise block an answer.
    Memory does not grow with the number of clients, except for these positions.

    Args:
        terms: the terms of the line, as the helper has pinned them.
        keys: the keys, by the id of the offer.
        request: a request for that study and line; the caller checks its signature, time and version.
        noise: draws the noise, d numbers for each arm, once, after all other steps.
        threads: number of threads that open shares.
        used: the documents that are in an earlier answer.

    Raises:
        Refused: the request is invalid (:func:`check_form`), too few shares of an arm could be opened, or institutions
            were served different weights.
    """
    check_form(terms, request)
    openers = {
        offer: opener(key.terms.seal, key.private)
        for offer, key in keys.items()
        if _promises_the_same(key.terms, terms)
    }
    opened = [
        _opened(_Shares(terms, request.version, arm, openers, request.verify_key, used), threads)
        for arm in request.arms
    ]
    _check_weights(request.version, sum((each.digests for each in opened), Counter()))
    for arm, (_, refused, _) in zip(request.arms, opened, strict=True):
        if arm.clients - len(refused) < terms.min_batch:
            raise Refused(
                "too_few",
                f"of the {arm.clients:,} shares of arm '{arm.arm}' only {arm.clients - len(refused):,} can be opened, "
                f"but a sum needs {terms.min_batch:,}; nothing of them was kept: ask again with more clients",
            )
    return tuple(
        AnsweredArm(arm=arm.arm, total=as_bytes(_with_noise(total, terms, noise)), refused=tuple(refused))
        for arm, (total, refused, _) in zip(request.arms, opened, strict=True)
    )


def check_age(request: Request, now: datetime) -> None:
    """Raise :class:`Refused` if a request is too old, or from the future.

    Args:
        request: the request.
        now: the helper's time, with a time zone.
    """
    try:
        age = now - datetime.fromisoformat(request.made)
    except (ValueError, TypeError, OverflowError) as error:
        raise Refused("unreadable", "the request does not say when it was made, as a time in UTC") from error
    if age > OLDEST:
        raise Refused(
            "too_old",
            f"the request is {_in_words(age)} old, but only {_in_words(OLDEST)} are allowed; make a new one, or set "
            "the clocks right",
        )
    if age < -CLOCKS_APART:
        raise Refused(
            "from_the_future",
            f"the request was made {_in_words(-age)} ahead of this helper's clock; set the clocks of both servers",
        )


def check_form(terms: Terms, request: Request) -> None:
    """Raise :class:`Refused` if a request is not valid for a line with these terms; shares are not opened."""
    if (request.study, request.line) != (terms.study, terms.line):
        raise Refused("unknown", f"the request is for line '{request.line}' of study '{request.study}', another one")
    names = [arm.arm for arm in request.arms]
    if not names or len(set(names)) < len(names):
        raise Refused("unreadable", "the request names no arm, or an arm twice")
    for name in names:
        if name not in terms.arms:
            raise Refused("other_terms", f"the request is for arm '{name}', which the offer does not have")
    for arm in request.arms:
        _check_lengths(terms, request, arm)
    clients = sum(arm.clients for arm in request.arms)
    if clients > MOST_CLIENTS:
        raise Refused("too_many", f"the request is for {clients:,} clients, but {MOST_CLIENTS:,} are allowed")
    for arm in request.arms:
        if arm.clients < terms.min_batch:
            raise Refused(
                "too_few",
                f"the request is for {arm.clients:,} clients of arm '{arm.arm}', but a sum needs {terms.min_batch:,}; "
                "ask again with more clients",
            )
    _check_documents(request.arms)


def bytes_a_client(terms: Terms) -> int:
    """Return the number of bytes that a request has for each client."""
    return sum(_widths(terms).values())


def _widths(terms: Terms) -> dict[str, int]:
    """Return the number of bytes that each part of a request has for a client, by its name in :class:`AskedArm`."""
    votes, public, prepared = votes_in(terms), 0, 0
    if votes is not None:
        from fedping.protocol.proofs.prio3 import sizes

        size = sizes(votes.circuit)
        public, prepared = size.public, size.prepared
    return {
        "documents": DOCUMENT_BYTES,
        "offers": OFFER_ID_BYTES,
        "sealed": layout_by(terms).sealed,
        "public": public,
        "prepared": prepared,
    }


def _check_lengths(terms: Terms, request: Request, arm: AskedArm) -> None:
    """Raise :class:`Refused` if the length of an arm's part doesn't match the number of its clients and the terms."""
    k, key_bytes = arm.clients, 0
    for part, width in _widths(terms).items():
        length, expected = len(getattr(arm, part)), k * width
        if length != expected:
            raise Refused(
                "unreadable" if part in ("documents", "offers") else "other_terms",
                f"'{part}' of arm '{arm.arm}' has {length:,} bytes, but {k:,} clients have {expected:,}",
            )
    if terms.proofs:
        from fedping.protocol.proofs.prio3 import KEY_BYTES

        key_bytes = KEY_BYTES
    if len(request.verify_key) != key_bytes:
        raise Refused("other_terms", "only one of request and offer has proofs; both or neither must have them")


def _check_documents(arms: Sequence[AskedArm]) -> None:
    """Raise :class:`Refused` if a document occurs twice, or the documents of an arm are not in ascending order."""
    halves = [np.frombuffer(arm.documents, ">u8").reshape(-1, 2).astype(np.uint64) for arm in arms]
    together = np.concatenate(halves)
    together = together[np.lexsort((together[:, 1], together[:, 0]))]
    if (together[1:] == together[:-1]).all(axis=1).any():
        raise Refused("repeated", "a document is in the request twice; clients may count only once")
    for arm, ids in zip(arms, halves, strict=True):
        before, after = ids[:-1], ids[1:]
        rising = (before[:, 0] < after[:, 0]) | ((before[:, 0] == after[:, 0]) & (before[:, 1] < after[:, 1]))
        if not rising.all():
            raise Refused("unreadable", f"the documents of arm '{arm.arm}' are not in ascending order")


def _promises_the_same(offered: Terms, terms: Terms) -> bool:
    """Return whether an offer has the terms of the line, apart from its key and time."""
    return replace(offered, key=terms.key, made=terms.made) == terms


def _check_weights(version: int, digests: Counter[bytes]) -> None:
    """Raise :class:`Refused` if institutions were served different weights of a version."""
    if len(digests) > 1:
        found = "; ".join(f"{count:,} have {digest.hex()[:16]}…" for digest, count in digests.most_common(_MOST_SHOWN))
        raise Refused(
            "other_weights",
            f"the institutions were served {len(digests):,} different models or weights as version {version} "
            f"({found}), and a sum over the only share of one of them would reveal a single institution. The request "
            "was discarded. Institutions can compare their versions with 'fedping join status'",
        )


class _Opened(NamedTuple):
    """The result of aggregating the shares of some clients.

    Attributes:
        total: the sum of the numbers.
        refused: the positions of clients that don't count, ascending.
        digests: number of clients by the digest of the weights that they were served, if shares have digests.
    """

    total: Elements
    refused: list[int]
    digests: Counter[bytes]


class _Shares(NamedTuple):
    """The helper's sealed shares of an arm."""

    terms: Terms
    version: int
    arm: AskedArm
    openers: Mapping[bytes, Opener]
    verify_key: bytes
    used: Set[bytes]

    @property
    def ring(self) -> Ring:
        """The ring in which the shares are summed."""
        return PRIME if self.terms.proofs else WORDS

    @property
    def size(self) -> int:
        """The number of summed numbers in a share."""
        votes = votes_in(self.terms)
        return self.terms.numbers if votes is None else votes.bits

    def numbers(self, places: range) -> tuple[Elements, list[int], Counter[bytes]]:
        """Return the numbers of clients at ``places`` that count, the places of other clients, and digests of weights.

        The numbers have the shape (used, size).
        """
        opened = [self._opened(place) for place in places]
        refused = [place for place, share in zip(places, opened, strict=True) if share is None]
        used = [place for place, share in zip(places, opened, strict=True) if share is not None]
        shares = [share for share in opened if share is not None]
        votes = votes_in(self.terms)
        if votes is None:
            digests = (share[SEED_BYTES:] for share in shares if self.terms.seals_digest)
            return masks(shares, self.terms.numbers), refused, Counter(digests)
        numbers, proven = self._proven(votes, np.array(used, np.intp), shares)
        refused += [place for place, fine in zip(used, proven.tolist(), strict=True) if not fine]
        return numbers[proven], sorted(refused), Counter()

    def _proven(
        self, votes: Votes, places: NDArray[np.intp], shares: list[bytes]
    ) -> tuple[Elements, NDArray[np.bool_]]:
        """Return the shares of the clients' bits, and whether each client has proven that its numbers are bits."""
        from fedping.protocol.proofs.prio3 import Side, prepare, valid

        terms, arm = self.terms, self.arm
        if not shares:
            return np.zeros((0, votes.bits), np.uint64), np.zeros(0, np.bool_)
        documents, public, shown = (
            np.frombuffer(each, np.uint8).reshape(arm.clients, -1)[places]
            for each in (arm.documents, arm.public, arm.prepared)
        )
        rows = np.frombuffer(b"".join(shares), np.uint8).reshape(len(shares), -1)
        context = context_of(terms.study, terms.line, self.version, arm.arm, votes)
        prepared = prepare(votes.circuit, Side.HELPER, self.verify_key, documents, public, rows, context)
        return prepared.out_shares, prepared.ok & valid(votes.circuit, public, shown, prepared.shown)

    def _opened(self, place: int) -> bytes | None:
        """Return the share that was sealed at a place; None if it can't be opened."""
        arm, width = self.arm, len(self.arm.sealed) // self.arm.clients
        offer = arm.offers[OFFER_ID_BYTES * place : OFFER_ID_BYTES * (place + 1)]
        document = UUID(bytes=arm.documents[DOCUMENT_BYTES * place : DOCUMENT_BYTES * (place + 1)])
        if document.bytes in self.used or (open_it := self.openers.get(offer)) is None:
            return None
        terms = self.terms
        info = info_of(terms.study, terms.line, self.version, arm.arm, document, terms.numbers, offer)
        share = open_it(arm.sealed[width * place : width * (place + 1)], info)
        return share if share is not None and len(share) == width - OVERHEAD[terms.seal] else None


def _opened(shares: _Shares, threads: int) -> _Opened:
    """Return the aggregate of an arm's shares."""
    edges = [shares.arm.clients * part // threads for part in range(threads + 1)]
    parts = [range(*each) for each in zip(edges[:-1], edges[1:], strict=True)]
    if threads == 1:
        return _opened_part(shares, parts[0])
    with ThreadPoolExecutor(threads) as pool:  # hashing lets other threads run; opening mostly does not
        sums = list(pool.map(lambda part: _opened_part(shares, part), parts))
    return _Opened(
        shares.ring.total(np.stack([each.total for each in sums])),
        [place for each in sums for place in each.refused],
        sum((each.digests for each in sums), Counter()),
    )


def _opened_part(shares: _Shares, places: range) -> _Opened:
    at_a_time = max(1, _MASKS_AT_A_TIME // (8 * shares.size))
    total, refused, digests = np.zeros(shares.size, np.uint64), list[int](), Counter[bytes]()
    for start in range(places.start, places.stop, at_a_time):
        numbers, others, served = shares.numbers(range(start, min(start + at_a_time, places.stop)))
        refused += others
        digests += served
        total = shares.ring.plus(total, shares.ring.total(numbers))
    return _Opened(total, refused, digests)


def _with_noise(total: Elements, terms: Terms, noise: Noise) -> Elements:
    """Return a sum of vectors plus the noise that the terms require."""
    drawn: NDArray[np.int64] = noise.integers(terms.sigma, terms.numbers)
    votes = votes_in(terms)
    if votes is None:
        return WORDS.plus(total, WORDS.of(drawn))
    return PRIME.plus(numbers_from(votes, total, 0), PRIME.of(drawn))


def _in_words(span: timedelta) -> str:
    """Return a duration as text: "3 days", "25 minutes"."""
    for unit, seconds in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if span.total_seconds() >= 2 * seconds:
            return f"{span.total_seconds() / seconds:.0f} {unit}"
    return f"{span.total_seconds():.0f} seconds"
