"""The offer: a helper's terms and key for a line, signed by the helper.

A study permanently names its helper by the helper's identity. The helper signs its offer for a line, so a leader cannot
give clients its own key, and a helper can change its key without a new study. The terms bind all three parties: a
client seals its share for an offer (`fedping.protocol.sharing.shares`), and the helper opens the share only under the
terms of that offer, regardless of the leader's claims.
"""

from __future__ import annotations

from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import UNSET, DecodeError, Meta, Struct, UnsetType, ValidationError, json

from fedping.protocol.errors import InvalidSettings
from fedping.protocol.privacy import RowSums
from fedping.protocol.sharing.keys import Identity, Seal, is_signed, signature
from fedping.protocol.weights import Name

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SIGNED_AS = "fedping offer v1"

OFFER_ID_BYTES = 8


class Promise(Struct, frozen=True, kw_only=True):
    """A line's central guarantee, which the helper has checked against its noise.

    Clients can't check it themselves. Without it in the terms, a leader could show clients a guarantee that the helper
    has not checked. The attributes are those of `fedping.protocol.privacy.Central` and ``Privacy``.
    """

    epsilon: float
    delta: float
    rounds: int
    contributions: int | None
    noise_multiplier: float

    def __str__(self) -> str:
        at_most = "" if self.contributions is None else f", {self.contributions:,} of a client"
        return (
            f"epsilon {self.epsilon:g} and delta {self.delta:g} for {self.rounds:,} rounds{at_most}, with "
            f"noise_multiplier {self.noise_multiplier:g}"
        )


class Terms(Struct, frozen=True, kw_only=True):
    """The settings of a line that the leader, the helper and the clients agree on.

    Attributes:
        helper, leader: identities of the two servers.
        study, line, arms: names of the study, of the line, and of every arm that follows the line.
        numbers: d, the count of numbers in a sum.
        sigma: standard deviation of the noise that the helper adds to each number; 0 for none.
        promise: the guarantee that this noise gives; None without a central guarantee.
        min_batch: minimum number of clients of an arm in a sum.
        proofs: whether only clients count that prove that they send votes.
        metric: with proofs, the largest number of a metric; else 0.
        seal, key: encryption of the shares, and the public key, in hexadecimal.
        made: time of the offer, ISO 8601 in UTC.
        rows: the noise in sums of institutions with tables; each institution adds a share of it. An institution relies
            on the shares of the others, so all must see the same value.
    """

    helper: Identity
    leader: Identity
    study: Name
    line: Name
    arms: Annotated[tuple[Name, ...], Meta(min_length=1)]
    numbers: Annotated[int, Meta(ge=1, le=2**31)]
    sigma: Annotated[float, Meta(ge=0, le=2.0**40)]
    min_batch: Annotated[int, Meta(ge=2, le=2**31 - 1)]
    proofs: bool
    seal: Seal
    key: Annotated[str, Meta(pattern=r"^([0-9a-f]{2})+\Z", max_length=4096)]
    made: str
    metric: Annotated[int, Meta(ge=0, le=2**24)] = 0
    promise: Promise | None = None
    rows: RowSums | UnsetType = UNSET
    format: Literal[1] = 1

    @property
    def seals_digest(self) -> bool:
        """Whether a helper's share contains the digest of the weights that its client was served."""
        return self.rows is not UNSET


class Offer(Struct, frozen=True, kw_only=True, dict=True):
    """Signed terms as their exact text; a different text has a different signature, even with the same meaning."""

    terms: Annotated[str, Meta(max_length=65_536)]
    signature: Annotated[str, Meta(pattern=r"^[0-9a-f]{128}\Z")]

    @cached_property
    def id(self) -> bytes:
        """The offer's id in a share: the first 8 bytes of the SHA-256 of its terms."""
        return sha256(self.terms.encode()).digest()[:OFFER_ID_BYTES]


def signed_offer(terms: Terms, key: Ed25519PrivateKey) -> Offer:
    """Return the offer with these terms, signed with the helper's key."""
    text = json.encode(terms).decode()
    return Offer(terms=text, signature=signature(key, SIGNED_AS, text.encode()).hex())


def terms_of(offer: Offer, helper: Identity) -> Terms:
    """Return the terms of an offer that a helper has signed.

    Raises:
        InvalidSettings: the helper has not signed them, or they cannot be read.
    """
    body = offer.terms.encode()
    if not is_signed(helper, SIGNED_AS, body, bytes.fromhex(offer.signature)):
        raise InvalidSettings(
            f"the offer is not signed by the helper {helper[:16]}…, named in the study. Use that helper's offer, "
            "or create a study that names the other helper"
        )
    try:
        terms = json.decode(body, type=Terms)
    except (ValidationError, DecodeError) as error:
        raise InvalidSettings(f"the helper's offer cannot be read: {error}; take one from a newer fedping") from error
    if terms.helper != helper:
        raise InvalidSettings("the offer names another helper than its signer. Use another offer")
    return terms
