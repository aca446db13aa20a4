"""Two-server lines: a helper with its keys and offers, which also reads pings with the leader's share."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from fedping.protocol.privacy import Privacy, Shared
from fedping.protocol.sharing.keys import identity_of, new_private_key, opener, public_key, signing_key
from fedping.protocol.sharing.offer import Offer, signed_offer
from fedping.protocol.sharing.shares import WORDS, info_of, layout, mask, words_of
from fedping.protocol.sharing.terms import numbers_of, terms_for
from fedping.protocol.study import PublicStudy, Study, public_study

HELPER = identity_of(signing_key(b"a helper", "tests"))
LEADER = identity_of(signing_key(b"a leader", "tests"))


@dataclass
class Helper:
    """A helper that can open shares sealed for any of its offers."""

    secret: bytes = b"a helper"
    keys: dict[bytes, bytes] = field(default_factory=dict)

    def offer(self, study: Study | PublicStudy, /, made: str = "2026-01-01T00:00:00Z", **otherwise: Any) -> Offer:
        """Return a new offer for the first line of a study, with some terms changed."""
        line = study.lines[0]
        assert line.privacy is not None
        assert line.privacy.shared is not None
        private = new_private_key(line.privacy.shared.seal)
        terms = terms_for(study, line, LEADER, public_key(line.privacy.shared.seal, private), made)
        offer = signed_offer(replace(terms, **otherwise), signing_key(self.secret, "tests"))
        self.keys[offer.id] = private
        return offer

    def read(self, study: Study | PublicStudy, ping: dict[str, Any], document: UUID) -> NDArray[np.int64] | None:
        """Return the vector of a ping from both servers' shares; None if it isn't sealed for this helper."""
        told, line = ping["payload"], study.lines[0]
        assert line.privacy is not None
        assert line.privacy.shared is not None
        assert told["update"]["encoding"] == "shared"
        d, seal = numbers_of(line), line.privacy.shared.seal
        payload = np.frombuffer(base64.b64decode(told["update"]["payload"]), np.uint8)[None]
        offer, share, sealed = (part[0].tobytes() for part in layout(d, seal).parts(payload))
        info = info_of(study.name, line.name, told["model_version"], told["study_variation"], document, d, offer)
        seed = opener(seal, self.keys[offer])(sealed, info)
        return None if seed is None else together(share, seed)


def together(share: bytes, seed: bytes) -> NDArray[np.int64]:
    """Return the vector of a leader's share and a seed."""
    words = words_of(np.frombuffer(share, np.uint8)[None])[0]
    return WORDS.centred(WORDS.plus(words, mask(seed, len(words))))


def shared(privacy: Privacy, **settings: Any) -> Privacy:
    """Return the privacy settings of a two-server line."""
    return replace(privacy, shared=Shared(**{"helper": HELPER, "min_batch": 2} | settings))


def offering(study: Study, offer: Offer | None) -> PublicStudy:
    """Return a study as clients fetch it, with an offer for its first line."""
    return public_study(study, offers={} if offer is None else {study.lines[0].name: offer})
